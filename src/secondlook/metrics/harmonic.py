"""Sums of 1/n over runs of numbers, to the last digits and without walking through each run."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray

WALKED = 32
"""Up to here terms are added one by one; beyond, the series for the rest is exact to the last digit."""

_WALKED_SUMS = np.array(
    [[sum(1.0 / n for n in range(before + 1, last + 1)) for last in range(WALKED + 1)] for before in range(WALKED)]
)
"""Sum of 1/n over n = before + 1 .. last. float64 [before, last]"""


def harmonic_sums(before: IntArray, sizes: IntArray) -> Float64Array:
    """Sum 1/n over n = before + 1 .. before + size, for each run. int64 [B], int64 [B] -> float64 [B]

    The difference of two harmonic numbers would lose as many digits as the run is short against where it begins.
    """
    sums: Float64Array = 1.0 / (before + sizes)
    tied = np.flatnonzero(sizes > 1)
    if len(tied):
        sums[tied] = _sums_of_long_runs(before[tied], sizes[tied])
    return sums


def _sums_of_long_runs(before: IntArray, sizes: IntArray) -> Float64Array:
    start = np.maximum(before, WALKED)
    low, high = start + 0.5, np.maximum(before + sizes, WALKED) + 0.5
    sums: Float64Array = np.log1p((high - low) / low) + (_rest(high) - _rest(low))
    near = np.flatnonzero(before < WALKED)
    sums[near] += _WALKED_SUMS[before[near], np.minimum(before[near] + sizes[near], WALKED)]
    return sums


def _rest(x: Float64Array) -> Float64Array:
    """Return what the harmonic number of x - 1/2 has beyond log(x) and Euler's constant."""
    inverse = 1.0 / (x * x)
    return inverse * (1 / 24 - inverse * (7 / 960 - inverse * (31 / 8064)))
