"""`Ranking`: images sorted by confidence, the common input of all metrics; and metrics of resampled images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array, IntArray, as_array
from secondlook.errors import MetricError
from secondlook.progress import Advance, ignore_progress

MIN_DEFINED = 0.9
"""Fraction of resamples with a defined metric that an interval requires; with one error, a third contain none."""


class ReliabilityCurve(NamedTuple):
    """Accuracy against mean confidence in bins of equal width, and the images in each; empty bins are omitted."""

    confidence: Float64Array
    accuracy: Float64Array
    images: IntArray


class RiskCurve(NamedTuple):
    """Risk against coverage, one point for each number of accepted images from 1 to N."""

    coverage: Float64Array
    risk: Float64Array


class Histogram(NamedTuple):
    """Number of correct and of wrong predictions per bin of the confidence. float64 [B + 1], int64 [B], int64 [B]"""

    edges: Float64Array
    correct: IntArray
    wrong: IntArray


@dataclass(frozen=True, eq=False)
class Ranking:
    """Images sorted by decreasing confidence, as T ties: groups of images with equal confidence, mostly of one image.

    The order within a tie is arbitrary, so a metric may depend only on the size and the number of errors of each tie.
    The order of the images does not change the ranking by a single bit.
    """

    confidences: Float64Array
    """Distinct confidences, decreasing. float64 [T]"""
    accepted: IntArray
    """Number of images with at least this confidence; the last is the number of images. int64 [T]"""
    errors: IntArray
    """Number of errors among them; the last is the number of errors. int64 [T]"""

    @property
    def n_images(self) -> int:
        """Number of images."""
        return int(self.accepted[-1])

    @property
    def n_errors(self) -> int:
        """Number of wrong predictions."""
        return int(self.errors[-1])

    @property
    def n_correct(self) -> int:
        """Number of correct predictions."""
        return self.n_images - self.n_errors

    @cached_property
    def tie_sizes(self) -> IntArray:
        """Number of images in each tie. int64 [T]"""
        return _count_increments(self.accepted)

    @cached_property
    def tie_errors(self) -> IntArray:
        """Number of errors in each tie. int64 [T]"""
        return _count_increments(self.errors)

    @cached_property
    def mean_selective_risk(self) -> float:
        """Mean over n of the error rate among the n most confident images, in expectation over the order of ties."""
        above = self.accepted - self.tie_sizes
        # Tie of m with j errors: sum of (E + i j/m) / (n + i) over i = 1..m is j + (E - n j/m) * sum of 1/(n + i).
        excess = self.errors - self.tie_errors - above * (self.tie_errors / self.tie_sizes)
        above_average = float(np.dot(excess, harmonic_sums(above, self.tie_sizes)))
        return (self.n_errors + above_average) / self.n_images

    def perfect(self) -> "Ranking":
        """Return the best ranking of the same images: all correct predictions before all errors."""
        return self._rank_two_ties(self.n_correct, 0)

    def worst(self) -> "Ranking":
        """Return the worst ranking of the same images: all errors before all correct predictions."""
        return self._rank_two_ties(self.n_errors, self.n_errors)

    def _rank_two_ties(self, accepted: int, errors: int) -> "Ranking":
        """Return the ranking of a first tie and the rest; the order within a tie of one outcome does not matter."""
        ties = [(self.n_images, self.n_errors)]
        if 0 < accepted < self.n_images:
            ties.insert(0, (accepted, errors))
        counts = np.array(ties, dtype=np.int64)
        return Ranking(np.arange(len(ties), 0, -1, dtype=np.float64), counts[:, 0], counts[:, 1])

    def count_for_coverage(self, coverage: float) -> int:
        """Return the smallest number of images that reaches a coverage, at least 1."""
        # Ignores rounding errors: 0.07 * 100 is 7.000000000000001.
        return max(1, min(self.n_images, int(np.ceil(coverage * self.n_images * (1 - 1e-12)))))

    def risk_coverage(self, *, joint: bool = False) -> RiskCurve:
        """Return selective, or joint, risk against coverage, in expectation over the order of ties. N points"""
        sizes, errors, accepted = self.tie_sizes, self.tie_errors, np.arange(1, self.n_images + 1)
        tie = np.repeat(np.arange(len(sizes)), sizes)
        position_in_tie = accepted - (self.accepted - sizes)[tie]
        expected = (self.errors - errors)[tie] + position_in_tie * errors[tie] / sizes[tie]
        return RiskCurve(accepted / self.n_images, expected / (self.n_images if joint else accepted))

    def histogram(self, bins: int = 40) -> Histogram:
        """Count predictions by confidence, over [0, 1] if all values lie in it."""
        _check_bins(bins)
        high, low = float(self.confidences[0]), float(self.confidences[-1])
        if not np.isfinite([low, high]).all():
            raise MetricError("a histogram needs finite confidences, but one is infinite.")
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        elif low == high:
            low, high = low - 0.5, high + 0.5
        edges = np.linspace(low, high, bins + 1)
        sizes, wrong = (
            np.histogram(self.confidences, edges, weights=counts)[0] for counts in (self.tie_sizes, self.tie_errors)
        )
        return Histogram(edges, sizes - wrong, wrong)

    def reliability(self, bins: int = 15) -> ReliabilityCurve:
        """Return accuracy against mean confidence. A bin includes its upper edge; the first also includes 0."""
        _check_bins(bins)
        self.check_probabilities("calibration")
        bin_of = np.searchsorted(np.arange(1, bins) / bins, self.confidences)
        images, errors = (np.bincount(bin_of, counts, bins) for counts in (self.tie_sizes, self.tie_errors))
        confidence_sums = np.bincount(bin_of, self.tie_sizes * self.confidences, bins)
        filled = images > 0
        accuracy = 1 - errors[filled] / images[filled]
        return ReliabilityCurve(confidence_sums[filled] / images[filled], accuracy, images[filled].astype(np.int64))

    def check_outcomes(self, name: str, *, needs_correct: bool = True) -> None:
        """Raise `MetricError` if no prediction is wrong, or none is correct although metric `name` needs one."""
        if self.n_errors == 0 or (needs_correct and self.n_correct == 0):
            outcome = "correct" if self.n_errors == 0 else "wrong"
            needed = "one correct and one wrong prediction" if needs_correct else "one error"
            fault = f"{name} is undefined: all {self.n_images} predictions are {outcome}"
            raise MetricError(f"{fault}; expected at least {needed}.")

    def check_probabilities(self, name: str) -> None:
        """Raise `MetricError` if a confidence is outside [0, 1], the range that metric `name` requires."""
        for value in (self.confidences[0], self.confidences[-1]):
            if not 0 <= value <= 1:
                fault = f"{name} got confidence {float(value)!r}, expected probabilities in [0, 1]"
                raise MetricError(fault, repair="use a method that returns probabilities, such as 'mean'")


def rank(correct: ArrayLike, confidence: ArrayLike) -> Ranking:
    """Sort images by confidence. bool [N], float [N] -> Ranking

    Sorting values and counting errors by bisection takes less than half the time of one argsort.
    """
    is_correct, values = check_confidence(correct, confidence)
    ascending = np.sort(values)
    is_first = np.append(True, ascending[1:] != ascending[:-1])
    if is_first.all():
        # The common case, without ties, saves two gathers.
        distinct, accepted = ascending, np.arange(1, len(ascending) + 1)
    else:
        first = np.flatnonzero(is_first)
        distinct, accepted = ascending[first], len(ascending) - first[::-1]
    tie_errors = np.bincount(np.searchsorted(distinct, np.sort(values[~is_correct])), minlength=len(distinct))
    return Ranking(distinct[::-1], accepted, np.cumsum(tie_errors[::-1]))


def check_confidence(correct: ArrayLike, confidence: ArrayLike) -> tuple[BoolArray, Float64Array]:
    """Return both as arrays bool [N] and float64 [N], or raise `MetricError`."""
    is_correct, values = as_array(correct, "correct", MetricError), as_array(confidence, "confidence", MetricError)
    if is_correct.dtype != np.bool_:
        raise MetricError(f"correct has dtype {is_correct.dtype}, expected bool; pass predicted == labels.")
    if is_correct.ndim != 1 or is_correct.shape != values.shape:
        shapes = f"correct has shape {list(is_correct.shape)} and confidence {list(values.shape)}"
        raise MetricError(f"{shapes}, expected [N] and [N]; pass one value per image in each.")
    if values.dtype.kind not in "fiu":
        raise MetricError(f"confidence has dtype {values.dtype}, expected real numbers; convert it to float64.")
    if len(is_correct) == 0:
        raise MetricError("correct and confidence are empty; pass at least one image.")
    values = values.astype(np.float64, copy=False)
    if np.isnan(np.min(values)):
        index = int(np.flatnonzero(np.isnan(values))[0])
        raise MetricError(f"confidence is NaN at index {index}, expected a number; fix or remove this image.")
    return is_correct, values


def _check_bins(bins: int) -> None:
    if bins < 1:
        raise MetricError("is out of range; expected at least 1", argument="bins", value=bins)


def _count_increments(cumulative: IntArray) -> IntArray:
    """Return the increments of cumulative counts that start at 0. int64 [T]; faster than np.diff for few counts"""
    increments = cumulative.copy()
    increments[1:] -= cumulative[:-1]
    return increments


MAX_EXACT_TERM = 32
"""Largest term of a harmonic sum that is added directly; beyond it the asymptotic series is exact in float64."""

_EXACT_SUMS = np.array(
    [
        [sum(1.0 / n for n in range(before + 1, last + 1)) for last in range(MAX_EXACT_TERM + 1)]
        for before in range(MAX_EXACT_TERM)
    ]
)
"""Sum of 1/n over n = before + 1 .. last. float64 [before, last]"""


def harmonic_sums(before: IntArray, sizes: IntArray) -> Float64Array:
    """Sum 1/n over n = before + 1 .. before + size, for each tie. int64 [T], int64 [T] -> float64 [T]

    The difference of two harmonic numbers would lose precision for small ties far down the ranking.
    """
    last = before + sizes
    sums: Float64Array = 1.0 / last
    tied = np.flatnonzero(sizes > 1)
    if len(tied):
        low, high = (np.maximum(ends[tied], MAX_EXACT_TERM) + 0.5 for ends in (before, last))
        sums[tied] = np.log1p((high - low) / low) + (_harmonic_remainder(high) - _harmonic_remainder(low))
        near = tied[before[tied] < MAX_EXACT_TERM]
        sums[near] += _EXACT_SUMS[before[near], np.minimum(last[near], MAX_EXACT_TERM)]
    return sums


def _harmonic_remainder(x: Float64Array) -> Float64Array:
    """Return H(x - 1/2) - log(x) - Euler's constant, H being the harmonic numbers."""
    inverse = 1.0 / (x * x)
    return inverse * (1 / 24 - inverse * (7 / 960 - inverse * (31 / 8064)))


@dataclass(frozen=True)
class Interval:
    """Percentile interval over resamples of the images."""

    low: float
    high: float

    @classmethod
    def from_resamples(cls, values: Float64Array, level: float) -> Self | None:
        """Return the central interval of the resampled values, or None if too few are defined (not NaN). [R]"""
        defined = values[~np.isnan(values)]
        if len(defined) == 0 or len(defined) < MIN_DEFINED * len(values):
            return None
        low, high = np.quantile(defined, ((1 - level) / 2, (1 + level) / 2))
        return cls(float(low), float(high))


def resample_metrics(
    confidences: Mapping[str, tuple[BoolArray, Float64Array]],
    compute: Callable[[str, Ranking], Sequence[float] | Float64Array],
    resamples: int,
    seed: int,
    advance: Advance = ignore_progress,
) -> dict[str, Float64Array]:
    """Return `compute(name, ranking)` for each name on each resample of the images. float64 [R, M] each

    `confidences` are `correct` (bool [N]) and `confidence` (float64 [N]) by name, of the same N images. N images are
    drawn with replacement; all names share the same resamples, so that their differences are paired.
    """
    rank_counts = {name: _sort_images(*pair) for name, pair in confidences.items()}
    values: dict[str, list[Sequence[float] | Float64Array]] = {name: [] for name in confidences}
    n_images = len(next(iter(confidences.values()))[0])
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        counts = np.bincount(rng.integers(n_images, size=n_images), minlength=n_images)
        for name, rank_drawn in rank_counts.items():
            values[name].append(compute(name, rank_drawn(counts)))
        advance(1)
    return {name: np.array(rows, dtype=np.float64) for name, rows in values.items()}


def _sort_images(correct: BoolArray, confidence: Float64Array) -> Callable[[IntArray], Ranking]:
    """Sort images once; return a function from the count of each image to their ranking. int64 [N] -> Ranking"""
    order = np.argsort(-confidence, kind="stable")
    descending, is_error = confidence[order], ~correct[order]
    tie_ends = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))
    distinct = descending[tie_ends]

    def rank_drawn(counts: IntArray) -> Ranking:
        sorted_counts = counts[order]
        accepted = np.cumsum(sorted_counts)[tie_ends]
        errors = np.cumsum(sorted_counts * is_error)[tie_ends]
        drawn = _count_increments(accepted) > 0
        return Ranking(distinct[drawn], accepted[drawn], errors[drawn])

    return rank_drawn
