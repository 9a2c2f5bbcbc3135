"""Fitting a schedule: which view to look at next, how far estimates are off, and how much margin they need."""

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, is_number, is_whole_number
from secondlook.errors import ANY, DecisionError, Repair
from secondlook.estimators import compile_method
from secondlook.policies.policy import Policy
from secondlook.policies.schedule import FrontierPoint, Schedule, check_adaptive_method, compute_log_odds
from secondlook.predictions import Predictions

DEFAULT_TOLERANCE = 0.0075
"""Fraction of decisions that may differ from those with all looks; docs/results.md tells what it costs and gives."""

MIN_IMAGES = 100
"""Number of images that a schedule is fitted to at least."""

MAX_LOG_ODDS = 37.0
"""Log-odds of the largest confidence below 1."""

MARGINS = np.arange(0, 8.05, 0.05).round(2)
"""The margins that are tried, in standard deviations; the first is one look for every image."""
FRONTIER_MARGINS = (*np.arange(0, 4.25, 0.25).tolist(), 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
"""The margins of a frontier, up to those with which nearly every image has all looks."""

NEARBY = 0.05
"""The margin is chosen at thresholds of which at most this fraction of images lies between them and the given one."""
MAX_THRESHOLDS = 21


def fit_schedule(
    preds: Predictions, policy: Policy, *, tolerance: float = DEFAULT_TOLERANCE, max_looks: int | None = None
) -> Schedule:
    """Fit the order of looks, and when to stop, to predictions for all views. Labels are not needed.

    The views are ordered so that the confidence after few looks is as close as possible to that after all. The margin
    is the smallest with which at most a fraction `tolerance` of the decisions at thresholds about that of the policy
    differ from those with all looks.

    Parameters
    ----------
    preds
        Predictions for all views, for images that no threshold is certified on.
    policy
        The method, its options and the class prediction; and the threshold, which need not be the final one.
    tolerance
        Fraction of images whose decision may differ from that with all looks. If `max_looks` are too few for that,
        the margin is chosen so that more would change nothing.
    max_looks
        Largest number of looks, by default all views.
    """
    n_looks = _check_arguments(preds, policy, tolerance, max_looks)
    order = order_views(preds, policy)
    running = policy.compute_running(preds.select(views=list(order)))
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


def order_views(preds: Predictions, policy: Policy) -> tuple[str, ...]:
    """Return the views in the order of looks: each next one leaves the least spread of what is still to change."""
    compiled = compile_method(policy.method, policy.options, predict_from=policy.predict_from, top_k=policy.top_k)
    values, combine = compiled.view_statistics(preds)
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
    """Raise an error for confidences that are not between 0 and 1, which have no log-odds."""
    if running.min() < 0 or running.max() > 1:
        raise DecisionError(
            f"method {method!r} has confidences from {running.min():.6g} to {running.max():.6g}; adaptive looking "
            "expects them between 0 and 1, so choose another method."
        )


def check_view_count(n_views: int) -> None:
    """Raise an error if there is only one view."""
    if n_views < 2:
        raise DecisionError("adaptive looking needs at least two views, got one; collect with more views.")


def check_image_count(n_images: int) -> None:
    """Raise an error if there are too few images to fit a schedule to."""
    if n_images < MIN_IMAGES:
        raise DecisionError(
            f"a schedule for adaptive looking is fitted to at least {MIN_IMAGES} images that are set apart (by default "
            f"a quarter of all), got {n_images:,}",
            repair=Repair("pass more images, or say with {tuning} which of them to set apart", tuning=ANY),
        )


def check_tolerance(tolerance: float) -> None:
    """Raise an error unless the tolerance is between 0 and 1."""
    if not is_number(tolerance) or not 0 < tolerance < 1:
        raise DecisionError(
            f"is out of range; expected a fraction of images between 0 and 1, such as {DEFAULT_TOLERANCE}",
            argument="tolerance",
            value=tolerance,
        )


def _check_arguments(preds: Predictions, policy: Policy, tolerance: float, max_looks: int | None) -> int:
    """Return the largest number of looks, or raise an error."""
    check_tolerance(tolerance)
    if max_looks is not None and (not is_whole_number(max_looks) or max_looks < 2):
        raise DecisionError(
            "is invalid; expected a whole number of at least 2, or nothing for all views",
            argument="max_looks",
            value=max_looks,
        )
    check_adaptive_method(policy.method, dict(policy.options))
    if not np.isfinite(policy.threshold):
        raise DecisionError(f"a schedule needs a finite threshold, got {policy.threshold}: {policy}.")
    check_view_count(preds.n_views)
    check_image_count(preds.n_images)
    return min(max_looks or preds.n_views, preds.n_views)


def _compute_finite_log_odds(confidence: Float64Array) -> Float64Array:
    return np.clip(compute_log_odds(confidence), -MAX_LOG_ODDS, MAX_LOG_ODDS)


def _choose_margin(schedule: Schedule, running: Float64Array) -> Schedule:
    """Return the schedule with the smallest margin that is within the tolerance, and the frontier of margins."""
    thresholds = _find_nearby_thresholds(running[:, -1], schedule.threshold)
    final = running[:, -1:] >= thresholds
    tried = [schedule.model_copy(update={"margin": float(margin)}) for margin in MARGINS]
    differing = np.array([_compute_differing(one, running, thresholds, final) for one in tried])
    # If too few looks are allowed, it is never within the tolerance.
    chosen = int(np.argmax(differing <= max(schedule.tolerance, differing.min())))
    frontier = []
    for margin in sorted({*FRONTIER_MARGINS, tried[chosen].margin}):
        one = schedule.model_copy(update={"margin": margin})
        looks, share = one.count_mean_looks(running, thresholds), _compute_differing(one, running, thresholds, final)
        frontier.append(FrontierPoint(margin=margin, looks=looks, differing=share))
    return tried[chosen].model_copy(update={"frontier": tuple(frontier)})


def _find_nearby_thresholds(confidences: Float64Array, threshold: float) -> Float64Array:
    """Return confidences with all looks that are about as high as the threshold. float64 [T]"""
    ranked = np.sort(confidences)
    place = int(np.searchsorted(ranked, threshold))
    reach = max(1, int(NEARBY * len(ranked)))
    first, last = max(0, place - reach), min(len(ranked) - 1, place + reach)
    places = np.unique(np.linspace(first, last, MAX_THRESHOLDS).round().astype(np.int64))
    return np.unique(ranked[places])


def _compute_differing(schedule: Schedule, running: Float64Array, thresholds: Float64Array, final: BoolArray) -> float:
    """Return the fraction of decisions that differ from the final ones, bool [N, T]."""
    accepted = schedule.confidence(running)[:, None] >= thresholds
    return float((accepted != final).mean())
