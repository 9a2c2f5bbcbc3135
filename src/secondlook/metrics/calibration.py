"""Whether the confidence can be read as a probability of being right."""

import numpy as np

from secondlook.metrics.curves import reliability_of_ranking
from secondlook.metrics.ranking import Ranking
from secondlook.metrics.registry import metric

SMALLEST_CHANCE = float(np.finfo(np.float64).eps)
"""Where `nll` stops: a sure and wrong image costs 36 nats rather than infinitely many."""


@metric("ece", better="lower", reads="values", says="expected calibration error, 15 equal bins")
def ece(ranking: Ranking, *, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy over equal-width bins of the confidence."""
    curve = reliability_of_ranking(ranking, bins=bins)
    return float(np.sum(curve.images * np.abs(curve.accuracy - curve.confidence)) / ranking.n_images)


@metric("brier", better="lower", reads="values", says="mean squared distance of confidence and truth")
def brier(ranking: Ranking) -> float:
    """Mean of (confidence - 1)^2 over right images and confidence^2 over wrong ones."""
    ranking.need_probabilities("brier")
    chance = ranking.confidences
    right = ranking.block_sizes - ranking.block_errors
    return float(np.sum(right * (chance - 1) ** 2 + ranking.block_errors * chance**2) / ranking.n_images)


@metric("nll", better="lower", reads="values", bounds=(0.0, np.inf), says="mean negative log-likelihood of the truth")
def nll(ranking: Ranking) -> float:
    """Mean of -log(confidence) over right images and -log(1 - confidence) over wrong ones, cut at the float64 step."""
    ranking.need_probabilities("nll")
    chance = np.clip(ranking.confidences, SMALLEST_CHANCE, 1 - SMALLEST_CHANCE)
    right = ranking.block_sizes - ranking.block_errors
    return float(-np.sum(right * np.log(chance) + ranking.block_errors * np.log1p(-chance)) / ranking.n_images)
