"""Confidence intervals of metrics by bootstrapping the images.

Images are sorted only once: a resampling changes how often each image counts, not the order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.metrics.ranking import Ranking, count_increments
from secondlook.progress import Advance, ignore_progress

NamedConfidences = Mapping[str, tuple[BoolArray, Float64Array]]
"""`correct` (bool [N]) and `confidence` (float64 [N]) by name, of the same N images."""

MIN_DEFINED = 0.9
"""Fraction of resamplings with a defined metric that an interval requires; with one error, a third have none."""


@dataclass(frozen=True)
class Interval:
    """Percentile interval over resamplings of the images."""

    low: float
    high: float


class SortedImages:
    """Images sorted by confidence, to be ranked under the counts of any resampling."""

    def __init__(self, correct: BoolArray, confidence: Float64Array) -> None:
        self._order = np.argsort(-confidence, kind="stable")
        descending = confidence[self._order]
        self._is_error = ~correct[self._order]
        is_last = np.append(descending[1:] != descending[:-1], True)
        self._tie_ends = np.flatnonzero(is_last)
        self._confidences = descending[self._tie_ends]

    def ranking(self, counts: IntArray) -> Ranking:
        """Return the ranking in which each image occurs as often as it is counted. int64 [N]"""
        sorted_counts = counts[self._order]
        accepted = np.cumsum(sorted_counts)[self._tie_ends]
        errors = np.cumsum(sorted_counts * self._is_error)[self._tie_ends]
        drawn = count_increments(accepted) > 0
        return Ranking(self._confidences[drawn], accepted[drawn], errors[drawn])


def resample_metrics(
    confidences: NamedConfidences,
    compute: Callable[[str, Ranking], Sequence[float] | Float64Array],
    resamples: int,
    seed: int,
    advance: Advance = ignore_progress,
) -> dict[str, Float64Array]:
    """Return `compute(name, ranking)` for each name on each resampling. float64 [R, M] each

    All names share the same resamplings, so that their differences are paired.
    """
    images = {name: SortedImages(*pair) for name, pair in confidences.items()}
    values: dict[str, list[Sequence[float] | Float64Array]] = {name: [] for name in confidences}
    n_images = len(next(iter(confidences.values()))[0])
    for counts in image_resampling_counts(n_images, resamples, seed):
        for name, sorted_images in images.items():
            values[name].append(compute(name, sorted_images.ranking(counts)))
        advance(1)
    return {name: np.array(rows, dtype=np.float64) for name, rows in values.items()}


def image_resampling_counts(n_images: int, resamples: int, seed: int) -> Iterator[IntArray]:
    """Yield how often each image is drawn when N are drawn with replacement. int64 [N] each"""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(n_images, size=n_images), minlength=n_images)


def percentile_interval(values: Float64Array, level: float) -> Interval | None:
    """Return the central interval of the values on all resamplings, or None if too few are defined (not NaN). [R]"""
    defined = values[~np.isnan(values)]
    if len(defined) == 0 or len(defined) < MIN_DEFINED * len(values):
        return None
    low, high = np.quantile(defined, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(low), float(high))
