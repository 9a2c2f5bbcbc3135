"""What monitoring compares between images: the first look, and how much the looks disagree."""

from typing import NamedTuple

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.estimators.probability_mass import iter_member_blocks, top_class_mass
from secondlook.predictions import Predictions


class LookStatistics(NamedTuple):
    """The first look at each of N images, and how much all looks disagree."""

    first_look: Float64Array
    """Probability of the predicted class, or classes, after the first look: MSR(x). float64 [N]"""
    disagreement: Float64Array
    """0 if all outputs are equal, up to 1; NaN if there is only one output. float64 [N]

    It is the share of probability that an output gives to other classes than the mean over all outputs does (the total
    variation distance), averaged over the outputs: all views, and all members of an ensemble.
    """


def compute_look_statistics(preds: Predictions, top_k: int = 1) -> LookStatistics:
    """Compute the statistics of the looks at each image, in one pass over the predictions."""
    first_look, disagreement = np.empty(preds.n_images), np.full(preds.n_images, np.nan)
    for rows, blocks in iter_member_blocks(preds):
        first_look[rows] = top_class_mass(np.mean([block[:, 0] for block in blocks], axis=0), top_k)
        if preds.n_outputs > 1:
            outputs = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
            distances = np.abs(outputs - outputs.mean(axis=1, keepdims=True)).sum(axis=2) / 2
            disagreement[rows] = distances.mean(axis=1)
    return LookStatistics(first_look, disagreement)
