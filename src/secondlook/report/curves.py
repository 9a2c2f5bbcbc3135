"""The curves of a report: risk over coverage with its band, and reliability."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.metrics import Ranking, ReliabilityCurve, resample_metrics
from secondlook.progress import progress_bar
from secondlook.report.study import Study, is_probability

CURVE_POINTS = 1000
BAND_POINTS = 100
BAND_RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class RiskBand:
    """Risk among the n most confident images for some n, with its interval over resamplings of the images."""

    accepted: IntArray
    risk: Float64Array
    band_coverage: Float64Array
    low: Float64Array
    high: Float64Array


def risk_bands(study: Study, level: float) -> dict[str, RiskBand]:
    """Return the risk-coverage curve of each method, with bands at this confidence level."""
    accepted = spread_counts(study.n_images, CURVE_POINTS)
    coverage = spread_counts(study.n_images, BAND_POINTS) / study.n_images
    bands = _resample_bands(study, coverage, level)
    return {
        name: RiskBand(accepted, interpolate_risk(ranking, accepted), coverage, *bands[name])
        for name, ranking in study.rankings.items()
    }


def spread_counts(n_images: int, max_counts: int) -> IntArray:
    """Return at most this many numbers from 1 to N: half of them spaced evenly, half geometrically."""
    if n_images <= max_counts:
        return np.arange(1, n_images + 1)
    even, geometric = np.linspace(1, n_images, max_counts // 2), np.geomspace(1, n_images, max_counts // 2)
    return np.unique(np.rint(np.concatenate([even, geometric])).astype(np.int64))


def interpolate_risk(ranking: Ranking, accepted: IntArray | Float64Array) -> Float64Array:
    """Return the expected error rate among the n most confident images, ties in random order. [P] -> [P]"""
    errors = np.interp(accepted, np.append(0, ranking.accepted), np.append(0, ranking.errors))
    risk: Float64Array = errors / accepted
    return risk


def reliability_curve(study: Study, method: str) -> ReliabilityCurve | None:
    """Return accuracy against confidence, or None if the confidence is not a probability."""
    return study.rankings[method].reliability() if is_probability(method) else None


def _resample_bands(study: Study, coverage: Float64Array, level: float) -> dict[str, tuple[Float64Array, Float64Array]]:
    entries = {name: (study.correct, values) for name, values in study.confidences.items()}
    accepted = coverage * study.n_images
    with progress_bar("bands", BAND_RESAMPLES, "resamplings", enabled=study.progress) as advance:
        resampled = resample_metrics(
            entries, lambda _, ranking: interpolate_risk(ranking, accepted), BAND_RESAMPLES, study.seed, advance
        )
    ends = ((1 - level) / 2, (1 + level) / 2)
    return {name: tuple(np.quantile(values, ends, axis=0)) for name, values in resampled.items()}
