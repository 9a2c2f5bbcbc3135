"""The histogram of a confidence: how many correct and wrong predictions have which confidence."""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.metrics.ranking import check_confidence


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
