"""Choosing a threshold: for a guaranteed risk, or for a coverage."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, is_number
from secondlook.errors import DecisionError, MetricError
from secondlook.estimators import METHODS, default_method, needs_fitting, split_method
from secondlook.evaluation import FittedMethods, fit_methods, resolve_tuning
from secondlook.metrics import Ranking, count_for_coverage, rank
from secondlook.predictions import PredictFrom, Predictions
from secondlook.selective.fixed_sequence import (
    estimate_prospect,
    find_certifiable_delta,
    largest_certified_count,
    smallest_certifiable_risk,
)
from secondlook.selective.rule import DEFAULT_DELTA, Calibration, Guarantee, Rule, Shortfall


def certify(
    preds: Predictions,
    method: str | Sequence[str] | None = None,
    *,
    risk: float,
    delta: float = DEFAULT_DELTA,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    duplicates: Collection[str] = (),
    tuning: object = None,
    **options: object,
) -> Rule:
    """Return the rule with the largest coverage whose error rate among accepted images is at most `risk`.

    The guarantee holds for every classifier, confidence and distribution, with probability 1 - `delta` over the draw of
    the labeled images (proof in docs/selective.md). If nothing can be guaranteed, the rule accepts nothing: `certified`
    is False and `shortfall` tells what would have been possible.

    Several methods share `delta` equally, so that the guarantee holds for whichever of them has the largest coverage.
    To certify each with the whole `delta` and keep the best would break it.

    A method that has to be fitted, such as 'learned', is fitted on images that are set apart (a quarter of the images,
    at most 1,000, unless `tuning` says which) and certified on the others.

    Parameters
    ----------
    preds
        Predictions with labels, for images that were not used to choose views, method or risk. Each image must be an
        independent draw: a copy of another image counts as a second one unless it is among `duplicates`.
    method, options
        A confidence method, or a list of methods to choose from, and the options of all of them. By default 'blend',
        or 'msr' if there is only one view.
    risk
        Largest error rate among accepted images.
    delta
        Failure probability of the guarantee.
    predict_from, top_k
        Whether classes are predicted from the image itself or from the mean over views, and how many of them.
    duplicates
        Ids of images that are copies of others, which are left out; `Source.find_duplicates` finds them.
    tuning
        Positions or a mask bool [N] of images that were used to choose views or methods, or may be used to fit one;
        nothing is certified on them.
    """
    check_risk_and_delta(risk, delta)
    if not preds.has_labels:
        raise DecisionError("a guarantee needs labeled images, but these predictions have no labels; pass labels=.")
    distinct, apart = _exclude_images(preds, frozenset(duplicates), tuning)
    fitted = _fit(distinct, None if method is None else as_methods(method), options, predict_from, top_k, apart)
    judged = fitted.select_judged(distinct)
    correct = judged.correct(predict_from=predict_from, top_k=top_k)
    rules = []
    for text, complete in fitted.options.items():
        name = split_method(text)[0]
        check_threshold_transfers(name, complete)
        confidence = fitted.compute(judged, text)
        rule = certify_confidence(correct, confidence, risk=risk, delta=delta / len(fitted.options))
        rules.append(replace(rule, method=name, predict_from=predict_from, top_k=top_k, options=complete))
    rule = _choose_rule(rules, Guarantee(risk, delta))
    assert rule.calibration is not None, "certify_confidence counts images"
    left_out = {"duplicates": preds.n_images - distinct.n_images, "tuning": len(fitted.tuning)}
    return replace(rule, calibration=replace(rule.calibration, **left_out))


def certify_confidence(correct: ArrayLike, confidence: ArrayLike, *, risk: float, delta: float = DEFAULT_DELTA) -> Rule:
    """Return the rule of `certify` for a confidence computed elsewhere. bool [N], float64 [N]"""
    check_risk_and_delta(risk, delta)
    ranking = _rank(correct, confidence)
    for value in (ranking.confidences[0], ranking.confidences[-1]):
        if not math.isfinite(value):
            index = int(np.flatnonzero(np.asarray(confidence) == value)[0])
            raise DecisionError(
                f"confidence is {float(value)} at index {index}, expected a finite number; fix or remove this image."
            )
    guarantee = Guarantee(risk, delta)
    accepted = largest_certified_count(ranking, risk, delta)
    if accepted is None:
        prospect = estimate_prospect(ranking, risk, delta)
        shortfall = Shortfall(
            guarantee,
            smallest_certifiable_risk(ranking, risk, delta),
            None if prospect.needed is None else prospect.needed - ranking.n_images,
            find_certifiable_delta(ranking, risk, delta),
            Calibration(ranking.n_images, prospect.accepted, prospect.errors),
        )
        return Rule(math.inf, calibration=Calibration(ranking.n_images, 0, 0), shortfall=shortfall)
    tie = int(np.searchsorted(ranking.accepted, accepted))
    calibration = Calibration(ranking.n_images, accepted, int(ranking.errors[tie]))
    return Rule(float(ranking.confidences[tie]), guarantee=guarantee, calibration=calibration)


def threshold_for(
    preds: Predictions,
    method: str | None = None,
    *,
    coverage: float,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    tuning: object = None,
    **options: object,
) -> Rule:
    """Return the rule that accepts at least this fraction of the images, without a guarantee about errors.

    Images of equal confidence are accepted together, so the coverage may be larger. Labels are not needed, except to
    fit a method. The default method and `tuning` are those of `certify`.
    """
    if not is_number(coverage) or not 0 < coverage <= 1:
        raise DecisionError(
            f"coverage={coverage!r} is not a fraction of images; expected a number in (0, 1], such as 0.8."
        )
    fitted = _fit(preds, None if method is None else as_methods(method), options, predict_from, top_k, tuning)
    ((text, complete),), judged = fitted.options.items(), fitted.select_judged(preds)
    name = split_method(text)[0]
    check_threshold_transfers(name, complete)
    confidence = fitted.compute(judged, text)
    threshold = float(np.sort(confidence)[::-1][count_for_coverage(coverage, len(confidence)) - 1])
    accepted = confidence >= threshold
    errors = None
    if preds.has_labels:
        errors = int(np.sum(accepted & ~judged.correct(predict_from=predict_from, top_k=top_k)))
    calibration = Calibration(len(confidence), int(np.sum(accepted)), errors, tuning=len(fitted.tuning))
    return Rule(threshold, name, predict_from, top_k, complete, calibration=calibration)


def check_risk_and_delta(risk: float, delta: float) -> None:
    """Raise an error unless both are probabilities between 0 and 1."""
    for name, value, example in (
        ("risk", risk, "0.01 for 1 % errors"),
        ("delta", delta, "0.001 for 99.9 % confidence"),
    ):
        if not is_number(value) or not 0 < value < 1:
            raise DecisionError(f"{name}={value!r}; expected a number between 0 and 1, such as {example}.")


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


def _exclude_images(preds: Predictions, ids: frozenset[str], tuning: object) -> tuple[Predictions, BoolArray | None]:
    """Return the predictions without some images, and which of the others are set apart, bool [N] or None."""
    kept = np.array([id_ not in ids for id_ in preds.ids], dtype=np.bool_)
    apart = None
    if tuning is not None:
        apart = np.zeros(preds.n_images, dtype=np.bool_)
        apart[resolve_tuning(tuning, preds.n_images)] = True
        apart = apart[kept]
    return (preds if kept.all() else preds.select(images=kept)), apart


def _fit(
    preds: Predictions,
    methods: tuple[str, ...] | None,
    options: Mapping[str, object],
    predict_from: PredictFrom,
    top_k: int,
    tuning: object,
) -> FittedMethods:
    """Fit methods, or the default one, on images set apart."""
    names = methods or (default_method(preds),)
    return fit_methods(preds, names, tuning=tuning, predict_from=predict_from, top_k=top_k, options=options)


def _choose_rule(rules: Sequence[Rule], guarantee: Guarantee) -> Rule:
    """Return the rule with the largest coverage, the first of several; each has an equal share of delta.

    With probability 1 - delta all certified rules are good at once, so the choice may depend on the labeled images.
    """
    best = max(rules, key=lambda rule: rule.coverage)
    if best.certified:
        return replace(best, guarantee=guarantee)
    shortfalls = [rule.shortfall for rule in rules if rule.shortfall is not None]
    closest = min(shortfalls, key=lambda one: math.inf if one.additional_images is None else one.additional_images)
    risks = [one.smallest_risk for one in shortfalls if one.smallest_risk is not None]
    deltas = [len(rules) * one.larger_delta for one in shortfalls if one.larger_delta is not None]
    return replace(
        best,
        shortfall=replace(
            closest,
            requested=guarantee,
            smallest_risk=min(risks, default=None),
            larger_delta=min(deltas, default=None),
        ),
    )


def _rank(correct: ArrayLike, confidence: ArrayLike) -> Ranking:
    try:
        return rank(correct, confidence)
    except MetricError as error:
        raise DecisionError(str(error)) from None
