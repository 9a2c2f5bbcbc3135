"""What the search makes large: a registered metric on images whose labels are shrunk, so that noise is not chosen."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError, SearchError
from secondlook.metrics import Measure, Ranking, known_metrics, measure
from secondlook.suggest import did_you_mean

LIKE_AUROC = ("auroc", "aorc_joint", "augrc", "eaurc_joint")
"""Metrics that rise or fall with AUROC while the errors stay the same; it is computed by a compiled loop."""
DRAWS = 8
"""Sets of labels drawn for any other metric."""


class Objective(Protocol):
    """Something to be made large, for any confidence that is a mean over views."""

    def with_each(self, total: Float64Array, shares: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        """Return the value with each candidate joined: (total + shares[candidate]) / views. [N], [V, N], [n] -> [n]"""


def objective_measure(text: str) -> Measure:
    """Read the metric to search by, or say which there are."""
    name = text.partition(":")[0]
    usable = [one.name for one in known_metrics() if one.name != "accuracy"]  # views do not change the answer
    if name not in usable:
        raise SearchError(f"unknown objective {text!r}; known: {', '.join(usable)}.{did_you_mean(name, usable)}")
    try:
        return measure(text)
    except MetricError as error:
        raise SearchError(f"objective {text!r} cannot be used: {error}") from None


def objective_of(metric: Measure, wrong: Float64Array, seed: int) -> Objective:
    """Return the objective for images that count as wrong by these weights, float64 [N] in [0, 1]."""
    return PairsInOrder(wrong) if metric.metric.name in LIKE_AUROC else DrawnLabels(metric, wrong, seed)


class PairsInOrder:
    """AUROC with every image counted partly as right and partly as wrong."""

    def __init__(self, wrong: Float64Array) -> None:
        self._wrong, self._right = np.ascontiguousarray(wrong), np.ascontiguousarray(1 - wrong)

    def with_each(self, total: Float64Array, shares: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        """Return the AUROC with each candidate joined; dividing by the views would not change it."""
        from secondlook.search.kernels import auroc_with_each

        values = np.empty(len(candidates))
        auroc_with_each(total, shares, candidates, self._right, self._wrong, values)
        return values


class DrawnLabels:
    """Any other metric, averaged over sets of labels drawn by the weights; the same draws for all candidates."""

    def __init__(self, metric: Measure, wrong: Float64Array, seed: int) -> None:
        self._metric = metric
        self._sign = 1 if metric.metric.better == "higher" else -1
        self._draws = _drawn(wrong, np.random.default_rng(seed))

    def with_each(self, total: Float64Array, shares: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        """Return the mean of the metric over the draws, negative where lower is better."""
        return np.array([self._mean((total + shares[one]) / views) for one in candidates])

    def _mean(self, confidence: Float64Array) -> float:
        ranked = _ranker(np.clip(confidence, 0.0, 1.0))
        return self._sign * float(np.mean([self._metric.of(ranked(wrong)) for wrong in self._draws]))


def _drawn(wrong: Float64Array, generator: np.random.Generator) -> list[BoolArray]:
    """Draw sets of labels; evenly spread thresholds for each image make the draws agree with the weights on average."""
    offsets = (generator.permuted(np.tile(np.arange(DRAWS), (len(wrong), 1)), axis=1) + generator.random()) / DRAWS
    draws = [wrong > offsets[:, draw] for draw in range(DRAWS)]
    # The surest error and the surest right answer are in every draw: some metrics have no meaning without either.
    for draw in draws:
        draw[np.argmax(wrong)], draw[np.argmin(wrong)] = True, False
    return draws


def _ranker(confidence: Float64Array) -> Callable[[BoolArray], Ranking]:
    """Sort once, and rank under any labels. [N] -> (bool [N] -> Ranking)"""
    order = np.argsort(-confidence, kind="stable")
    sure = confidence[order]
    ends = np.flatnonzero(np.append(sure[1:] != sure[:-1], True))
    return lambda wrong: Ranking(sure[ends], ends + 1, np.cumsum(wrong[order], dtype=np.int64)[ends])
