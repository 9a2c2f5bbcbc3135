"""Images whose confidence a threshold is chosen on: fitted on some images, computed for the others, adaptive or not."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError
from secondlook.estimators import (
    FittedMethods,
    compile_method,
    compute_look_statistics,
    default_method,
    resolve_tuning,
    tuning_positions,
)
from secondlook.metrics import rank
from secondlook.policies.guarantee import Calibration
from secondlook.policies.policy import Policy, select_schedule_views
from secondlook.policies.reference import Reference
from secondlook.policies.schedule import (
    Looks,
    Schedule,
    check_adaptive_method,
    check_confidence_range,
    check_image_count,
    check_view_count,
    fit_schedule,
)
from secondlook.predictions import PredictFrom, Predictions

Adaptive = bool | Schedule
"""Whether to look at an image again only while its decision is open, or the schedule to do so by."""

MIN_REFERENCE_IMAGES = 10
"""With fewer images there is nothing to compare others with."""

PLANNED_COVERAGE = 0.5
"""Coverage that a schedule is planned for where the error rate among tuning images exceeds the risk at any coverage."""


def exclude_images(preds: Predictions, ids: frozenset[str], tuning: object) -> tuple[Predictions, BoolArray | None]:
    """Return the predictions without some images, and which of the others are set apart, bool [N] or None."""
    kept = np.array([id_ not in ids for id_ in preds.ids], dtype=np.bool_)
    apart = None
    if tuning is not None:
        apart = np.zeros(preds.n_images, dtype=np.bool_)
        apart[resolve_tuning(tuning, preds.n_images)] = True
        apart = apart[kept]
    return (preds if kept.all() else preds.select(images=kept)), apart


@dataclass(frozen=True)
class LookingRequest:
    """Whether and how to look adaptively, as the arguments say."""

    adaptive: Adaptive
    tolerance: float
    max_looks: int | None

    def __post_init__(self) -> None:
        given: object = self.adaptive  # whatever callers without a type checker pass
        if not isinstance(given, bool | Schedule):
            raise DecisionError("is invalid; expected True, False or a schedule", argument="adaptive", value=given)


@dataclass(frozen=True, eq=False)
class AdaptiveConfidence:
    """The confidence of N images that a threshold for adaptive decisions is chosen on, and what it derives from."""

    schedule: Schedule
    running: Float64Array
    """Confidence after 1, 2, ... looks in the order of the schedule, up to all V looks. float64 [N, V]"""
    predicted: IntArray
    """The top-k classes after 1, 2, ... looks, int64 [N, V, k]; or [N, 1, k] if they depend on the image alone."""

    @classmethod
    def compute(cls, preds: Predictions, settings: Policy, schedule: Schedule) -> Self:
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
        counts = {
            "mean_looks": float(looks.mean()),
            "differing": differing,
            "differing_bound": bound_differing(differing, len(looks), delta),
            "differing_delta": delta,
        }
        return calibration.model_copy(update=counts)

    def _find_differing(self, looks: IntArray, threshold: float) -> BoolArray:
        """Return whether the decision, or the class of an accepted image, differs from that with all looks. bool [N]"""
        accepted, final = self.confidence >= threshold, self.running[:, -1] >= threshold
        place = np.minimum(looks, self.predicted.shape[1]) - 1
        stopped = np.take_along_axis(self.predicted, place[:, None, None], axis=1)[:, 0]
        same_class = (stopped == self.predicted[:, -1]).all(axis=1)
        differing: BoolArray = (accepted != final) | (accepted & ~same_class)
        return differing


def _order_views(preds: Predictions, settings: Policy, schedule: Schedule) -> Predictions:
    """Return predictions for all views in the order of looks, or raise an error if they do not fit the schedule."""
    check_adaptive_method(settings.method, settings.options)
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


@dataclass(frozen=True, eq=False)
class ScoredImages:
    """The confidence of images that a threshold is chosen on."""

    settings: Policy
    """The policy without its threshold."""
    preds: Predictions
    confidence: Float64Array
    adapted: AdaptiveConfidence | None = None

    def correct(self) -> BoolArray:
        """Return which images count as correct. bool [N]"""
        if self.adapted is not None:
            return self.adapted.correct(self.preds)
        return self.preds.correct(self.settings.predict_from, self.settings.top_k)

    def complete(self, chosen: Policy, delta: float) -> Policy:
        """Return the settings with a threshold that was chosen, and with a schedule and how often it looks."""
        names = ("threshold", "guarantee", "calibration", "shortfall", "grouped_by", "groups")
        update = {name: getattr(chosen, name) for name in names}
        calibration, origin = chosen.calibration, self.preds.origin
        assert calibration is not None, "every way to choose a threshold counts images"
        if self.adapted is not None and math.isfinite(chosen.threshold):
            calibration = self.adapted.count_looks(calibration, chosen.threshold, delta)
            update |= {"schedule": self.adapted.schedule, "views": self.adapted.schedule.views}
        if origin is not None:
            calibration = calibration.model_copy(update={"data": origin.data, "digest": origin.digest})
        return self.settings.model_copy(update={**update, "calibration": calibration})

    def describe_reference(self, threshold: float, methods: int = 1) -> Reference | None:
        """Return how the images look at a threshold, for monitoring; None if there is no threshold, or too few images.

        `methods` is the number of methods that this one was chosen from on these images.
        """
        if not math.isfinite(threshold) or self.preds.n_images < MIN_REFERENCE_IMAGES:
            return None
        # How often a schedule looks depends on the threshold, and so on these images: no test may use it.
        is_compared = self.adapted is None and self.preds.n_outputs > 1
        confidence = self.confidence if self.adapted is None else self.adapted.look(threshold).confidence
        first_look, disagreement = compute_look_statistics(self.preds, self.settings.top_k)
        return Reference.make(
            confidence,
            first_look,
            disagreement if is_compared else None,
            ~self.correct() if self.preds.has_labels else None,
            methods=methods,
        )


def fit_on_tuning_images(
    preds: Predictions,
    method: str | Sequence[str] | None,
    options: Mapping[str, object],
    predict_from: PredictFrom,
    top_k: int,
    tuning: object,
    looking: LookingRequest,
) -> FittedMethods:
    """Fit methods, or the default one, on images set apart."""
    names = (default_method(preds),) if method is None else as_methods(method)
    if looking.adaptive is True:
        check_view_count(preds.n_views)  # first: the default method of one view cannot be adaptive
        for text in names:
            check_adaptive_method(text, options)
        tuning = tuning_positions(preds.n_images) if tuning is None else tuning
        check_image_count(len(resolve_tuning(tuning, preds.n_images)))
    return FittedMethods.fit(preds, names, tuning=tuning, predict_from=predict_from, top_k=top_k, options=options)


def score_judged_images(
    preds: Predictions,
    fitted: FittedMethods,
    text: str,
    looking: LookingRequest,
    plan: Callable[[ScoredImages], float],
) -> ScoredImages:
    """Compute the confidence of the judged images; `plan` gives the threshold that a schedule is fitted for."""
    name, options = compile_method(text).name, fitted.options[text]
    settings = Policy(
        threshold=math.inf,
        method=name,
        options=options,
        predict_from=fitted.predict_from,
        top_k=fitted.top_k,
        classifier=None if preds.origin is None else preds.origin.classifier,
        views=preds.views.texts,
        class_names=preds.class_names,
    )
    settings.check_transfers()
    judged, schedule = fitted.select_judged(preds), looking.adaptive
    if schedule is False:
        return ScoredImages(settings, judged, fitted.compute(judged, text))
    if schedule is True:
        tuning = preds.select(images=fitted.tuning)
        threshold = plan(ScoredImages(settings, tuning, fitted.compute(tuning, text)))
        planned = settings.model_copy(update={"threshold": threshold})
        schedule = fit_schedule(tuning, planned, tolerance=looking.tolerance, max_looks=looking.max_looks)
    adapted = AdaptiveConfidence.compute(judged, settings, schedule)
    return ScoredImages(settings, judged, adapted.confidence, adapted)


def plan_for_risk(scored: ScoredImages, risk: float) -> float:
    """Return the lowest threshold at which the error rate among the accepted of these images is at most `risk`."""
    ranking = rank(scored.correct(), scored.confidence)
    passing = np.flatnonzero(ranking.errors <= risk * ranking.accepted)
    if len(passing) == 0:
        return find_threshold(scored.confidence, PLANNED_COVERAGE)
    return float(ranking.confidences[passing[-1]])


def find_threshold(confidence: Float64Array, coverage: float) -> float:
    """Return the largest threshold that accepts at least this fraction of the images. float64 [N]"""
    ranking = rank(np.ones(len(confidence), dtype=np.bool_), confidence)
    return float(ranking.confidences[np.searchsorted(ranking.accepted, ranking.count_for_coverage(coverage))])


def as_methods(method: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or more names of methods as a tuple, or raise an error if there is none, or one twice."""
    given: object = method  # whatever callers without a type checker pass
    methods = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not methods or not all(isinstance(name, str) for name in methods):
        raise DecisionError(
            "is invalid; expected the name of a confidence method, such as 'blend', or a list",
            argument="method",
            value=method,
        )
    for name in methods:
        if methods.count(name) > 1:
            raise DecisionError(f"duplicate method {name!r}; list each method once, since all of them share delta.")
    return methods
