"""Cross-fitting: each part of the images is judged by views that were chosen without it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.diagnosis.strategies import Choice


@dataclass(frozen=True, eq=False)
class Folds:
    """The images dealt out to folds."""

    fold: IntArray
    """The fold of each image. int64 [N]"""

    def __len__(self) -> int:
        return int(self.fold.max()) + 1

    @property
    def parts(self) -> list[IntArray]:
        """The images of each fold. int64 [n] each"""
        return [np.flatnonzero(self.fold == number) for number in range(len(self))]

    @property
    def others(self) -> list[IntArray]:
        """The images of all other folds. int64 [n] each"""
        return [np.flatnonzero(self.fold != number) for number in range(len(self))]


def deal_out(correct: BoolArray, folds: int, seed: int) -> Folds:
    """Deal the images out to folds at random, right and wrong ones apart. bool [N]"""
    generator = np.random.default_rng(seed)
    fold = np.empty(len(correct), dtype=np.int64)
    for kind in (True, False):
        members = generator.permutation(np.flatnonzero(correct == kind))
        fold[members] = np.arange(len(members)) % folds
    return Folds(fold)


def held_out_means(shares: Float64Array, folds: Folds, choices: Sequence[Choice], budget: int) -> Float64Array:
    """Return the mean over the first 1 .. budget views, each fold by what was chosen without it. [V, N] -> [budget, N]

    Where fewer views than the budget were chosen, the last mean stays.
    """
    means = np.empty((budget, len(folds.fold)))
    for part, choice in zip(folds.parts, choices, strict=True):
        looks = np.minimum(np.arange(budget), len(choice.places) - 1)
        running = np.cumsum(shares[choice.places][:, part], axis=0)
        means[:, part] = running[looks] / (looks + 1)[:, None]
    return means


def held_out_weighted(shares: Float64Array, folds: Folds, choices: Sequence[Choice]) -> Float64Array | None:
    """Return the weighted mean, each fold by what was chosen without it; None where views are not weighted. [N]"""
    means = np.empty(len(folds.fold))
    for part, choice in zip(folds.parts, choices, strict=True):
        if choice.weights is None:
            return None
        means[part] = choice.weights @ shares[choice.places][:, part]
    return means
