"""Adaptive decisions on stored predictions: the confidence to certify, and how often all looks decide otherwise."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError
from secondlook.policies.rule import Calibration, Rule, select_schedule_views
from secondlook.policies.schedule import Looks, Schedule
from secondlook.policies.schedule_fit import check_adaptive_method, check_confidence_range
from secondlook.predictions import Predictions


@dataclass(frozen=True, eq=False)
class AdaptiveConfidence:
    """The confidence of N images that a threshold for adaptive decisions is chosen on, and what it derives from."""

    schedule: Schedule
    running: Float64Array
    """Confidence after 1, 2, ... looks in the order of the schedule, up to all V looks. float64 [N, V]"""
    predicted: IntArray
    """The top-k classes after 1, 2, ... looks, int64 [N, V, k]; or [N, 1, k] if they depend on the image alone."""

    @classmethod
    def compute(cls, preds: Predictions, settings: Rule, schedule: Schedule) -> Self:
        """Compute it from predictions for all views; `settings` has the method and how classes are predicted."""
        ordered = _order_views(preds, settings, schedule)
        running = settings.compute_running(ordered)
        check_confidence_range(running, settings.method)
        texts = ordered.views.texts if settings.predict_from == "views" else ordered.views.texts[:1]
        seen = [ordered.select(views=list(texts[: count + 1])) for count in range(len(texts))]
        predicted = [one.predicted(settings.predict_from, settings.top_k).reshape(len(one), -1) for one in seen]
        return cls(schedule, running, np.stack(predicted, axis=1))

    @cached_property
    def confidence(self) -> Float64Array:
        """The largest threshold at which each image is accepted. float64 [N]"""
        return self.schedule.confidence(self.running)

    def correct(self, preds: Predictions) -> BoolArray:
        """Return which images count as correct when a threshold is certified. bool [N]

        If classes are predicted from the views so far, they may depend on the threshold: an image counts as correct
        only if it is after every number of looks at which some threshold accepts it.
        """
        correct = np.any(self.predicted == preds.labels[:, None, None], axis=2)
        if correct.shape[1] == 1:
            return np.asarray(correct[:, 0])
        accepting = self.schedule.find_accepting_looks(self.running)
        result: BoolArray = (correct[:, : accepting.shape[1]] | ~accepting).all(axis=1)
        return result

    def look(self, threshold: float) -> Looks:
        """Return where looking stops at a threshold."""
        return self.schedule.look(self.running, threshold)

    def count_looks(self, calibration: Calibration, threshold: float, delta: float) -> Calibration:
        """Return the calibration with the mean looks at a threshold, and a bound on the decisions that differ."""
        looks = self.look(threshold).looks
        differing = int(np.sum(self._find_differing(looks, threshold)))
        return replace(
            calibration,
            mean_looks=float(looks.mean()),
            differing=differing,
            differing_bound=bound_differing(differing, len(looks), delta),
            differing_delta=delta,
        )

    def _find_differing(self, looks: IntArray, threshold: float) -> BoolArray:
        """Return whether the decision, or the class of an accepted image, differs from that with all looks. bool [N]"""
        accepted, final = self.confidence >= threshold, self.running[:, -1] >= threshold
        place = np.minimum(looks, self.predicted.shape[1]) - 1
        stopped = np.take_along_axis(self.predicted, place[:, None, None], axis=1)[:, 0]
        same_class = (stopped == self.predicted[:, -1]).all(axis=1)
        differing: BoolArray = (accepted != final) | (accepted & ~same_class)
        return differing


def _order_views(preds: Predictions, settings: Rule, schedule: Schedule) -> Predictions:
    """Return predictions for all views in the order of looks, or raise an error if they do not fit the schedule."""
    check_adaptive_method(settings.method, dict(settings.options))
    if schedule.method != settings.method:
        raise DecisionError(
            f"the schedule was fitted to method {schedule.method!r}, got {settings.method!r}; fit another schedule."
        )
    select_schedule_views(preds, schedule)
    if schedule.full_looks != preds.n_views:
        raise DecisionError(
            f"the schedule was fitted to {schedule.full_looks} views, got predictions for {preds.n_views}; select the "
            "views that it was fitted to, or fit another schedule."
        )
    others = [view for view in preds.views.texts if view not in schedule.views]
    return preds.select(views=[*schedule.views, *others])


def bound_differing(differing: int, n_images: int, delta: float) -> float:
    """Return an upper bound on the fraction of images whose decision differs from that with all looks.

    It holds with probability 1 - `delta`, although the threshold is chosen on the same images: the threshold is the
    confidence of one of them, so it is independent of the others, and the exact binomial bound of Clopper and Pearson
    for these is taken with failure probability `delta` / `n_images`, once for each image that it may be.
    """
    from scipy.special import betaincinv

    others = n_images - 1
    if differing >= others:
        return 1.0
    return float(betaincinv(differing + 1, others - differing, 1 - delta / n_images))
