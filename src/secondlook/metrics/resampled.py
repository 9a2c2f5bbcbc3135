"""Bootstrap over images without sorting again: a resampling only changes how often each image counts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.metrics import Ranking
from secondlook.metrics.ranking import steps
from secondlook.progress import Advance, unwatched

Entries = Mapping[str, tuple[BoolArray, Float64Array]]
"""By name: which images are right, and how sure each answer is. bool [N], float64 [N], the same images in each"""


class SortedImages:
    """Images sorted by confidence once, to be ranked again under any counts."""

    def __init__(self, correct: BoolArray, confidence: Float64Array) -> None:
        self._order = np.argsort(-confidence, kind="stable")
        sure = confidence[self._order]
        self._is_wrong = ~correct[self._order]
        is_last = np.append(sure[1:] != sure[:-1], True)
        self._block_ends = np.flatnonzero(is_last)
        self._confidences = sure[self._block_ends]

    def ranking(self, counts: IntArray) -> Ranking:
        """Rank the images, each taken as often as it is counted; blocks that nothing is left of disappear. int64 [N]"""
        taken = counts[self._order]
        accepted = np.cumsum(taken)[self._block_ends]
        errors = np.cumsum(taken * self._is_wrong)[self._block_ends]
        kept = steps(accepted) > 0
        return Ranking(self._confidences[kept], accepted[kept], errors[kept])


def resample_metrics(
    entries: Entries,
    values_of: Callable[[str, Ranking], Sequence[float] | Float64Array],
    resamples: int,
    seed: int,
    advance: Advance = unwatched,
) -> dict[str, Float64Array]:
    """Return what `values_of` gives for each entry on each resampling; all see the same ones. float64 [R, M] each"""
    images = {name: SortedImages(*entry) for name, entry in entries.items()}
    drawn: dict[str, list[Sequence[float] | Float64Array]] = {name: [] for name in entries}
    n_images = len(next(iter(entries.values()))[0])
    for counts in image_resampling_counts(n_images, resamples, seed):
        for name, sorted_images in images.items():
            drawn[name].append(values_of(name, sorted_images.ranking(counts)))
        advance(1)
    return {name: np.array(rows, dtype=np.float64) for name, rows in drawn.items()}


def image_resampling_counts(n_images: int, resamples: int, seed: int) -> Iterator[IntArray]:
    """Yield how often each image is drawn when N are drawn with replacement. int64 [N] each"""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(n_images, size=n_images), minlength=n_images)


ENOUGH_DEFINED = 0.9
"""An interval is given where at least this share of the resamplings has a value: with one error, a third has none."""


@dataclass(frozen=True)
class Interval:
    """Percentile interval over resamplings of the images."""

    low: float
    high: float


def percentile_interval(values: Float64Array, level: float) -> Interval | None:
    """Return the central interval of the defined values, or None where too few are. float64 [R], NaN undefined"""
    defined = values[~np.isnan(values)]
    if len(defined) == 0 or len(defined) < ENOUGH_DEFINED * len(values):
        return None
    low, high = np.quantile(defined, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(low), float(high))
