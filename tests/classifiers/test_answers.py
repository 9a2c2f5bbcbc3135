"""Answers that are not what was stated are caught, each with its repair."""

from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Output
from secondlook.classifiers.answers import check_answers
from secondlook.errors import ClassifierError

PROBABILITIES = np.array([[0.2, 0.8], [0.5, 0.5]], dtype=np.float32)
LOGITS = np.array([[-1.0, 3.0], [2.0, 2.0]], dtype=np.float32)


def checked(answers: object, output: Output, n_classes: int | None = None) -> np.ndarray[Any, Any]:
    return check_answers(answers, rows=2, output=output, n_classes=n_classes, name="m")


def test_right_statements_pass_unchanged() -> None:
    np.testing.assert_array_equal(checked(PROBABILITIES, "probabilities"), PROBABILITIES)
    np.testing.assert_array_equal(checked(LOGITS, "logits"), LOGITS)


def test_other_numbers_become_float32() -> None:
    for dtype in (np.float16, np.float64, np.int64):
        assert checked(LOGITS.astype(dtype), "logits").dtype == np.float32
    assert checked(LOGITS.tolist(), "logits").dtype == np.float32


@pytest.mark.parametrize(
    ("answers", "output", "message"),
    [
        (LOGITS, "probabilities", "answered -1; these look like logits: pass output='logits'"),
        (np.abs(LOGITS), "probabilities", "row 0 of the batch sums to 4 .*pass output='logits'"),
        (PROBABILITIES * 1.002, "probabilities", "sums to 1.002 instead of 1"),
        (PROBABILITIES, "logits", "output='logits' was stated .* all rows are probabilities .*output='probabilities'"),
        (np.where(LOGITS == 3, np.nan, LOGITS), "logits", "answered nan for image 0 of the batch, class 1"),
        (np.where(LOGITS == 3, np.inf, LOGITS), "logits", "answered inf for image 0"),
        (np.full((2, 2), 1e300), "logits", "answered inf for image 0 of the batch, class 0"),
        (np.where(PROBABILITIES == 0.5, np.nan, PROBABILITIES), "probabilities", "answered nan for image 1"),
        (PROBABILITIES[:1], "probabilities", "answered 1 rows for 2 images"),
        (np.array([0, 1]), "probabilities", r"shape \[2\] for 2 images; it must give one score per class"),
        (LOGITS[:, :, None, None], "logits", r"shape \[2, 2, 1, 1\]"),
        (LOGITS[:, :1], "logits", r"answered 1 column per image; .* \[1 - p, p\]"),
        (LOGITS[:, :0], "logits", "answered 0 column"),
        (np.array([["a", "b"]] * 2), "logits", "it must give an array of numbers"),
        (None, "logits", "answered NoneType"),
    ],
)
def test_wrong_statements_are_caught(answers: object, output: Output, message: str) -> None:
    with pytest.raises(ClassifierError, match=message):
        checked(answers, output)


def test_the_number_of_classes_stays() -> None:
    with pytest.raises(ClassifierError, match="answered 2 classes, but has 3"):
        checked(PROBABILITIES, "probabilities", n_classes=3)


def test_rounding_below_zero_is_cut_off() -> None:
    answers = np.array([[-1e-8, 1.0], [0.0, 1.0]], dtype=np.float32)
    assert checked(answers, "probabilities").min() == 0


def test_one_row_that_sums_to_one_may_be_logits() -> None:
    check_answers(PROBABILITIES[:1], rows=1, output="logits", n_classes=None, name="m")
