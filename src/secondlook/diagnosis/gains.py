"""Gains of chosen views on images they were not chosen on, with intervals over resamplings of these images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.metrics import BoundMetric, Interval, Ranking, percentile_interval, resample_metrics
from secondlook.tables import format_difference, format_difference_interval

LEVEL = 0.95
RESAMPLES = 200
THE_IMAGE = "the image alone"


@dataclass(frozen=True)
class Gain:
    """The found views compared with other views on the same images; a positive gain is better."""

    over: str
    value: float
    """Objective of the views compared with."""
    gain: float
    interval: Interval | None
    """Interval of the gain; None where the objective is undefined on too many resamplings of the images."""

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """'unclear' if the interval contains zero or is missing."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "unclear"
        return "better" if self.interval.low > 0 else "worse"


@dataclass(frozen=True)
class CurvePoint:
    """Objective with a number of views besides the image itself, and its gain over the image alone."""

    views: int
    value: float
    gain: Gain


@dataclass(frozen=True, eq=False)
class Performance:
    """Objective of one confidence, and its values on resamplings of the images, NaN where undefined. float64 [R]"""

    value: float
    resampled: Float64Array


def objective_sign(metric: BoundMetric) -> int:
    """Return 1 for a metric whose higher values are better, else -1."""
    return 1 if metric.metric.better == "higher" else -1


def compute_objective(metric: BoundMetric, correct: BoolArray, confidence: Float64Array) -> float:
    """Return the metric of a mean of probabilities, which may round to slightly more than 1. bool [N], float64 [N]"""
    return metric(correct, np.clip(confidence, 0.0, 1.0))


def measure_performances(
    metric: BoundMetric, correct: BoolArray, confidences: Sequence[Float64Array], seed: int
) -> list[Performance]:
    """Return the performance of each confidence, all on the same resamplings of the images. bool [N], float64 [N]"""
    entries = {str(index): (correct, np.clip(values, 0.0, 1.0)) for index, values in enumerate(confidences)}

    def metric_of(_: str, ranking: Ranking) -> list[float]:
        try:
            return [metric.compute(ranking)]
        except MetricError:  # a resampling without errors
            return [math.nan]

    resampled = resample_metrics(entries, metric_of, RESAMPLES, seed)
    return [
        Performance(compute_objective(metric, correct, values), resampled[str(index)][:, 0])
        for index, values in enumerate(confidences)
    ]


def compute_gain(metric: BoundMetric, found: Performance, other: Performance, over: str) -> Gain:
    """Compare two performances on the same images."""
    sign = objective_sign(metric)
    interval = percentile_interval(sign * (found.resampled - other.resampled), LEVEL)
    return Gain(over, other.value, sign * (found.value - other.value), interval)


def first_within_standard_error(metric: BoundMetric, performances: Sequence[Performance]) -> int:
    """Return the first position that is worse than the best one by at most one standard error of the difference."""
    values = objective_sign(metric) * np.array([one.value for one in performances])
    best = performances[int(np.argmax(values))]
    errors = [float(np.nanstd(best.resampled - one.resampled)) for one in performances]
    return int(np.argmax(values.max() - values <= np.nan_to_num(errors)))


def format_gain(gain: Gain) -> str:
    """Return the gain with its interval, or 'same'."""
    return f"{format_difference(gain.gain)} {format_gain_interval(gain)}".rstrip()


def format_gain_interval(gain: Gain) -> str:
    """Return the interval of the gain, or "" where it is missing or empty."""
    return "" if gain.interval is None else format_difference_interval(gain.interval.low, gain.interval.high)
