"""Curves as plain arrays, for plots and for numbers read off them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, rank

Order = Literal["given", "perfect", "worst"]


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """Risk over coverage, one point for each number of accepted images from 1 to N."""

    coverage: Float64Array
    risk: Float64Array


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Finding errors from the least sure image up; one point before the first and one after each block."""

    false_alarms: Float64Array
    """Right images flagged, over all right images."""
    errors_found: Float64Array
    """Wrong images flagged, over all wrong images."""
    thresholds: Float64Array
    """Images with at most this confidence are flagged; the first point flags none (-inf)."""


@dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Finding errors from the least sure image up; one point after each block."""

    precision: Float64Array
    recall: Float64Array
    thresholds: Float64Array


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Confidence against accuracy in equal-width bins; empty bins are left out."""

    confidence: Float64Array
    """Mean confidence in the bin."""
    accuracy: Float64Array
    images: IntArray


def risk_coverage(correct: ArrayLike, confidence: ArrayLike, *, order: Order = "given") -> RiskCurve:
    """Draw selective risk: errors among the accepted over the accepted. bool [N], float [N] -> N points"""
    ranking = _in_order(rank(correct, confidence), order)
    accepted = np.arange(1, ranking.n_images + 1)
    return RiskCurve(accepted / ranking.n_images, ranking.expected_errors() / accepted)


def joint_risk_coverage(correct: ArrayLike, confidence: ArrayLike, *, order: Order = "given") -> RiskCurve:
    """Draw joint risk: errors among the accepted over all images. bool [N], float [N] -> N points"""
    ranking = _in_order(rank(correct, confidence), order)
    accepted = np.arange(1, ranking.n_images + 1)
    return RiskCurve(accepted / ranking.n_images, ranking.expected_errors() / ranking.n_images)


def roc(correct: ArrayLike, confidence: ArrayLike) -> RocCurve:
    """ROC of error detection. bool [N], float [N] -> B + 1 points"""
    ranking = rank(correct, confidence)
    ranking.need_right_and_wrong("roc")
    errors = np.cumsum(np.concatenate(([0], ranking.block_errors[::-1])))
    flagged = np.cumsum(np.concatenate(([0], ranking.block_sizes[::-1])))
    thresholds = np.concatenate(([-np.inf], ranking.confidences[::-1]))
    return RocCurve((flagged - errors) / ranking.n_correct, errors / ranking.n_errors, thresholds)


def precision_recall(correct: ArrayLike, confidence: ArrayLike) -> PrecisionRecallCurve:
    """Precision and recall of error detection. bool [N], float [N] -> B points"""
    ranking = rank(correct, confidence)
    if ranking.n_errors == 0:
        raise MetricError("precision_recall has no meaning without errors: none of the images is wrong.")
    errors, flagged = np.cumsum(ranking.block_errors[::-1]), np.cumsum(ranking.block_sizes[::-1])
    return PrecisionRecallCurve(errors / flagged, errors / ranking.n_errors, ranking.confidences[::-1])


def reliability(correct: ArrayLike, confidence: ArrayLike, *, bins: int = 15) -> ReliabilityCurve:
    """Accuracy against mean confidence in equal-width bins. bool [N], float [N] -> at most `bins` points"""
    return reliability_of_ranking(rank(correct, confidence), bins=bins)


def reliability_of_ranking(ranking: Ranking, *, bins: int = 15) -> ReliabilityCurve:
    """`reliability` of ranked images. A bin holds its upper edge and not its lower one; 0 is in the first."""
    if bins < 1:
        raise MetricError(f"reliability got bins={bins}, expected at least 1.")
    ranking.need_probabilities("calibration")
    bin_of = np.searchsorted(np.arange(1, bins) / bins, ranking.confidences)
    images, errors = (np.bincount(bin_of, part, bins) for part in (ranking.block_sizes, ranking.block_errors))
    summed = np.bincount(bin_of, ranking.block_sizes * ranking.confidences, bins)
    held = images > 0
    accuracy = 1 - errors[held] / images[held]
    return ReliabilityCurve(summed[held] / images[held], accuracy, images[held].astype(np.int64))


def _in_order(ranking: Ranking, order: Order) -> Ranking:
    if order not in ("given", "perfect", "worst"):
        raise MetricError(f"unknown order {order!r} of a risk curve, expected 'given', 'perfect' or 'worst'.")
    return {"given": lambda: ranking, "perfect": ranking.perfect, "worst": ranking.worst}[order]()
