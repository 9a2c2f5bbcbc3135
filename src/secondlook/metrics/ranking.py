"""`Ranking`: images sorted by confidence once, the common input of all metrics."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array, IntArray, as_array
from secondlook.errors import MetricError


@dataclass(frozen=True, eq=False)
class Ranking:
    """Images sorted by decreasing confidence, as T ties: sets of images with equal confidence, mostly of one image.

    The order within a tie is arbitrary, so a metric may only depend on the size and the number of errors of each tie.
    The same images in another order have the same ranking, bit for bit.
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
        return count_increments(self.accepted)

    @cached_property
    def tie_errors(self) -> IntArray:
        """Number of errors in each tie. int64 [T]"""
        return count_increments(self.errors)

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
        return _rank_two_ties(self.n_correct, 0, self.n_images, self.n_errors)

    def worst(self) -> "Ranking":
        """Return the worst ranking of the same images: all errors before all correct predictions."""
        return _rank_two_ties(self.n_errors, self.n_errors, self.n_images, self.n_errors)

    def expected_errors(self) -> Float64Array:
        """Return the number of errors among the n most confident images, n = 1 .. N, in expectation over ties. [N]"""
        sizes, errors = self.tie_sizes, self.tie_errors
        tie = np.repeat(np.arange(len(sizes)), sizes)
        position_in_tie = np.arange(1, self.n_images + 1) - (self.accepted - sizes)[tie]
        return (self.errors - errors)[tie] + position_in_tie * errors[tie] / sizes[tie]

    def check_both_outcomes(self, name: str) -> None:
        """Raise `MetricError` if all predictions are correct or all are wrong, where metric `name` is undefined."""
        if self.n_errors == 0 or self.n_correct == 0:
            outcome = "correct" if self.n_errors == 0 else "wrong"
            raise MetricError(
                f"{name} is undefined: all {self.n_images} predictions are {outcome}; "
                "expected at least one correct and one wrong prediction."
            )

    def check_any_error(self, name: str) -> None:
        """Raise `MetricError` if all predictions are correct, where metric `name` is undefined."""
        if self.n_errors == 0:
            raise MetricError(
                f"{name} is undefined: all {self.n_images} predictions are correct; expected at least one error."
            )

    def check_probabilities(self, name: str) -> None:
        """Raise `MetricError` if a confidence is outside [0, 1], which metric `name` requires."""
        for value in (self.confidences[0], self.confidences[-1]):
            if not 0 <= value <= 1:
                raise MetricError(
                    f"{name} got confidence {float(value)!r}, expected probabilities in [0, 1]; "
                    "use a method that returns probabilities, such as 'mean'."
                )


def rank(correct: ArrayLike, confidence: ArrayLike) -> Ranking:
    """Sort images by confidence. bool [N], float [N] -> Ranking

    Sorting values and counting errors by bisection takes less than half the time of one argsort.
    """
    is_correct, values = check_confidence(correct, confidence)
    ascending = np.sort(values)
    is_first = np.append(True, ascending[1:] != ascending[:-1])
    if is_first.all():
        # Without ties, the common case, two gathers are saved.
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
        raise MetricError(
            f"correct has shape {list(is_correct.shape)} and confidence {list(values.shape)}, expected [N] and [N]; "
            "pass one value per image in each."
        )
    if values.dtype.kind not in "fiu":
        raise MetricError(f"confidence has dtype {values.dtype}, expected real numbers; convert it to float64.")
    if len(is_correct) == 0:
        raise MetricError(
            "correct and confidence are empty, expected at least one image; check how they were selected."
        )
    values = values.astype(np.float64, copy=False)
    if np.isnan(np.min(values)):
        index = int(np.flatnonzero(np.isnan(values))[0])
        raise MetricError(f"confidence is NaN at index {index}, expected a number; fix or remove this image.")
    return is_correct, values


def count_increments(cumulative: IntArray) -> IntArray:
    """Return the increments of cumulative counts that start at 0. int64 [T]; faster than np.diff for few counts"""
    increments = cumulative.copy()
    increments[1:] -= cumulative[:-1]
    return increments


def _rank_two_ties(accepted: int, errors: int, n_images: int, n_errors: int) -> Ranking:
    """Return the ranking of a first tie and the rest; the order within a tie of one outcome does not matter."""
    ties = [(accepted, errors), (n_images, n_errors)] if 0 < accepted < n_images else [(n_images, n_errors)]
    counts = np.array(ties, dtype=np.int64)
    return Ranking(np.arange(len(ties), 0, -1, dtype=np.float64), counts[:, 0], counts[:, 1])


MAX_EXACT_TERM = 32
"""Terms of a harmonic sum up to this one are added one by one; beyond it the asymptotic series is exact in float64."""

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
    sums: Float64Array = 1.0 / (before + sizes)
    tied = np.flatnonzero(sizes > 1)
    if len(tied):
        sums[tied] = _sum_large_ties(before[tied], sizes[tied])
    return sums


def _sum_large_ties(before: IntArray, sizes: IntArray) -> Float64Array:
    start = np.maximum(before, MAX_EXACT_TERM)
    low, high = start + 0.5, np.maximum(before + sizes, MAX_EXACT_TERM) + 0.5
    sums: Float64Array = np.log1p((high - low) / low) + (_harmonic_remainder(high) - _harmonic_remainder(low))
    near = np.flatnonzero(before < MAX_EXACT_TERM)
    sums[near] += _EXACT_SUMS[before[near], np.minimum(before[near] + sizes[near], MAX_EXACT_TERM)]
    return sums


def _harmonic_remainder(x: Float64Array) -> Float64Array:
    """Return H(x - 1/2) - log(x) - Euler's constant, H being the harmonic numbers."""
    inverse = 1.0 / (x * x)
    return inverse * (1 / 24 - inverse * (7 / 960 - inverse * (31 / 8064)))
