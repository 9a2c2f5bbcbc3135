"""Calibration: can the confidence be read as the probability of a correct prediction?"""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, rank
from secondlook.metrics.registry import metric

PROBABILITY_EPSILON = float(np.finfo(np.float64).eps)
"""`nll` clips probabilities at this distance from 0 and 1: a fully confident error costs 36 nats, not infinity."""


def _ece(ranking: Ranking, *, bins: int = 15) -> float:
    curve = reliability_of_ranking(ranking, bins=bins)
    return float(np.sum(curve.images * np.abs(curve.accuracy - curve.confidence)) / ranking.n_images)


@metric(
    "ece", better="lower", ranked=_ece, reads="values", summary="expected calibration error, 15 bins of equal width"
)
def ece(correct: ArrayLike, confidence: ArrayLike, *, bins: int = 15) -> float:
    """Compute the expected calibration error: sum over bins of (images / N) * |accuracy - mean confidence|.

    The bins divide [0, 1] into equal widths. Raises `MetricError` if a confidence is outside [0, 1].
    """
    return _ece(rank(correct, confidence), bins=bins)


def _brier(ranking: Ranking) -> float:
    ranking.check_probabilities("brier")
    probability = ranking.confidences
    correct = ranking.tie_sizes - ranking.tie_errors
    return float(np.sum(correct * (probability - 1) ** 2 + ranking.tie_errors * probability**2) / ranking.n_images)


@metric(
    "brier", better="lower", ranked=_brier, reads="values", summary="mean squared difference of confidence and correct"
)
def brier(correct: ArrayLike, confidence: ArrayLike) -> float:
    """Compute the Brier score: mean of (confidence - correct)^2.

    Raises `MetricError` if a confidence is outside [0, 1].
    """
    return _brier(rank(correct, confidence))


def _nll(ranking: Ranking) -> float:
    ranking.check_probabilities("nll")
    probability = np.clip(ranking.confidences, PROBABILITY_EPSILON, 1 - PROBABILITY_EPSILON)
    correct = ranking.tie_sizes - ranking.tie_errors
    log_likelihood = np.sum(correct * np.log(probability) + ranking.tie_errors * np.log1p(-probability))
    return float(-log_likelihood / ranking.n_images)


@metric(
    "nll",
    better="lower",
    ranked=_nll,
    reads="values",
    bounds=(0.0, np.inf),
    summary="mean negative log-likelihood of correct given the confidence",
)
def nll(correct: ArrayLike, confidence: ArrayLike) -> float:
    """Compute the mean of -log(confidence) if correct and -log(1 - confidence) if wrong, in nats.

    Probabilities are clipped to [eps, 1 - eps] with the float64 eps = 2.2e-16. Raises `MetricError` if a confidence is
    outside [0, 1].
    """
    return _nll(rank(correct, confidence))


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Accuracy against confidence in bins of equal width; empty bins are omitted."""

    confidence: Float64Array
    """Mean confidence in the bin."""
    accuracy: Float64Array
    images: IntArray
    """Number of images in the bin."""


def reliability(correct: ArrayLike, confidence: ArrayLike, *, bins: int = 15) -> ReliabilityCurve:
    """Return accuracy against mean confidence in bins of equal width. bool [N], float [N] -> at most `bins` points"""
    return reliability_of_ranking(rank(correct, confidence), bins=bins)


def reliability_of_ranking(ranking: Ranking, *, bins: int = 15) -> ReliabilityCurve:
    """Return the `reliability` of ranked images. A bin includes its upper edge; the first also includes 0."""
    if bins < 1:
        raise MetricError(f"reliability got bins={bins}, expected at least 1.")
    ranking.check_probabilities("calibration")
    bin_of = np.searchsorted(np.arange(1, bins) / bins, ranking.confidences)
    images, errors = (np.bincount(bin_of, counts, bins) for counts in (ranking.tie_sizes, ranking.tie_errors))
    confidence_sums = np.bincount(bin_of, ranking.tie_sizes * ranking.confidences, bins)
    filled = images > 0
    accuracy = 1 - errors[filled] / images[filled]
    return ReliabilityCurve(confidence_sums[filled] / images[filled], accuracy, images[filled].astype(np.int64))
