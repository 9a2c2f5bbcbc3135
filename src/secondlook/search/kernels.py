"""The loops of the search, compiled; importing this loads numba, so it is imported where the search begins."""

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.estimators.compiled import compiled


@compiled
def auroc_of(confidence: Float64Array, wrong: BoolArray) -> float:
    """Chance that a right image is surer than a wrong one, a tie counting one half. float64 [N], bool [N]"""
    order = np.argsort(confidence)
    wrong_below, all_right, twice_in_order = 0, 0, 0
    start = 0
    while start < len(order):
        value = confidence[order[start]]
        end, block_wrong = start, 0
        while end < len(order) and confidence[order[end]] == value:
            block_wrong += wrong[order[end]]
            end += 1
        block_right = end - start - block_wrong
        twice_in_order += block_right * (2 * wrong_below + block_wrong)
        wrong_below += block_wrong
        all_right += block_right
        start = end
    return twice_in_order / (2 * wrong_below * all_right)


@compiled
def auroc_with_each(
    total: Float64Array, shares: Float64Array, candidates: IntArray, wrong: BoolArray, values: Float64Array
) -> None:
    """Fill in the AUROC of `total` plus each candidate's shares. [N], [V, N], int64 [n], bool [N] -> values [n]"""
    for place in range(len(candidates)):
        values[place] = auroc_of(total + shares[candidates[place]], wrong)
