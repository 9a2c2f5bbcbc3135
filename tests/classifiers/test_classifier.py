"""The contract of classifiers: outputs that contradict the declared kind are rejected; ensembles average members."""

import re
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Output, softmax
from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
from secondlook.classifiers.classifier import validate_output
from secondlook.errors import ClassifierError

Array = np.ndarray[Any, Any]
PROBABILITIES = np.array([[0.2, 0.8], [0.5, 0.5]], dtype=np.float32)
LOGITS = np.array([[-1.0, 3.0], [2.0, 2.0]], dtype=np.float32)


def halves(images: Array) -> Array:
    return np.full((len(images), 2), 0.5)


def validate(values: object, output: Output, n_classes: int | None = None) -> Array:
    return validate_output(values, n_images=2, output=output, n_classes=n_classes, name="m")


def test_valid_outputs_are_unchanged() -> None:
    np.testing.assert_array_equal(validate(PROBABILITIES, "probabilities"), PROBABILITIES)
    np.testing.assert_array_equal(validate(LOGITS, "logits"), LOGITS)


def test_outputs_are_converted_to_float32() -> None:
    for dtype in (np.float16, np.float64, np.int64):
        assert validate(LOGITS.astype(dtype), "logits").dtype == np.float32
    assert validate(LOGITS.tolist(), "logits").dtype == np.float32


@pytest.mark.parametrize(
    ("values", "output", "offending"),
    [
        (LOGITS, "probabilities", "-1"),
        (np.abs(LOGITS), "probabilities", "sums to 4"),
        (PROBABILITIES * 1.002, "probabilities", "1.002"),
        (PROBABILITIES, "logits", "'probabilities'"),
        (np.where(LOGITS == 3, np.nan, LOGITS), "logits", "nan for image 0 of the batch, class 1"),
        (np.where(LOGITS == 3, np.inf, LOGITS), "logits", "inf for image 0"),
        (np.full((2, 2), 1e300), "logits", "inf for image 0 of the batch, class 0"),
        (np.where(PROBABILITIES == 0.5, np.nan, PROBABILITIES), "probabilities", "nan for image 1"),
        (PROBABILITIES[:1], "probabilities", "[1, 2] for 2 images"),
        (np.array([0, 1]), "probabilities", "[2]"),
        (LOGITS[:, :, None, None], "logits", "[2, 2, 1, 1]"),
        (LOGITS[:, :1], "logits", "[2, 1] for 2 images"),
        (LOGITS[:, :0], "logits", "[2, 0] for 2 images"),
        (np.array([["a", "b"]] * 2), "logits", "<U1"),
        (None, "logits", "NoneType"),
    ],
)
def test_invalid_outputs_are_rejected(values: object, output: Output, offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        validate(values, output)


def test_another_number_of_classes_is_rejected() -> None:
    with pytest.raises(ClassifierError, match=r"2 classes.* 3"):
        validate(PROBABILITIES, "probabilities", n_classes=3)


def test_rounding_errors_below_zero_become_zero() -> None:
    values = np.array([[-1e-8, 1.0], [0.0, 1.0]], dtype=np.float32)
    assert validate(values, "probabilities").min() == 0


def test_a_single_row_that_sums_to_one_may_be_logits() -> None:
    row = PROBABILITIES[:1]
    found = validate_output(row, n_images=1, output="logits", n_classes=None, name="m")
    np.testing.assert_array_equal(found, row)


@pytest.mark.parametrize(
    "batch",
    [
        np.zeros((2, 8, 8), np.uint8),
        np.zeros((2, 8, 8, 4), np.uint8),
        np.zeros((2, 8, 8, 3), np.float64),
        np.zeros((0, 8, 8, 3), np.uint8),
    ],
)
def test_invalid_batches_are_rejected(batch: Array) -> None:
    with pytest.raises(ClassifierError, match="function halves"):
        load_classifier(halves)(batch)


def test_a_subclass_only_implements_forward(images: Array) -> None:
    class Halves(Classifier):
        def forward(self, images: Array) -> Array:
            return halves(images)

    mine = Halves(name="mine", digest="0" * 64, output="probabilities", preprocessing=Preprocessing())
    assert load_classifier(mine)(images).shape == (7, 2)
    assert repr(mine).startswith("Halves('mine', output='probabilities'")
    with pytest.raises(ClassifierError, match=r"output='scores'.* 'mine'"):
        Halves(name="mine", digest="", output="scores", preprocessing=Preprocessing())  # type: ignore[arg-type]


def linear_classifier(seed: int, classes: int = 3, **options: Any) -> Classifier:
    matrix = np.random.default_rng(seed).normal(size=(192, classes))
    return load_classifier(lambda images: (images / 255).reshape(len(images), -1) @ matrix, output="logits", **options)


def test_an_ensemble_averages_probabilities_not_logits(images: Array) -> None:
    members = [linear_classifier(seed) for seed in range(3)]
    ensemble = Ensemble(members)
    expected = np.mean([softmax(member(images)) for member in members], axis=0)
    np.testing.assert_allclose(ensemble(images), expected, atol=1e-6)
    assert ensemble.output == "probabilities"
    assert ensemble.members == tuple(members)
    assert members[0].members == ()
    assert ensemble.n_classes == 3


def test_the_digest_of_an_ensemble_depends_on_its_members() -> None:
    a, b, nameless = linear_classifier(0, name="a"), linear_classifier(1, name="b"), linear_classifier(2)
    assert Ensemble([a, b]).digest == Ensemble([a, b], name="other").digest
    assert Ensemble([a, b]).digest not in (Ensemble([a]).digest, a.digest, "")
    assert Ensemble([a, nameless]).digest == ""


@pytest.mark.parametrize(
    ("members", "offending"),
    [
        ([], "empty"),
        ([linear_classifier(0, resize=8), linear_classifier(1)], "resize is None"),
        ([linear_classifier(0, size=8), linear_classifier(1, size=9)], "(9, 9)"),
        ([Ensemble([linear_classifier(0)])], "'ensemble of"),
    ],
)
def test_members_that_do_not_match_are_rejected(members: list[Classifier], offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        Ensemble(members)


def test_members_with_other_classes_are_rejected_as_soon_as_known(images: Array) -> None:
    three, four = linear_classifier(0), linear_classifier(1, classes=4)
    with pytest.raises(ClassifierError, match=r"n_classes is 4 .* 3"):
        Ensemble([three, four])(images)
    with pytest.raises(ClassifierError, match=r"n_classes is 4 .* 3"):
        Ensemble([three, four])
