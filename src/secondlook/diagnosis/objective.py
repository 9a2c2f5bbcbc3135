"""What the search makes large: a metric on labeled images, less how far the confidence strays from the pool's."""

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DiagnosisError, MetricError
from secondlook.metrics import BoundMetric, auroc, known_metrics, parse_metric
from secondlook.registry import did_you_mean

LIKE_AUROC = ("auroc", "aorc_joint", "augrc", "eaurc_joint")
"""Metrics that rise or fall in proportion to AUROC while the errors stay the same; a compiled loop computes it."""
LEAST_GAIN = 0.003
"""Where the whole pool gains less than this, gains are measured against this."""


def objective_measure(text: str) -> BoundMetric:
    """Read the metric to search by, or say which there are."""
    name = text.partition(":")[0]
    usable = [one.name for one in known_metrics() if one.name != "accuracy"]  # views do not change the answer
    if name not in usable:
        raise DiagnosisError(f"unknown objective {text!r}; known: {', '.join(usable)}.{did_you_mean(name, usable)}")
    try:
        return parse_metric(text)
    except MetricError as error:
        raise DiagnosisError(f"objective {text!r} cannot be used: {error}") from None


class Objective:
    """A metric, shrunk towards the plain mean over all candidates.

    With M the mean over all candidates and x the image itself, the value of a confidence c is

        metric(c) / |metric(M) - metric(x)|  -  shrinkage * mean (c - M)^2 / mean (x - M)^2

    where a metric is taken negative if lower is better. Both parts change by one on the way from x to M. A metric on
    few errors is mostly noise; the mean over a pool is not.
    """

    def __init__(self, metric: BoundMetric, correct: BoolArray, shares: Float64Array, shrinkage: float) -> None:
        """Take what the predicted classes hold in all candidates, float64 [V, N], the identity first."""
        self._metric, self._correct, self._shares, self._shrinkage = metric, correct, shares, shrinkage
        self._sign = 1 if metric.metric.better == "higher" else -1
        self._anchor = shares.mean(axis=0)
        self._own_distance = max(float(np.sum((shares[0] - self._anchor) ** 2)), 1e-12)
        self._right_shares, self._wrong_shares = shares[:, correct], shares[:, ~correct]
        self._squares: Float64Array = np.einsum("vn,vn->v", shares, shares)
        self._gain = max(abs(self._metric_of(self._anchor) - self._metric_of(shares[0])), LEAST_GAIN)

    def with_each(self, total: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        """Return the value with each candidate joined: (total + shares[candidate]) / views. [N], int64 [n] -> [n]"""
        distances = self._distances(total, candidates, views)
        if np.isinf(self._shrinkage):
            return -distances
        return self._metrics(total, candidates, views) / self._gain - self._shrinkage * distances

    def _distances(self, total: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        """Expand the square, so that each candidate costs one product. [N], int64 [n] -> [n]"""
        without = total - views * self._anchor
        # Not a matrix product: its threads get into the way of those that search the folds.
        products = np.einsum("vn,n->v", self._shares, without)
        squares = without @ without + 2 * products + self._squares
        distances: Float64Array = squares[candidates] / (views**2 * self._own_distance)
        return distances

    def _metrics(self, total: Float64Array, candidates: IntArray, views: int) -> Float64Array:
        if self._metric.metric.name in LIKE_AUROC:
            return self._aurocs(total, candidates)
        return np.array([self._metric_of((total + self._shares[one]) / views) for one in candidates])

    def _metric_of(self, confidence: Float64Array) -> float:
        if self._metric.metric.name in LIKE_AUROC:
            return auroc(self._correct, confidence)
        in_range = np.clip(confidence, 0.0, 1.0)  # a mean of ones may round to more
        return self._sign * self._metric.metric(self._correct, in_range, *self._metric.arguments)

    def _aurocs(self, total: Float64Array, candidates: IntArray) -> Float64Array:
        from secondlook.diagnosis.kernels import auroc_with_each

        values = np.empty(len(candidates))
        right, wrong = total[self._correct], total[~self._correct]
        auroc_with_each(right, wrong, self._right_shares, self._wrong_shares, candidates, values)
        return values
