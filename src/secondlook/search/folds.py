"""Cross-fitting: each part of the images is judged by views that were chosen without it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.search.strategies import Choice

ChooseOn = Callable[[IntArray], Choice]
"""Images to choose on, int64 [n] -> what is chosen"""


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """What was chosen on all images, and the confidences of images that their views were not chosen on."""

    choice: Choice
    confidences: Float64Array
    """Row n holds the mean over the first n + 1 chosen views. float64 [budget, N]"""
    weighted: Float64Array | None
    """The weighted mean over all chosen views, where the strategy weights them. float64 [N]"""


def fold_of_each(correct: BoolArray, folds: int, seed: int) -> IntArray:
    """Deal the images out to folds at random, right and wrong ones apart. bool [N] -> int64 [N]"""
    generator = np.random.default_rng(seed)
    fold = np.empty(len(correct), dtype=np.int64)
    for kind in (True, False):
        members = generator.permutation(np.flatnonzero(correct == kind))
        fold[members] = np.arange(len(members)) % folds
    return fold


def cross_fit(shares: Float64Array, choose_on: ChooseOn, fold: IntArray, budget: int) -> CrossFitted:
    """Choose on all images and on all but each fold, and look at each fold with what was chosen without it. [V, N]"""
    parts = [np.flatnonzero(fold == number) for number in range(int(fold.max()) + 1)]
    everything = np.arange(len(fold))
    with ThreadPoolExecutor() as pool:  # the compiled loops run without the interpreter's lock
        choices = list(pool.map(choose_on, [everything, *(np.setdiff1d(everything, part) for part in parts)]))
    confidences = np.empty((budget, len(fold)))
    weighted = None if choices[0].weights is None else np.empty(len(fold))
    for choice, part in zip(choices[1:], parts, strict=True):
        held_out = shares[choice.places][:, part]
        confidences[:, part] = _running_means(held_out, budget)
        if weighted is not None and choice.weights is not None:
            weighted[part] = choice.weights @ held_out
    return CrossFitted(choices[0], confidences, weighted)


def _running_means(shares: Float64Array, budget: int) -> Float64Array:
    """Return the means over the first 1 .. budget views; where fewer were chosen, the last mean stays. [v, n]"""
    means = np.cumsum(shares, axis=0) / np.arange(1, len(shares) + 1)[:, None]
    filled: Float64Array = means[np.minimum(np.arange(budget), len(means) - 1)]
    return filled
