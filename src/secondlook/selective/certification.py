"""Choosing a threshold: for a guaranteed risk, or for a coverage."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import is_number
from secondlook.errors import DecisionError, MetricError
from secondlook.metrics import Ranking, rank
from secondlook.predictions import PredictFrom, Predictions
from secondlook.selective.fixed_sequence import (
    estimate_prospect,
    find_certifiable_delta,
    largest_certified_count,
    smallest_certifiable_risk,
)
from secondlook.selective.rule import DEFAULT_DELTA, Calibration, Guarantee, Rule, Shortfall
from secondlook.selective.schedule_fit import DEFAULT_TOLERANCE
from secondlook.selective.scored_images import (
    Adaptive,
    Looking,
    exclude_images,
    find_threshold,
    fit_on_tuning_images,
    plan_for_risk,
    score_judged_images,
)


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
    adaptive: Adaptive = False,
    tolerance: float = DEFAULT_TOLERANCE,
    max_looks: int | None = None,
    **options: object,
) -> Rule:
    """Return the rule with the largest coverage whose error rate among accepted images is at most `risk`.

    The guarantee holds for every classifier, confidence and distribution, with probability 1 - `delta` over the draw of
    the labeled images (proof in docs/selective.md). If nothing can be guaranteed, the rule accepts nothing: `certified`
    is False and `shortfall` tells what would have been possible.

    Several methods share `delta` equally, so that the guarantee holds for whichever of them has the largest coverage.
    To certify each with the whole `delta` and keep the best would break it.

    A method that has to be fitted, such as 'learned', is fitted on images that are set apart (a quarter of the images,
    at most 1,000, unless `tuning` says which) and certified on the others. So is the schedule of an adaptive rule; what
    is certified are the adaptive decisions themselves.

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
        Positions or a mask bool [N] of images that were used to choose views or methods, or may be used to fit one or
        a schedule; nothing is certified on them.
    adaptive
        Whether to look at an image again only while its decision is open. True fits a schedule on images set apart; a
        given one (`fit_schedule`) must have been fitted to other images than those it is certified on.
    tolerance, max_looks
        For `adaptive=True`: fraction of images whose decision may differ from that with all looks, and the largest
        number of looks, by default all views.
    """
    check_risk_and_delta(risk, delta)
    if not preds.has_labels:
        raise DecisionError("a guarantee needs labeled images, but these predictions have no labels; pass labels=.")
    looking = Looking(adaptive, tolerance, max_looks)
    distinct, apart = exclude_images(preds, frozenset(duplicates), tuning)
    fitted = fit_on_tuning_images(distinct, method, options, predict_from, top_k, apart, looking)
    rules = []
    for text in fitted.options:
        scored = score_judged_images(distinct, fitted, text, looking, lambda one: plan_for_risk(one, risk))
        share = delta / len(fitted.options)
        rule = certify_confidence(scored.correct(), scored.confidence, risk=risk, delta=share)
        rules.append(scored.complete(rule, share))
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
    adaptive: Adaptive = False,
    tolerance: float = DEFAULT_TOLERANCE,
    max_looks: int | None = None,
    **options: object,
) -> Rule:
    """Return the rule that accepts at least this fraction of the images, without a guarantee about errors.

    Images of equal confidence are accepted together, so the coverage may be larger. Labels are not needed, except to
    fit a method. The default method and the other arguments are those of `certify`.
    """
    if not is_number(coverage) or not 0 < coverage <= 1:
        raise DecisionError(
            f"coverage={coverage!r} is not a fraction of images; expected a number in (0, 1], such as 0.8."
        )
    looking = Looking(adaptive, tolerance, max_looks)
    fitted = fit_on_tuning_images(preds, method, options, predict_from, top_k, tuning, looking)
    (text,) = fitted.options
    scored = score_judged_images(preds, fitted, text, looking, lambda one: find_threshold(one.confidence, coverage))
    threshold = find_threshold(scored.confidence, coverage)
    accepted = scored.confidence >= threshold
    errors = int(np.sum(accepted & ~scored.correct())) if preds.has_labels else None
    calibration = Calibration(len(accepted), int(np.sum(accepted)), errors, tuning=len(fitted.tuning))
    return scored.complete(Rule(threshold, calibration=calibration), DEFAULT_DELTA)


def check_risk_and_delta(risk: float, delta: float) -> None:
    """Raise an error unless both are probabilities between 0 and 1."""
    for name, value, example in (
        ("risk", risk, "0.01 for 1 % errors"),
        ("delta", delta, "0.001 for 99.9 % confidence"),
    ):
        if not is_number(value) or not 0 < value < 1:
            raise DecisionError(f"{name}={value!r}; expected a number between 0 and 1, such as {example}.")


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
