"""The state every metric shares: images sorted by confidence once, as blocks of equal confidence."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.metrics.harmonic import harmonic_sums


@dataclass(frozen=True, eq=False)
class Ranking:
    """Images from the surest down, as B blocks of equal confidence.

    Within a block the order is unknown, so all that can matter is how many images and how many errors it holds. Two
    data sets that differ only in the order of their images have the same ranking, to the last bit.
    """

    confidences: Float64Array
    """The distinct confidences, falling. float64 [B]"""
    accepted: IntArray
    """How many images are at least that sure. int64 [B], rising, ends with the number of images."""
    errors: IntArray
    """How many of those are wrong. int64 [B], ends with the number of errors."""

    @property
    def n_images(self) -> int:
        """Number of images."""
        return int(self.accepted[-1])

    @property
    def n_errors(self) -> int:
        """Number of wrong images."""
        return int(self.errors[-1])

    @property
    def n_correct(self) -> int:
        """Number of right images."""
        return self.n_images - self.n_errors

    @cached_property
    def block_sizes(self) -> IntArray:
        """Images in each block. int64 [B]"""
        return steps(self.accepted)

    @cached_property
    def block_errors(self) -> IntArray:
        """Errors in each block. int64 [B]"""
        return steps(self.errors)

    @cached_property
    def mean_selective_risk(self) -> float:
        """Mean over n of the error rate among the n surest images, expected over random orders within blocks."""
        above = self.accepted - self.block_sizes
        # Block of m with j errors: sum of (E + i j/m) / (n + i) over i = 1..m is j + (E - n j/m) * sum of 1/(n + i).
        excess = self.errors - self.block_errors - above * (self.block_errors / self.block_sizes)
        above_average = float(np.dot(excess, harmonic_sums(above, self.block_sizes)))
        return (self.n_errors + above_average) / self.n_images

    def perfect(self) -> "Ranking":
        """Return the best ranking of the same images: every right one before every wrong one."""
        return _two_blocks(self.n_correct, 0, self.n_images, self.n_errors)

    def worst(self) -> "Ranking":
        """Return the worst ranking of the same images: every wrong one before every right one."""
        return _two_blocks(self.n_errors, self.n_errors, self.n_images, self.n_errors)

    def expected_errors(self) -> Float64Array:
        """Count the errors among the n surest images, n = 1 .. N, expected over random orders within blocks. [N]"""
        sizes, errors = self.block_sizes, self.block_errors
        block = np.repeat(np.arange(len(sizes)), sizes)
        into_block = np.arange(1, self.n_images + 1) - (self.accepted - sizes)[block]
        return (self.errors - errors)[block] + into_block * errors[block] / sizes[block]

    def need_right_and_wrong(self, name: str) -> None:
        """Say that `name` has no meaning where all images are right or all are wrong."""
        if self.n_errors == 0 or self.n_correct == 0:
            kind = "wrong" if self.n_errors == 0 else "right"
            raise MetricError(f"{name} has no meaning for these {self.n_images} images: none of them is {kind}.")

    def need_probabilities(self, name: str) -> None:
        """Say that `name` has no meaning where a confidence is no probability."""
        for value in (self.confidences[0], self.confidences[-1]):
            if not 0 <= value <= 1:
                raise MetricError(
                    f"{name} got confidence {float(value)!r}, expected probabilities in [0, 1]: "
                    "choose a method that gives probabilities, such as 'mean'."
                )


def steps(counts: IntArray) -> IntArray:
    """Return by how much running counts grow from 0 on, int64 [B]; np.diff does so too, but slowly for a few blocks."""
    grown = counts.copy()
    grown[1:] -= counts[:-1]
    return grown


def _two_blocks(accepted: int, errors: int, n_images: int, n_errors: int) -> Ranking:
    """Make the ranking of a first block and the rest; a block of one kind only is the same in any order."""
    blocks = [(accepted, errors), (n_images, n_errors)] if 0 < accepted < n_images else [(n_images, n_errors)]
    counts = np.array(blocks, dtype=np.int64)
    return Ranking(np.arange(len(blocks), 0, -1, dtype=np.float64), counts[:, 0], counts[:, 1])


def rank(correct: ArrayLike, confidence: ArrayLike) -> Ranking:
    """Sort images by confidence into blocks of equal confidence. bool [N], float [N] -> Ranking

    Sorting values and counting errors by bisection costs less than half of one argsort and needs no gather.
    """
    right, sure = check_confidence(correct, confidence)
    ascending = np.sort(sure)
    is_first = np.append(True, ascending[1:] != ascending[:-1])
    if is_first.all():
        # Without ties, the usual case, two gathers are saved.
        distinct, accepted = ascending, np.arange(1, len(ascending) + 1)
    else:
        first = np.flatnonzero(is_first)
        distinct, accepted = ascending[first], len(ascending) - first[::-1]
    errors_in_block = np.bincount(np.searchsorted(distinct, np.sort(sure[~right])), minlength=len(distinct))
    return Ranking(distinct[::-1], accepted, np.cumsum(errors_in_block[::-1]))


def check_confidence(correct: ArrayLike, confidence: ArrayLike) -> tuple[BoolArray, Float64Array]:
    """Return both as arrays, or say what is wrong with them. bool [N], float64 [N]"""
    right, sure = np.asarray(correct), np.asarray(confidence)
    if right.dtype != np.bool_:
        raise MetricError(
            f"correct has dtype {right.dtype}, expected bool: one truth value per image, such as predicted == labels."
        )
    if right.ndim != 1 or right.shape != sure.shape:
        raise MetricError(
            f"correct has shape {right.shape} and confidence {sure.shape}, expected one value per image in each: "
            "[N] and [N]."
        )
    if not np.issubdtype(sure.dtype, np.floating) and not np.issubdtype(sure.dtype, np.integer):
        raise MetricError(f"confidence has dtype {sure.dtype}, expected real numbers: convert it to float64.")
    if len(right) == 0:
        raise MetricError("correct and confidence are empty, expected at least one image: check the selection.")
    sure = sure.astype(np.float64, copy=False)
    if np.isnan(np.min(sure)):
        index = int(np.flatnonzero(np.isnan(sure))[0])
        raise MetricError(f"confidence is NaN at index {index}, expected a number: repair the score or leave it out.")
    return right, sure
