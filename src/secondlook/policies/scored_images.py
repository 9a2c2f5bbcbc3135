"""Images whose confidence a threshold is chosen on: fitted on some images, computed for the others."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import DecisionError
from secondlook.estimators import (
    METHODS,
    FittedMethods,
    compute_look_statistics,
    default_method,
    fit_methods,
    needs_fitting,
    resolve_tuning,
    split_method,
    tuning_positions,
)
from secondlook.metrics import count_for_coverage, rank
from secondlook.policies.adaptive import AdaptiveConfidence
from secondlook.policies.reference import Reference, make_reference
from secondlook.policies.rule import Rule
from secondlook.policies.schedule import Schedule
from secondlook.policies.schedule_fit import check_adaptive_method, check_image_count, check_view_count, fit_schedule
from secondlook.predictions import PredictFrom, Predictions

Adaptive = bool | Schedule
"""Whether to look at an image again only while its decision is open, or the schedule to do so by."""

MIN_REFERENCE_IMAGES = 10
"""With fewer images there is nothing to compare others with."""

PLANNED_COVERAGE = 0.5
"""Coverage that a schedule is planned for where the error rate among tuning images exceeds the risk at any coverage."""


def check_threshold_transfers(method: str, options: Mapping[str, object]) -> None:
    """Raise an error for a confidence that depends on the other images: a threshold on it is invalid for new ones."""
    name = method.partition(":")[0]
    if name in METHODS and METHODS[name].is_rank:
        raise DecisionError(
            f"confidence {name!r} is a rank among the given images, so a threshold on it does not transfer to new "
            "images; use 'bootstrap-lower' or 'mean'."
        )
    if needs_fitting(method, options):
        raise DecisionError(
            f"confidence {name!r} has to be fitted, and its options lack the fitted numbers, so a threshold on it does "
            "not transfer to new images; calibrate again, or fit them on other images with fit_method."
        )


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
class Looking:
    """Whether and how to look adaptively, as the arguments say."""

    adaptive: Adaptive
    tolerance: float
    max_looks: int | None

    def __post_init__(self) -> None:
        given: object = self.adaptive  # whatever callers without a type checker pass
        if not isinstance(given, bool | Schedule):
            raise DecisionError(f"adaptive={given!r}; expected True, False or a schedule of fit_schedule.")


@dataclass(frozen=True, eq=False)
class ScoredImages:
    """The confidence of images, of which a rule chooses the threshold."""

    settings: Rule
    """A rule without its threshold."""
    preds: Predictions
    confidence: Float64Array
    adapted: AdaptiveConfidence | None = None

    def correct(self) -> BoolArray:
        """Return which images count as correct. bool [N]"""
        if self.adapted is not None:
            return self.adapted.correct(self.preds)
        return self.preds.correct(self.settings.predict_from, self.settings.top_k)

    def complete(self, rule: Rule, delta: float) -> Rule:
        """Return a threshold with its settings, and with a schedule and how often it looks."""
        settings = self.settings
        complete = replace(
            rule,
            method=settings.method,
            predict_from=settings.predict_from,
            top_k=settings.top_k,
            options=settings.options,
        )
        if self.adapted is None or rule.calibration is None or not math.isfinite(rule.threshold):
            return complete
        calibration = self.adapted.count_looks(rule.calibration, rule.threshold, delta)
        return replace(complete, schedule=self.adapted.schedule, calibration=calibration)

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
        return make_reference(
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
    looking: Looking,
) -> FittedMethods:
    """Fit methods, or the default one, on images set apart."""
    names = (default_method(preds),) if method is None else as_methods(method)
    if looking.adaptive is True:
        check_view_count(preds.n_views)  # first: the default method of one view cannot be adaptive
        for text in names:
            check_adaptive_method(*split_method(text, options))
        tuning = tuning_positions(preds.n_images) if tuning is None else tuning
        check_image_count(len(resolve_tuning(tuning, preds.n_images)))
    return fit_methods(preds, names, tuning=tuning, predict_from=predict_from, top_k=top_k, options=options)


def score_judged_images(
    preds: Predictions, fitted: FittedMethods, text: str, looking: Looking, plan: Callable[[ScoredImages], float]
) -> ScoredImages:
    """Compute the confidence of the judged images; `plan` gives the threshold that a schedule is fitted for."""
    name, options = split_method(text)[0], fitted.options[text]
    check_threshold_transfers(name, options)
    settings = Rule(math.inf, name, fitted.predict_from, fitted.top_k, options)
    judged, schedule = fitted.select_judged(preds), looking.adaptive
    if schedule is False:
        return ScoredImages(settings, judged, fitted.compute(judged, text))
    if schedule is True:
        tuning = preds.select(images=fitted.tuning)
        planned = replace(settings, threshold=plan(ScoredImages(settings, tuning, fitted.compute(tuning, text))))
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
    return float(np.sort(confidence)[::-1][count_for_coverage(coverage, len(confidence)) - 1])


def as_methods(method: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or more names of methods as a tuple, or raise an error if there is none, or one twice."""
    given: object = method  # whatever callers without a type checker pass
    methods = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not methods or not all(isinstance(name, str) for name in methods):
        raise DecisionError(f"method={method!r}; expected the name of a confidence method, such as 'mean', or a list.")
    for name in methods:
        if methods.count(name) > 1:
            raise DecisionError(f"duplicate method {name!r}; list each method once, since all of them share delta.")
    return methods
