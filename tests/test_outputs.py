"""Logits become probabilities by the formula, in float64, whatever their size."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from secondlook.arrays import softmax
from secondlook.classifiers import load_classifier
from secondlook.classifiers.classifier import validate_output


def test_huge_logits_do_not_overflow() -> None:
    assert softmax(np.array([[5000.0, 5000.0], [-5000.0, 5000.0]])).tolist() == [[0.5, 0.5], [0.0, 1.0]]


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(-80, 80, width=32)))
def test_softmax_is_the_formula_and_passes_the_check(logits: np.ndarray[Any, Any]) -> None:
    exact = [[np.exp(float(value)) / sum(np.exp(float(other)) for other in row) for value in row] for row in logits]
    before = logits.copy()
    found = softmax(logits)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(logits, before)
    validate_output(found, n_images=3, output="probabilities", n_classes=4, name="m")


def test_it_goes_over_the_last_axis() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 3, 4))
    for image in range(2):
        np.testing.assert_array_equal(softmax(logits)[image], softmax(logits[image]))


def test_a_classifier_gives_its_probabilities_as_float32() -> None:
    logits = np.array([[1.0, 2.0, 4.0]], dtype=np.float32)
    classifier = load_classifier(lambda images: np.repeat(logits, len(images), axis=0), output="logits")
    answered = classifier.probabilities(np.zeros((2, 4, 4, 3), dtype=np.uint8))
    assert answered.dtype == np.float32
    np.testing.assert_array_equal(answered, np.repeat(softmax(logits), 2, axis=0).astype(np.float32))
