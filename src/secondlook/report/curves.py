"""The drawn curves: risk over coverage with its band, and confidence as histograms and as reliability."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.metrics import Ranking, ReliabilityCurve, reliability_of_ranking, resample_metrics
from secondlook.progress import progress_bar
from secondlook.report.study import Study, is_probability

POINTS_OF_A_CURVE = 1000
POINTS_OF_A_BAND = 100
RESAMPLINGS = 200
BINS = 40


@dataclass(frozen=True, eq=False)
class DrawnCurve:
    """Risk among the n surest images for some n, and the interval of it over resamplings of the images."""

    accepted: IntArray
    risk: Float64Array
    band_coverage: Float64Array
    low: Float64Array
    high: Float64Array


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many right and wrong answers have a confidence in each bin. float64 [B + 1], int64 [B], int64 [B]"""

    edges: Float64Array
    right: IntArray
    wrong: IntArray


def drawn_curves(study: Study, level: float) -> dict[str, DrawnCurve]:
    """Return the curve of each method."""
    accepted = spread_counts(study.n_images, POINTS_OF_A_CURVE)
    shares = spread_counts(study.n_images, POINTS_OF_A_BAND) / study.n_images
    bands = _bands(study, shares, level)
    return {
        name: DrawnCurve(accepted, risk_among(ranking, accepted), shares, *bands[name])
        for name, ranking in study.rankings.items()
    }


def spread_counts(n_images: int, most: int) -> IntArray:
    """Return numbers of accepted images from 1 to N, at most so many: half of them even, half dense at the start."""
    if n_images <= most:
        return np.arange(1, n_images + 1)
    even, dense = np.linspace(1, n_images, most // 2), np.geomspace(1, n_images, most // 2)
    return np.unique(np.rint(np.concatenate([even, dense])).astype(np.int64))


def risk_among(ranking: Ranking, accepted: IntArray | Float64Array) -> Float64Array:
    """Return the error rate among the n surest images, expected over the order of equal confidences. [P] -> [P]"""
    errors = np.interp(accepted, np.append(0, ranking.accepted), np.append(0, ranking.errors))
    risk: Float64Array = errors / accepted
    return risk


def histogram_of(study: Study, method: str) -> Histogram:
    """Count right and wrong answers by confidence, over [0, 1] where all lie in it."""
    sure = study.confidences[method]
    low, high = float(sure.min()), float(sure.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    right, wrong = (np.histogram(sure[chosen], edges)[0] for chosen in (study.correct, ~study.correct))
    return Histogram(edges, right.astype(np.int64), wrong.astype(np.int64))


def reliability_by(study: Study, method: str) -> ReliabilityCurve | None:
    """Return accuracy against confidence, or None where the confidence is no probability."""
    return reliability_of_ranking(study.rankings[method]) if is_probability(method) else None


def _bands(study: Study, shares: Float64Array, level: float) -> dict[str, tuple[Float64Array, Float64Array]]:
    entries = {name: (study.correct, values) for name, values in study.confidences.items()}
    accepted = shares * study.n_images
    with progress_bar("bands", RESAMPLINGS, "resamplings", enabled=study.progress) as advance:
        drawn = resample_metrics(
            entries, lambda _, ranking: risk_among(ranking, accepted), RESAMPLINGS, study.seed, advance
        )
    ends = ((1 - level) / 2, (1 + level) / 2)
    return {name: tuple(np.quantile(values, ends, axis=0)) for name, values in drawn.items()}
