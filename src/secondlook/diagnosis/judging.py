"""How much a found set gains on images it was not chosen on, and how sure that is."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.metrics import BoundMetric, Interval, SortedImages, image_resampling_counts, percentile_interval

LEVEL = 0.95
RESAMPLES = 200


@dataclass(frozen=True)
class Gain:
    """The found set compared with something else on the same images; a positive gain is better."""

    over: str
    value: float
    """The objective of what it is compared with."""
    gain: float
    interval: Interval | None
    """Of the gain, over resamplings of the images; None where too few resamplings have a value."""

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """'unclear' where the interval holds zero, or where there is none."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "unclear"
        return "better" if self.interval.low > 0 else "worse"


@dataclass(frozen=True)
class CurvePoint:
    """The objective with that many views beside the image itself, and the gain over the image alone."""

    views: int
    value: float
    gain: Gain


class Judge:
    """One objective on one set of images; every comparison sees the same resamplings of them."""

    def __init__(self, metric: BoundMetric, correct: BoolArray, seed: int) -> None:
        self._metric = metric
        self._correct = correct
        self._sign = 1 if metric.metric.better == "higher" else -1
        # An image is drawn a few times at most, so two bytes are plenty, and there are RESAMPLES x N of them.
        self._counts = [counts.astype(np.uint16) for counts in image_resampling_counts(len(correct), RESAMPLES, seed)]

    def value(self, confidence: Float64Array) -> float:
        """Return the objective. float64 [N]"""
        return self._metric.metric(self._correct, _in_range(confidence), *self._metric.arguments)

    def resampled(self, confidence: Float64Array) -> Float64Array:
        """Return the objective on each resampling, NaN where it has no meaning. float64 [N] -> [R]"""
        images = SortedImages(self._correct, _in_range(confidence))
        values = np.full(RESAMPLES, np.nan)
        for draw, counts in enumerate(self._counts):
            try:
                values[draw] = self._metric.of(images.ranking(counts.astype(np.int64)))
            except MetricError:  # a resampling without errors; the interval leaves it out, or there is none
                continue
        return values

    def gain(self, over: str, found: Float64Array, other: Float64Array) -> Gain:
        """Compare two confidences of the same images. float64 [N] each"""
        differences = self._sign * (self.resampled(found) - self.resampled(other))
        value = self.value(other)
        return Gain(over, value, self._sign * (self.value(found) - value), percentile_interval(differences, LEVEL))

    def first_as_good_as_the_best(self, confidences: Float64Array) -> int:
        """Return the first that is not worse than the best by more than one standard error. float64 [n, N] -> place"""
        values = self._sign * np.array([self.value(row) for row in confidences])
        best = int(np.argmax(values))
        of_best = self.resampled(confidences[best])
        for place, row in enumerate(confidences):
            error = np.nanstd(of_best - self.resampled(row))
            if values[best] - values[place] <= error:
                return place
        return best

    def curve(self, confidences: Float64Array) -> tuple[CurvePoint, ...]:
        """Return the curve over the number of views, the first being the image itself. float64 [n, N]"""
        gains = [self.gain("the image itself", row, confidences[0]) for row in confidences]
        return tuple(CurvePoint(n, self.value(confidences[n]), gain) for n, gain in enumerate(gains))


def _in_range(confidence: Float64Array) -> Float64Array:
    """Return the confidence in [0, 1]: a mean of ones, and weights that add up to 1, may round to more."""
    return np.clip(confidence, 0.0, 1.0)
