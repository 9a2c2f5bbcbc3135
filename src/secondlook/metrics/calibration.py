"""Calibration: can the confidence be read as the probability of a correct prediction? And how is it distributed?"""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, ReliabilityCurve, check_confidence, rank
from secondlook.metrics.registry import metric

PROBABILITY_EPSILON = float(np.finfo(np.float64).eps)
"""`nll` clips probabilities at this distance from 0 and 1: a fully confident error costs 36 nats, not infinity."""


@metric("ece", better="lower", reads="values", summary="expected calibration error, 15 bins of equal width")
def ece(ranking: Ranking, *, bins: int = 15) -> float:
    """Compute the expected calibration error: sum over bins of (images / N) * |accuracy - mean confidence|.

    The bins divide [0, 1] into equal widths. Raises `MetricError` if a confidence is outside [0, 1].
    """
    curve = ranking.reliability(bins)
    return float(np.sum(curve.images * np.abs(curve.accuracy - curve.confidence)) / ranking.n_images)


@metric("brier", better="lower", reads="values", summary="mean squared difference of confidence and correct")
def brier(ranking: Ranking) -> float:
    """Compute the Brier score: mean of (confidence - correct)^2.

    Raises `MetricError` if a confidence is outside [0, 1].
    """
    ranking.check_probabilities("brier")
    probability = ranking.confidences
    correct = ranking.tie_sizes - ranking.tie_errors
    return float(np.sum(correct * (probability - 1) ** 2 + ranking.tie_errors * probability**2) / ranking.n_images)


@metric(
    "nll",
    better="lower",
    reads="values",
    bounds=(0.0, np.inf),
    summary="mean negative log-likelihood of correct given the confidence",
)
def nll(ranking: Ranking) -> float:
    """Compute the mean of -log(confidence) if correct and -log(1 - confidence) if wrong, in nats.

    Probabilities are clipped to [eps, 1 - eps] with the float64 eps = 2.2e-16. Raises `MetricError` if a confidence is
    outside [0, 1].
    """
    ranking.check_probabilities("nll")
    probability = np.clip(ranking.confidences, PROBABILITY_EPSILON, 1 - PROBABILITY_EPSILON)
    correct = ranking.tie_sizes - ranking.tie_errors
    log_likelihood = np.sum(correct * np.log(probability) + ranking.tie_errors * np.log1p(-probability))
    return float(-log_likelihood / ranking.n_images)


def reliability(correct: ArrayLike, confidence: ArrayLike, *, bins: int = 15) -> ReliabilityCurve:
    """Return accuracy against mean confidence in bins of equal width. bool [N], float [N] -> at most `bins` points"""
    return rank(correct, confidence).reliability(bins)


@dataclass(frozen=True, eq=False)
class Histogram:
    """Number of correct and of wrong predictions per bin of the confidence. float64 [B + 1], int64 [B], int64 [B]"""

    edges: Float64Array
    correct: IntArray
    wrong: IntArray


def confidence_histogram(correct: ArrayLike, confidence: ArrayLike, *, bins: int = 40) -> Histogram:
    """Count predictions by confidence, over [0, 1] if all values lie in it. bool [N], float [N] -> B bins"""
    if bins < 1:
        raise MetricError(f"confidence_histogram got bins={bins}, expected at least 1.")
    is_correct, values = check_confidence(correct, confidence)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():
        raise MetricError("confidence_histogram got an infinite confidence, expected finite numbers.")
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    counts = (np.histogram(values[chosen], edges)[0].astype(np.int64) for chosen in (is_correct, ~is_correct))
    return Histogram(edges, *counts)
