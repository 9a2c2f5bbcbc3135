"""The loops of the search, compiled; importing this loads numba, so it is imported where the search begins."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.estimators.compiled import compiled


@compiled
def count_below(ascending: Float64Array, value: float) -> int:
    """Return how many of the sorted values are below `value`, at least one of them given. float64 [n]

    Bisection without a branch: which way it goes cannot be foreseen, and a wrong guess costs more than the step.
    """
    first, left = 0, len(ascending)
    while left > 1:
        half = left >> 1
        first += half * int(ascending[first + half - 1] < value)
        left -= half
    return first + int(ascending[first] < value)


@compiled
def auroc_of(right: Float64Array, wrong: Float64Array) -> float:
    """Chance that a right image is surer than a wrong one, a tie counting one half. float64 [n], float64 [m]

    Errors are few: sorting them alone and finding each right image among them costs a fraction of sorting all.
    """
    errors = np.sort(wrong)
    twice_in_order = 0
    for confidence in right:
        place = count_below(errors, confidence)
        twice_in_order += 2 * place
        while place < len(errors) and errors[place] == confidence:
            twice_in_order += 1
            place += 1
    return twice_in_order / (2 * len(right) * len(wrong))


@compiled
def auroc_with_each(
    right: Float64Array,
    wrong: Float64Array,
    right_shares: Float64Array,
    wrong_shares: Float64Array,
    candidates: IntArray,
    values: Float64Array,
) -> None:
    """Fill in the AUROC of sums plus each candidate's shares. [n], [m], [V, n], [V, m], int64 [c] -> values [c]"""
    for place in range(len(candidates)):
        candidate = candidates[place]
        values[place] = auroc_of(right + right_shares[candidate], wrong + wrong_shares[candidate])
