"""The loops of the search, compiled; importing this loads numba, so it is imported where the search begins."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.estimators.compiled import compiled


@compiled
def weighted_auroc(confidence: Float64Array, right: Float64Array, wrong: Float64Array) -> float:
    """Chance that a right image is surer than a wrong one, a tie counting one half. float64 [N] three times

    Each image counts as right and as wrong with the given weights.
    """
    order = np.argsort(confidence)
    wrong_below, all_right, in_order = 0.0, 0.0, 0.0
    start = 0
    while start < len(order):
        value = confidence[order[start]]
        end, block_right, block_wrong = start, 0.0, 0.0
        while end < len(order) and confidence[order[end]] == value:
            block_right += right[order[end]]
            block_wrong += wrong[order[end]]
            end += 1
        in_order += block_right * (wrong_below + 0.5 * block_wrong)
        wrong_below += block_wrong
        all_right += block_right
        start = end
    return in_order / (wrong_below * all_right)


@compiled
def auroc_with_each(
    total: Float64Array,
    shares: Float64Array,
    candidates: IntArray,
    right: Float64Array,
    wrong: Float64Array,
    values: Float64Array,
) -> None:
    """Fill in the AUROC of `total` plus each candidate's shares. [N], [V, N], int64 [n], [N], [N] -> values [n]"""
    for place in range(len(candidates)):
        values[place] = weighted_auroc(total + shares[candidates[place]], right, wrong)
