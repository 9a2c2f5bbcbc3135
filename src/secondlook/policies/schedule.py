"""Schedules: in which order to look at the views of an image, and when to stop because the decision is clear."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from secondlook.arrays import BoolArray, Float64Array, IntArray, sigmoid
from secondlook.errors import ConfidenceError, DecisionError
from secondlook.estimators import compile_method
from secondlook.files import FrozenRecord, PositiveCount
from secondlook.tables import TextTable, format_html, format_image_share, format_value


class FrontierPoint(FrozenRecord):
    """What a margin costs and gives on the tuning images."""

    margin: float = Field(ge=0)
    looks: float = Field(ge=1)
    """Mean number of looks."""
    differing: float = Field(ge=0, le=1)
    """Fraction of images whose decision differs from that with all looks."""


class Looks(NamedTuple):
    """How often each image is looked at, and its confidence when looking stops."""

    looks: IntArray
    """Number of looks, int64 [N]."""
    confidence: Float64Array
    """Estimate of the confidence with all looks, float64 [N]; accepted if, and only if, it reaches the threshold."""


class Schedule(FrozenRecord):
    """The order of looks, and the limits at which looking stops; `fit_schedule` makes one.

    After each look the confidence with all looks is estimated from the views so far. Looking stops when the estimate is
    further from the threshold than `margin` standard deviations of its error. All of it is in log-odds, so that the
    limits move with the threshold: an image that is accepted at some threshold is accepted at every lower one.
    """

    views: tuple[str, ...] = Field(min_length=1)
    """The views in the order of looks, the image itself first."""
    method: str
    changes: tuple[float, ...]
    """Mean change of the log-odds from 1, 2, ... looks to all of them."""
    spreads: tuple[float, ...]
    """Standard deviation of this change."""
    margin: float = Field(ge=0)
    """Distance from the threshold at which looking stops, in standard deviations."""
    tolerance: float = Field(gt=0, lt=1)
    """Fraction of differing decisions that the margin was chosen for."""
    full_looks: PositiveCount
    """Number of looks of the decision that this one stands in for."""
    images: PositiveCount
    """Number of images that the schedule was fitted to."""
    threshold: float
    """The threshold that the margin was chosen at."""
    frontier: tuple[FrontierPoint, ...] = ()

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not len(self.views) == len(self.changes) == len(self.spreads) <= self.full_looks:
            raise ValueError(
                f"expected one change and one spread for each view, and at most {self.full_looks} views, got "
                f"{len(self.changes)} changes and {len(self.spreads)} spreads for {len(self.views)} views"
            )
        if len(set(self.views)) < len(self.views):
            raise ValueError(f"expected different views, got {list(self.views)}")
        if any(spread < 0 for spread in self.spreads):
            raise ValueError(f"expected spreads of at least 0, got {list(self.spreads)}")
        return self

    @property
    def max_looks(self) -> int:
        """The largest number of looks."""
        return len(self.views)

    def estimate(self, looks: int, running: Float64Array) -> Float64Array:
        """Estimate the confidence with all looks from that after some looks. float64 [n] -> [n]"""
        # On the same side of the threshold as both ends, also in the last bit.
        estimate: Float64Array = np.clip(_shift(running, self.changes[looks - 1]), *self._bound(looks, running))
        return estimate

    def is_open(self, looks: int | IntArray, running: Float64Array, threshold: float) -> BoolArray:
        """Return whether images need another look, given their confidence after some looks. float64 [n] -> bool [n]

        `looks` is the same number for all images, or one for each, int64 [n].
        """
        low, high = self._bound(looks, running)
        return (low < threshold) & (high >= threshold) & (looks < self.max_looks)

    def limits(self, threshold: float) -> tuple[Float64Array, Float64Array]:
        """Return the estimates after each look below which an image is rejected, and from which on it is accepted.

        float64 [L] each. Both are the threshold after the last look.
        """
        at = np.full(self.max_looks, threshold)
        return _shift(at, -self.widths), _shift(at, self.widths)

    def confidence(self, running: Float64Array) -> Float64Array:
        """Return the largest threshold at which each image is accepted, given its confidence after each look.

        float64 [N, L or more] -> [N]. A threshold on it makes the same decisions as looking with this threshold, so it
        is what a threshold is certified on.
        """
        confidence: Float64Array = self._accepting_thresholds(running).max(axis=1)
        return confidence

    def find_accepting_looks(self, running: Float64Array) -> BoolArray:
        """Return after which numbers of looks an image is accepted at some threshold. float64 [N, L] -> bool [N, L]"""
        thresholds = self._accepting_thresholds(running)
        before = np.maximum.accumulate(thresholds, axis=1)[:, :-1]
        return np.concatenate([np.ones((len(thresholds), 1), dtype=np.bool_), thresholds[:, 1:] > before], axis=1)

    def look(self, running: Float64Array, threshold: float) -> Looks:
        """Return where looking stops at a threshold, given the confidence after each look. float64 [N, L or more]"""
        running = self._check_running(running)
        looks = np.full(len(running), self.max_looks, dtype=np.int64)
        for count in range(self.max_looks - 1, 0, -1):
            looks[~self.is_open(count, running[:, count - 1], threshold)] = count
        confidence = np.empty(len(running))
        for count in np.unique(looks):
            stopped = looks == count
            confidence[stopped] = self.estimate(int(count), running[stopped, count - 1])
        return Looks(looks, confidence)

    def count_mean_looks(self, running: Float64Array, thresholds: Float64Array) -> float:
        """Return the mean number of looks over images and ascending thresholds. float64 [N, L or more], [T]"""
        lows, highs = (bounds[:, :-1] for bounds in self._bound_all(running))
        # After l looks an image is open at the thresholds above all its lows so far, and not above any of its highs.
        first = np.searchsorted(thresholds, np.maximum.accumulate(lows, axis=1), side="right")
        last = np.searchsorted(thresholds, np.minimum.accumulate(highs, axis=1), side="right")
        return 1 + float(np.maximum(last - first, 0).sum()) / (len(running) * len(thresholds))

    def _accepting_thresholds(self, running: Float64Array) -> Float64Array:
        """Return the largest threshold at which each image is accepted after each number of looks. [N, L]

        It must be accepted there, and not be rejected by an earlier look.
        """
        thresholds, highs = self._bound_all(running)
        thresholds[:, 1:] = np.minimum(thresholds[:, 1:], np.minimum.accumulate(highs, axis=1)[:, :-1])
        return thresholds

    def _bound(self, looks: int | IntArray, running: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the estimate less and plus the margin; both are the estimate after the last look. [n] each"""
        change, width = np.array(self.changes)[looks - 1], self.widths[looks - 1]
        return _shift(running, change - width), _shift(running, change + width)

    def _bound_all(self, running: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return `_bound` after each look. [N, L or more] -> [N, L] each"""
        running, changes = self._check_running(running), np.array(self.changes)
        return _shift(running, changes - self.widths), _shift(running, changes + self.widths)

    @property
    def widths(self) -> Float64Array:
        """The margin in log-odds after each look, 0 after the last. [L]"""
        return np.array([*(self.margin * spread for spread in self.spreads[:-1]), 0.0])

    def _check_running(self, running: Float64Array) -> Float64Array:
        if running.ndim != 2 or running.shape[1] < self.max_looks:
            raise DecisionError(
                f"the running confidence has shape {list(running.shape)}, expected [images, {self.max_looks} or more "
                "looks]; compute it with running_confidence from the views of the schedule."
            )
        return running[:, : self.max_looks]

    def make_table(self, threshold: float) -> TextTable:
        """Return the limits of the estimate at a threshold: one row per look."""
        lower, upper = self.limits(threshold)
        rows = [["look", "view", "reject below", "accept from"]]
        for count, view in enumerate(self.views, start=1):
            cells = [format_value(float(value)) for value in (lower[count - 1], upper[count - 1])]
            rows.append([str(count), view, *cells])
        return TextTable(rows)

    def describe_fit(self) -> str:
        """Return what the schedule was fitted to, and what it costs and gives there."""
        text = (
            f"at most {self.max_looks} of {self.full_looks} looks; margin {self.margin:g}, fitted to {self.images:,} "
            f"images for a tolerance of {100 * self.tolerance:g} %"
        )
        at_margin = [point for point in self.frontier if point.margin == self.margin]
        if not at_margin:
            return text
        differing = format_image_share(at_margin[0].differing, self.images)
        return f"{text}: {at_margin[0].looks:.2f} looks on average, {differing} of their decisions differ"

    def __str__(self) -> str:
        return f"{self.describe_fit()}\n{self.make_table(self.threshold)}"

    def _repr_html_(self) -> str:
        return format_html([self.describe_fit(), self.make_table(self.threshold)])


def check_adaptive_method(method: str, options: Mapping[str, object]) -> None:
    """Raise `DecisionError` unless the method can be computed look by look."""
    try:
        compile_method(method, options).check_running()
    except ConfidenceError as error:
        raise DecisionError(f"adaptive looking is not possible: {error}") from None


def compute_log_odds(confidence: Float64Array) -> Float64Array:
    """Return log(c / (1 - c)); infinite for 0 and 1. Same shape"""
    with np.errstate(divide="ignore"):
        odds: Float64Array = np.log(confidence) - np.log1p(-confidence)
    return odds


def _shift(confidence: Float64Array, change: float | Float64Array) -> Float64Array:
    """Add `change` to the log-odds of confidences: one for all, for each column or for each. Same shape"""
    # Without a change exactly: there and back again, the last bit may differ.
    return np.where(np.equal(change, 0), confidence, sigmoid(compute_log_odds(confidence) + change))
