"""Schedules: the order of looks at the views of an image, the rule for stopping, and how both are fitted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_number, is_whole_number, sigmoid
from secondlook.errors import ANY, ConfidenceError, DecisionError, Repair
from secondlook.estimators import compile_method
from secondlook.files import FrozenRecord, PositiveCount
from secondlook.predictions import Predictions
from secondlook.tables import TextTable, format_html, format_image_share, format_value

if TYPE_CHECKING:
    from secondlook.policies.policy import Policy

MIN_IMAGES = 100
MAX_LOG_ODDS = 37.0
"""Log-odds of the largest confidence below 1."""

MARGINS = np.arange(0, 8.05, 0.05).round(2)
"""The margins to try, in standard deviations; the first means one look at every image."""
FRONTIER_MARGINS = (*np.arange(0, 4.25, 0.25).tolist(), 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
"""The margins of a frontier; with the largest, nearly every image has all looks."""

NEARBY = 0.05
"""The margin is chosen at thresholds with at most this fraction of images between them and the given threshold."""
MAX_THRESHOLDS = 21


class FrontierPoint(FrozenRecord):
    """Looks and differing decisions for one margin on the tuning images."""

    margin: float = Field(ge=0)
    looks: float = Field(ge=1)
    """Mean number of looks."""
    differing: float = Field(ge=0, le=1)
    """Fraction of images whose decision differs from that with all looks."""


class Schedule(FrozenRecord):
    """The order of looks, and the limits at which looking stops; made by `fit_schedule`.

    After each look, the confidence with all looks is estimated from the views so far. Looking stops when the distance
    of the estimate from the threshold exceeds `margin` standard deviations of its error. Everything is in log-odds, so
    the limits move with the threshold: an image that is accepted at some threshold is accepted at every lower one.
    """

    DEFAULT_TOLERANCE: ClassVar[float] = 0.0075
    """Fraction of decisions that may differ from those with all looks; docs/results.md has the costs and benefits."""

    views: tuple[str, ...] = Field(min_length=1)
    """The views in the order of looks, the image itself first."""
    method: str
    changes: tuple[float, ...]
    """Mean change of the log-odds from 1, 2, ... looks to all looks."""
    spreads: tuple[float, ...]
    """Standard deviation of this change."""
    margin: float = Field(ge=0)
    """Distance from the threshold at which looking stops, in standard deviations."""
    tolerance: float = Field(gt=0, lt=1)
    """Fraction of differing decisions for which the margin was chosen."""
    full_looks: PositiveCount
    """Number of looks of the full decision."""
    images: PositiveCount
    """Number of images for fitting."""
    threshold: float
    """The threshold for choosing the margin."""
    frontier: tuple[FrontierPoint, ...] = ()

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not len(self.views) == len(self.changes) == len(self.spreads) <= self.full_looks:
            raise ValueError(f"expected a change and a spread for each view, and at most {self.full_looks} views")
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
        """Estimate the confidence with all looks from the confidence after some looks. float64 [n] -> [n]"""
        # Clip, so that rounding cannot move the estimate across the threshold.
        estimate: Float64Array = np.clip(_shift(running, self.changes[looks - 1]), *self._bound(looks, running))
        return estimate

    def is_open(self, looks: int | IntArray, running: Float64Array, threshold: float) -> BoolArray:
        """Return whether images need another look after `looks`, a number or int64 [n]. float64 [n] -> bool [n]"""
        low, high = self._bound(looks, running)
        return (low < threshold) & (high >= threshold) & (looks < self.max_looks)

    def limits(self, threshold: float) -> tuple[Float64Array, Float64Array]:
        """Return for each look the estimate below which an image is rejected, and from which it is accepted. [L]"""
        at = np.full(self.max_looks, threshold)
        return _shift(at, -self.widths), _shift(at, self.widths)

    def confidence(self, running: Float64Array) -> Float64Array:
        """Return the largest threshold at which each image is accepted, from its confidence after each look.

        float64 [N, L or more] -> [N]. Comparing this value with a threshold gives the same decisions as looking with
        that threshold, so thresholds are certified on it.
        """
        confidence: Float64Array = self._accepting_thresholds(running).max(axis=1)
        return confidence

    def find_accepting_looks(self, running: Float64Array) -> BoolArray:
        """Return the looks after which an image is accepted at some threshold. float64 [N, L] -> bool [N, L]"""
        thresholds = self._accepting_thresholds(running)
        before = np.maximum.accumulate(thresholds, axis=1)[:, :-1]
        return np.concatenate([np.ones((len(thresholds), 1), dtype=np.bool_), thresholds[:, 1:] > before], axis=1)

    def look(
        self, running: Float64Array, threshold: float, is_familiar: BoolArray | None = None
    ) -> tuple[IntArray, Float64Array]:
        """Return the number of looks at a threshold, int64 [N], from the confidence after each look, [N, L or more].

        Also return the final estimate of the confidence, float64 [N]; it is compared with the threshold.
        Unfamiliar images, bool [N], get a single look, since they are rejected.
        """
        lows, highs = self._bound_all(running)
        is_open = (lows < threshold) & (highs >= threshold)
        is_open[:, -1] = False
        if is_familiar is not None:
            is_open &= is_familiar[:, None]
        looks = is_open.argmin(axis=1) + 1
        confidence = np.empty(len(running))
        for count in np.unique(looks):
            stopped = looks == count
            confidence[stopped] = self.estimate(int(count), running[stopped, count - 1])
        return looks, confidence

    def count_mean_looks(self, running: Float64Array, thresholds: Float64Array) -> float:
        """Return the mean number of looks over images and ascending thresholds. float64 [N, L or more], [T]"""
        lows, highs = (bounds[:, :-1] for bounds in self._bound_all(running))
        # After l looks, an image is open at thresholds above all its lows so far, and not above any of its highs.
        first = np.searchsorted(thresholds, np.maximum.accumulate(lows, axis=1), side="right")
        last = np.searchsorted(thresholds, np.minimum.accumulate(highs, axis=1), side="right")
        return 1 + float(np.maximum(last - first, 0).sum()) / (len(running) * len(thresholds))

    def _accepting_thresholds(self, running: Float64Array) -> Float64Array:
        """Return the largest threshold that accepts each image after each look without rejecting it before. [N, L]"""
        thresholds, highs = self._bound_all(running)
        thresholds[:, 1:] = np.minimum(thresholds[:, 1:], np.minimum.accumulate(highs, axis=1)[:, :-1])
        return thresholds

    def _bound(self, looks: int | IntArray, running: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the estimate minus and plus the margin; both equal the estimate after the last look. Same shape"""
        change, width = np.array(self.changes)[looks - 1], self.widths[looks - 1]
        low, high = _shift(running, change - width), _shift(running, change + width)
        return np.minimum(low, high), high  # if one is exact, the last bit of the other may differ

    def _bound_all(self, running: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return `_bound` for each look. [N, L or more] -> [N, L] each"""
        if running.ndim != 2 or running.shape[1] < self.max_looks:
            fault = f"the running confidence has shape {list(running.shape)}, expected at least {self.max_looks} looks"
            raise DecisionError(fault, repair="compute it from the views of the schedule")
        return self._bound(np.arange(1, self.max_looks + 1), running[:, : self.max_looks])

    @property
    def widths(self) -> Float64Array:
        """The margin in log-odds after each look, 0 after the last. [L]"""
        return np.array([*(self.margin * spread for spread in self.spreads[:-1]), 0.0])

    def make_table(self, threshold: float) -> TextTable:
        """Return the limits of the estimate at a threshold: one row per look."""
        lower, upper = self.limits(threshold)
        numbers = (str(count) for count in range(1, self.max_looks + 1))
        columns = (numbers, self.views, map(format_value, lower.tolist()), map(format_value, upper.tolist()))
        return TextTable([("look", "view", "reject below", "accept from"), *zip(*columns, strict=True)])

    def describe_fit(self) -> str:
        """Describe the fit of the schedule and its results on the tuning images."""
        fit = f"fitted to {self.images:,} images for a tolerance of {100 * self.tolerance:g} %"
        text = f"at most {self.max_looks} of {self.full_looks} looks; margin {self.margin:g}, {fit}"
        for point in self.frontier:
            if point.margin == self.margin:
                differing = format_image_share(point.differing, self.images)
                return f"{text}: {point.looks:.2f} looks on average, {differing} of their decisions differ"
        return text

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


def _compute_log_odds(confidence: Float64Array) -> Float64Array:
    """Return log(c / (1 - c)); infinite for 0 and 1. Same shape"""
    with np.errstate(divide="ignore"):
        odds: Float64Array = np.log(confidence) - np.log1p(-confidence)
    return odds


def _compute_finite_log_odds(confidence: Float64Array) -> Float64Array:
    return np.clip(_compute_log_odds(confidence), -MAX_LOG_ODDS, MAX_LOG_ODDS)


def _shift(confidence: Float64Array, change: float | Float64Array) -> Float64Array:
    """Add `change` to the log-odds of confidences: a number, or an array that broadcasts. Same shape"""
    # Return unchanged values exactly: a round trip may change the last bit.
    return np.where(np.equal(change, 0), confidence, sigmoid(_compute_log_odds(confidence) + change))


# --- Fitting ---


def fit_schedule(
    preds: Predictions, policy: "Policy", *, tolerance: float = Schedule.DEFAULT_TOLERANCE, max_looks: int | None = None
) -> Schedule:
    """Fit the order of looks and the rule for stopping to predictions for all views. Labels are not needed.

    The views are ordered so that the confidence after few looks is as close as possible to the confidence after all
    looks. The margin is the smallest one for which at most a fraction `tolerance` of the decisions differ from those
    with all looks, at thresholds close to that of the policy. If `max_looks` (by default all views) is too small for
    this, it is a margin beyond which nothing changes.

    Parameters
    ----------
    preds
        Predictions for all views, for images that are not used to certify a threshold.
    policy
        A policy with the method, its options, the class prediction, and a threshold, which need not be the final one.
    """
    if not is_number(tolerance) or not 0 < tolerance < 1:
        fault = f"is out of range; expected a fraction of images in (0, 1), such as {Schedule.DEFAULT_TOLERANCE}"
        raise DecisionError(fault, argument="tolerance", value=tolerance)
    if max_looks is not None and (not is_whole_number(max_looks) or max_looks < 2):
        fault = "is invalid; expected a whole number of at least 2, or None for all views"
        raise DecisionError(fault, argument="max_looks", value=max_looks)
    check_adaptive_method(policy.method, policy.options)
    if not np.isfinite(policy.threshold):
        raise DecisionError(f"a schedule needs a finite threshold, got {policy.threshold}: {policy}.")
    check_counts(preds.n_views, preds.n_images)
    n_looks = min(max_looks or preds.n_views, preds.n_views)
    order = order_views(preds, policy)
    running = policy.compiled.running(preds.select(views=list(order)))
    check_confidence_range(running, policy.method)
    log_odds = _compute_finite_log_odds(running)
    changes = log_odds[:, -1:] - log_odds
    schedule = Schedule(
        views=order[:n_looks],
        method=policy.method,
        changes=tuple(changes.mean(axis=0)[:n_looks].tolist()),
        spreads=tuple(changes.std(axis=0)[:n_looks].tolist()),
        margin=0.0,
        tolerance=tolerance,
        full_looks=preds.n_views,
        images=preds.n_images,
        threshold=policy.threshold,
    )
    return _choose_margin(schedule, running)


def order_views(preds: Predictions, policy: "Policy") -> tuple[str, ...]:
    """Return the views in the order of looks; each view minimizes the spread of the remaining change."""
    values, combine = policy.compiled.view_statistics(preds)
    final = _compute_finite_log_odds(combine(values.mean(axis=2, keepdims=True)))
    total, order, rest = values[:, :, 0], [0], list(range(1, preds.n_views))
    while rest:
        candidates = (total[:, :, None] + values[:, :, rest]) / (len(order) + 1)
        spreads = (final - _compute_finite_log_odds(combine(candidates))).std(axis=0)
        chosen = rest.pop(int(spreads.argmin()))
        order.append(chosen)
        total = total + values[:, :, chosen]
    return tuple(preds.views.texts[position] for position in order)


def check_confidence_range(running: Float64Array, method: str) -> None:
    """Raise an error for confidences outside [0, 1], which have no log-odds."""
    if running.min() < 0 or running.max() > 1:
        fault = f"method {method!r} has confidences from {running.min():.6g} to {running.max():.6g}"
        raise DecisionError(f"{fault}; adaptive looking expects them between 0 and 1", repair="choose another method")


def check_counts(n_views: int, n_images: int) -> None:
    """Raise an error if there are too few views or tuning images to fit a schedule."""
    if n_views < 2:
        repair = Repair("pass more with {views}", views=ANY)
        raise DecisionError("adaptive looking needs at least two views, got one", repair=repair)
    if n_images < MIN_IMAGES:
        fault = f"a schedule is fitted to at least {MIN_IMAGES} images set apart (by default a quarter), got {n_images}"
        repair = Repair("pass more images, or select those to set apart with {tuning}", tuning=ANY)
        raise DecisionError(fault, repair=repair)


def _choose_margin(schedule: Schedule, running: Float64Array) -> Schedule:
    """Return the schedule with the smallest margin within the tolerance, and with the frontier of margins."""
    # Confidences with all looks that are close to the threshold.
    ranked = np.sort(running[:, -1])
    place, reach = int(np.searchsorted(ranked, schedule.threshold)), max(1, int(NEARBY * len(ranked)))
    first, last = max(0, place - reach), min(len(ranked) - 1, place + reach)
    thresholds = np.unique(ranked[np.linspace(first, last, MAX_THRESHOLDS).round().astype(np.int64)])
    final = running[:, -1:] >= thresholds
    tried = [schedule.model_copy(update={"margin": float(margin)}) for margin in MARGINS]
    differing = np.array([_compute_differing(one, running, thresholds, final) for one in tried])
    # With too few looks, no margin is within the tolerance.
    chosen = int(np.argmax(differing <= max(schedule.tolerance, differing.min())))
    frontier = []
    for margin in sorted({*FRONTIER_MARGINS, tried[chosen].margin}):
        one = schedule.model_copy(update={"margin": margin})
        looks, share = one.count_mean_looks(running, thresholds), _compute_differing(one, running, thresholds, final)
        frontier.append(FrontierPoint(margin=margin, looks=looks, differing=share))
    return tried[chosen].model_copy(update={"frontier": tuple(frontier)})


def _compute_differing(schedule: Schedule, running: Float64Array, thresholds: Float64Array, final: BoolArray) -> float:
    """Return the fraction of decisions that differ from the final ones, bool [N, T]."""
    accepted = schedule.confidence(running)[:, None] >= thresholds
    return float((accepted != final).mean())
