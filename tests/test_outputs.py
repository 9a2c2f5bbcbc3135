"""Softmax: logits of any size become probabilities in float64."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from secondlook.arrays import softmax
from secondlook.classifiers import load_classifier

IMAGES = np.zeros((2, 4, 4, 3), dtype=np.uint8)


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float32, (2, 3, 4), elements=st.floats(-80, 80, width=32)))
def test_softmax_is_the_formula_over_the_last_axis_and_passes_the_check(logits: np.ndarray[Any, Any]) -> None:
    exact = [[[np.exp(float(one)) / sum(np.exp(row.astype(float))) for one in row] for row in each] for each in logits]
    before = logits.copy()
    found = softmax(logits)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(logits, before)
    load_classifier(lambda _: found[:, 0], output="probabilities").probabilities(IMAGES)


def test_huge_logits_do_not_overflow() -> None:
    assert softmax(np.array([[5000.0, 5000.0], [-5000.0, 5000.0]])).tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_a_classifier_gives_its_probabilities_as_float32() -> None:
    logits = np.array([[1.0, 2.0, 4.0]] * 2, dtype=np.float32)
    found = load_classifier(lambda _: logits, output="logits").probabilities(IMAGES)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, softmax(logits).astype(np.float32))
