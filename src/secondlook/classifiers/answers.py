"""What a classifier answered, checked against what the user said it would answer."""

import numpy as np

from secondlook.arrays import Array, Float32Array, Output
from secondlook.errors import ClassifierError

ROW_SUM_TOLERANCE = 1e-3
"""Probabilities of half precision sum to 1 only within this."""

SUSPICIOUS_ROW_SUM = 1e-4
"""Logits whose every row lies in [0, 1] and sums to 1 within this are probabilities."""

ROUNDING = 1e-6
"""A negative probability no larger than this is rounding, and becomes 0."""


def check_answers(answers: object, *, rows: int, output: Output, n_classes: int | None, name: str) -> Float32Array:
    """Return the answers as float32 [rows, C], or say what is wrong with them and how to put it right."""
    scores = _one_row_per_image(answers, rows, name)
    _check_columns(scores, n_classes, name)
    with np.errstate(over="ignore"):
        scores = np.ascontiguousarray(scores, dtype=np.float32)
    _check_finite(scores, name)
    if output == "probabilities":
        return _checked_probabilities(scores, name)
    _check_logits(scores, name)
    return scores


def _one_row_per_image(answers: object, rows: int, name: str) -> Array:
    scores = np.asarray(answers)
    if scores.dtype.kind not in "fiu":
        raise ClassifierError(
            f"classifier {name!r} answered {type(answers).__name__} of dtype {scores.dtype}; "
            "it must give an array of numbers [images, classes]."
        )
    if scores.ndim != 2:
        raise ClassifierError(
            f"classifier {name!r} answered an array of shape {list(scores.shape)} for {rows} images; "
            "it must give one score per class, an array [images, classes], not labels or feature maps."
        )
    if len(scores) != rows:
        raise ClassifierError(
            f"classifier {name!r} answered {len(scores)} rows for {rows} images; "
            "it must give one row per image, in the order of the images."
        )
    return scores


def _check_columns(scores: Array, n_classes: int | None, name: str) -> None:
    if scores.shape[1] < 2:
        raise ClassifierError(
            f"classifier {name!r} answered {scores.shape[1]} column per image; "
            "it must give a column per class, so two for a yes-or-no question: [1 - p, p]."
        )
    if n_classes is not None and scores.shape[1] != n_classes:
        raise ClassifierError(
            f"classifier {name!r} answered {scores.shape[1]} classes, but has {n_classes}; "
            "every batch must give the same number of classes."
        )


def _check_finite(scores: Float32Array, name: str) -> None:
    finite = np.isfinite(scores)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ClassifierError(
            f"classifier {name!r} answered {scores[row, column]} for image {row} of the batch, class {column}; "
            "check its weights, its number format (float16 overflows above 65504) and the preprocessing."
        )


def _checked_probabilities(scores: Float32Array, name: str) -> Float32Array:
    """Return probabilities with rounding errors below 0 cut off. float32 [N, C] -> float32 [N, C]"""
    lowest = float(scores.min())
    if lowest < -ROUNDING:
        raise ClassifierError(
            f"output='probabilities' holds for classifier {name!r}, but it answered {lowest:.6g}; "
            "these look like logits: pass output='logits'."
        )
    sums = scores.sum(axis=1, dtype=np.float64)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > ROW_SUM_TOLERANCE:
        raise ClassifierError(
            f"output='probabilities' holds for classifier {name!r}, but row {worst} of the batch sums to "
            f"{sums[worst]:.6g} instead of 1; these look like logits: pass output='logits', or let each row sum to 1."
        )
    return np.maximum(scores, 0, out=scores if scores.flags.writeable else None) if lowest < 0 else scores


def _check_logits(scores: Float32Array, name: str) -> None:
    """One row may sum to 1 by chance; two or more that all do were made by a softmax."""
    if len(scores) < 2 or scores.min() < 0 or scores.max() > 1:
        return
    if (np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= SUSPICIOUS_ROW_SUM).all():
        raise ClassifierError(
            f"output='logits' was stated for classifier {name!r}, but all rows are probabilities "
            f"({len(scores)} rows in [0, 1] that sum to 1): pass output='probabilities'."
        )
