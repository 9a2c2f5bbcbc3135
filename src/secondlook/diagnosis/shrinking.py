"""How far to shrink: decided on images that the views were not chosen on, and in doubt more rather than less."""

import math
from collections.abc import Callable

import numpy as np

from secondlook.arrays import IntArray
from secondlook.diagnosis.folds import deal_out, held_out_means
from secondlook.diagnosis.judging import Judge
from secondlook.diagnosis.pool import Pool
from secondlook.diagnosis.strategies import Choice
from secondlook.metrics import BoundMetric

SHRINKAGES = (math.inf, 10.0, 0.0)
"""From the pool alone to the labels alone."""
FOLDS = 3

ChooseByEach = Callable[[IntArray], list[Choice]]
"""Images to choose on, int64 [n] -> what is chosen with each of the shrinkages"""


def best_shrinkage(pool: Pool, metric: BoundMetric, choose_by_each: ChooseByEach, budget: int, seed: int) -> float:
    """Return the largest shrinkage that is not worse than the best one by more than one standard error.

    With fewer than two errors or two right images nothing can be compared, and the pool alone is believed.
    """
    rarer = min(int(pool.correct.sum()), int((~pool.correct).sum()))
    if rarer < 2:
        return SHRINKAGES[0]
    folds = deal_out(pool.correct, min(FOLDS, rarer), seed)
    by_fold = [choose_by_each(images) for images in folds.others]
    by_shrinkage = zip(*by_fold, strict=True)
    found = np.stack([held_out_means(pool.shares, folds, choices, budget)[-1] for choices in by_shrinkage])
    return SHRINKAGES[Judge(metric, pool.correct, seed).first_as_good_as_the_best(found)]
