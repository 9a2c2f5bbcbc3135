"""The loops of the search, compiled; importing this loads numba, so it is imported where the search begins."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.estimators.compiled import compiled


@compiled
def count_below(ascending: Float64Array, value: float) -> int:
    """Return how many of the sorted values are below `value`, by bisection. float64 [n]"""
    first, left = 0, len(ascending)
    while left > 0:
        half = left // 2
        if ascending[first + half] < value:
            first += half + 1
            left -= half + 1
        else:
            left = half
    return first


@compiled
def auroc_of(confidence: Float64Array, right: IntArray, wrong: IntArray) -> float:
    """Chance that a right image is surer than a wrong one, a tie counting one half. [N], int64 [n], int64 [m]

    Errors are few: sorting them alone and finding each right image among them costs a fraction of sorting all.
    """
    errors = np.sort(confidence[wrong])
    twice_in_order = 0
    for image in right:
        place = count_below(errors, confidence[image])
        twice_in_order += 2 * place
        while place < len(errors) and errors[place] == confidence[image]:
            twice_in_order += 1
            place += 1
    return twice_in_order / (2 * len(right) * len(wrong))


@compiled
def auroc_with_each(
    total: Float64Array,
    shares: Float64Array,
    candidates: IntArray,
    right: IntArray,
    wrong: IntArray,
    values: Float64Array,
) -> None:
    """Fill in the AUROC of `total` plus each candidate's shares. [N], [V, N], int64 [n], places -> values [n]"""
    for place in range(len(candidates)):
        values[place] = auroc_of(total + shares[candidates[place]], right, wrong)
