"""Error detection: does a low confidence find the wrong predictions? AUROC, AUPR and their curves."""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array
from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, harmonic_sums, rank
from secondlook.metrics.registry import metric


@metric("accuracy", better="higher", summary="fraction of correct predictions")
def accuracy(ranking: Ranking) -> float:
    """Compute the fraction of correct predictions, whatever the confidence: n_correct / N."""
    return ranking.n_correct / ranking.n_images


@metric("auroc", better="higher", summary="probability that a correct prediction has a higher confidence than an error")
def auroc(ranking: Ranking) -> float:
    """Compute the area under the ROC curve of error detection; 0.5 for random confidences, 1 for a perfect order.

    The probability that a random correct prediction has a higher confidence than a random error, over all pairs of the
    two: (ordered pairs + tied pairs / 2) / (n_correct * n_errors). Pairs are counted in integers and divided once, so
    the value is exact. Raises `MetricError` if all predictions are correct or all are wrong.
    """
    ranking.check_outcomes("auroc")
    return _count_twice_ordered_pairs(ranking) / (2 * ranking.n_errors * ranking.n_correct)


@metric("aupr", better="higher", summary="average precision of error detection, in ascending order of confidence")
def aupr(ranking: Ranking, *, ties: Literal["expected", "threshold"] = "expected") -> float:
    """Compute the average precision with errors as positives, in ascending order of confidence.

    The mean over all errors of the precision at that error: errors found so far / images flagged so far. Raises
    `MetricError` if all predictions are correct.

    Parameters
    ----------
    correct, confidence
        bool [N] and float [N].
    ties
        'expected' is the expected value over random orders of equal confidences; 'threshold' flags equal confidences
        at once, as scikit-learn does. Without ties the two are equal.
    """
    ranking.check_outcomes("aupr", needs_correct=False)
    if ties not in ("expected", "threshold"):
        raise MetricError(f"aupr got ties={ties!r}, expected 'expected' or 'threshold'.")
    # Only ties with errors contribute. In ascending order of confidence, what is accepted last is flagged first.
    with_errors = np.flatnonzero(ranking.tie_errors)
    sizes, errors = ranking.tie_sizes[with_errors], ranking.tie_errors[with_errors]
    flagged_before = ranking.n_images - ranking.accepted[with_errors]
    found_before = ranking.n_errors - ranking.errors[with_errors]
    if ties == "threshold":
        precision = (found_before + errors) / (flagged_before + sizes)
        return float(np.sum(errors * precision) / ranking.n_errors)
    # The i-th of a tie is an error with probability j/m, and (i - 1)(j - 1)/(m - 1) others are expected before it.
    others = (errors - 1) / np.maximum(sizes - 1, 1)
    constant = found_before + 1 - others * (1 + flagged_before)
    contributions = errors / sizes * (others * sizes + constant * harmonic_sums(flagged_before, sizes))
    return float(np.sum(contributions) / ranking.n_errors)


@dataclass(frozen=True, eq=False)
class RocCurve:
    """ROC curve of error detection: one point that flags no image, then one per distinct confidence, ascending."""

    false_alarms: Float64Array
    """Fraction of the correct predictions that are flagged (false positive rate)."""
    errors_found: Float64Array
    """Fraction of the errors that are flagged (true positive rate)."""
    thresholds: Float64Array
    """Images with at most this confidence are flagged; -inf at the first point."""


def roc(correct: ArrayLike, confidence: ArrayLike) -> RocCurve:
    """Return the ROC curve of error detection. bool [N], float [N] -> T + 1 points for T distinct confidences"""
    ranking = rank(correct, confidence)
    ranking.check_outcomes("roc")
    errors = np.cumsum(np.concatenate(([0], ranking.tie_errors[::-1])))
    flagged = np.cumsum(np.concatenate(([0], ranking.tie_sizes[::-1])))
    thresholds = np.concatenate(([-np.inf], ranking.confidences[::-1]))
    return RocCurve((flagged - errors) / ranking.n_correct, errors / ranking.n_errors, thresholds)


@dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Precision and recall of error detection: one point per distinct confidence, ascending."""

    precision: Float64Array
    recall: Float64Array
    thresholds: Float64Array
    """Images with at most this confidence are flagged."""


def precision_recall(correct: ArrayLike, confidence: ArrayLike) -> PrecisionRecallCurve:
    """Return precision and recall of error detection. bool [N], float [N] -> T points for T distinct confidences"""
    ranking = rank(correct, confidence)
    ranking.check_outcomes("precision_recall", needs_correct=False)
    errors, flagged = np.cumsum(ranking.tie_errors[::-1]), np.cumsum(ranking.tie_sizes[::-1])
    return PrecisionRecallCurve(errors / flagged, errors / ranking.n_errors, ranking.confidences[::-1])


def _count_twice_ordered_pairs(ranking: Ranking) -> int:
    """Return twice the number of pairs in which the correct prediction is more confident than the error."""
    correct_in_tie = ranking.tie_sizes - ranking.tie_errors
    correct_above = ranking.accepted - ranking.errors - correct_in_tie
    return int(np.sum(ranking.tie_errors * (2 * correct_above + correct_in_tie)))
