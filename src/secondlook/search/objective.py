"""What the search makes large: a metric on labelled images, less how far the confidence strays from the pool's."""

from collections.abc import Callable

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError, SearchError
from secondlook.metrics import Measure, known_metrics, measure
from secondlook.suggest import did_you_mean

LIKE_AUROC = ("auroc", "aorc_joint", "augrc", "eaurc_joint")
"""Metrics that rise or fall in proportion to AUROC while the errors stay the same; a compiled loop computes it."""
LEAST_GAIN = 0.003
"""Where the whole pool gains less than this, gains are measured against this."""

MetricWithEach = Callable[[Float64Array, Float64Array, IntArray, int], Float64Array]


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


class Objective:
    """A metric, shrunk towards the plain mean over all candidates.

    With M the mean over all candidates, x the image itself and E the number of errors, the value of a confidence c is

        (metric(c) - metric(x)) / |metric(M) - metric(x)|  -  shrinkage / E * mean (c - M)^2 / mean (x - M)^2

    up to a constant: both parts go from one end to the other on the way from x to M. A metric on few errors is mostly
    noise; the mean over a pool is not, and 1 / E is how the noise falls.
    """

    def __init__(self, metric: Measure, correct: BoolArray, shares: Float64Array, shrinkage: float) -> None:
        """Take the shares of all candidates, [V, N], the identity first."""
        self._metric_with_each = _metric_with_each(metric, correct)
        self._anchor = shares.mean(axis=0)
        self._own_distance = max(float(np.mean((shares[0] - self._anchor) ** 2)), 1e-12)
        ends = self._metric_with_each(np.zeros(len(correct)), np.stack([shares[0], self._anchor]), np.arange(2), 1)
        self._gain = max(abs(float(ends[1] - ends[0])), LEAST_GAIN)
        self._pull = shrinkage / int((~correct).sum())

    def with_each(self, total: Float64Array, shares: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        """Return the value with each candidate joined: (total + shares[candidate]) / views. [N], [V, N], [n] -> [n]"""
        strayed = (total + shares[candidates]) / views - self._anchor
        distances: Float64Array = np.einsum("vn,vn->v", strayed, strayed) / (strayed.shape[1] * self._own_distance)
        if np.isinf(self._pull):
            return -distances
        values = self._metric_with_each(total, shares, candidates, views)
        return values / self._gain - self._pull * distances


def _metric_with_each(metric: Measure, correct: BoolArray) -> MetricWithEach:
    """Return the metric as a function of a sum and what may join it; higher is better."""
    if metric.metric.name in LIKE_AUROC:
        return _auroc_with_each(~correct)
    sign = 1 if metric.metric.better == "higher" else -1

    def with_each(total: Float64Array, shares: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        means = (np.clip((total + shares[one]) / views, 0.0, 1.0) for one in candidates)
        return np.array([sign * metric.metric(correct, mean, *metric.arguments) for mean in means])

    return with_each


def _auroc_with_each(wrong: BoolArray) -> MetricWithEach:
    from secondlook.search.kernels import auroc_with_each

    def with_each(total: Float64Array, shares: Float64Array, candidates: IntArray, _views: int) -> Float64Array:
        values = np.empty(len(candidates))
        auroc_with_each(total, shares, candidates, wrong, values)
        return values

    return with_each
