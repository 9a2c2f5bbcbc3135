"""Choosing a threshold: for a guaranteed risk, or for a coverage."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, is_number
from secondlook.errors import ANY, DecisionError, MetricError, Repair
from secondlook.metrics import Ranking, rank
from secondlook.policies.fixed_sequence import (
    estimate_prospect,
    find_certifiable_delta,
    largest_certified_count,
    smallest_certifiable_risk,
)
from secondlook.policies.group_certification import CertifiedGroups, Risks, certify_groups, make_grouping
from secondlook.policies.guarantee import (
    DEFAULT_DELTA,
    Calibration,
    ComparedMethod,
    Guarantee,
    Shortfall,
    check_probability,
)
from secondlook.policies.policy import Policy
from secondlook.policies.schedule import FRONTIER_MARGINS, Schedule
from secondlook.policies.scored_images import (
    Adaptive,
    LookingRequest,
    ScoredImages,
    exclude_images,
    find_threshold,
    fit_on_tuning_images,
    plan_for_risk,
    score_judged_images,
)
from secondlook.predictions import PredictFrom, Predictions


def certify(
    preds: Predictions,
    method: str | Sequence[str] | None = None,
    *,
    risk: Risks,
    delta: float = DEFAULT_DELTA,
    groups: CertifiedGroups = None,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    duplicates: Collection[str] = (),
    tuning: object = None,
    adaptive: Adaptive = False,
    tolerance: float = Schedule.DEFAULT_TOLERANCE,
    max_looks: int | None = None,
    **options: object,
) -> Policy:
    """Return the policy with the largest coverage whose error rate among accepted images is at most `risk`.

    The guarantee holds for every classifier, confidence and distribution, with probability 1 - `delta` over the draw of
    the labeled images (proof in docs/policies.md). If nothing can be guaranteed, the policy accepts nothing:
    `certified` is False and `shortfall` tells what would have been possible.

    Several methods share `delta` equally, so that the guarantee holds for whichever of them has the largest coverage.
    To certify each with the whole `delta` and keep the best would break it.

    A method that has to be fitted, such as 'learned', is fitted on images that are set apart (a quarter of the images,
    at most 1,000, unless `tuning` says which) and certified on the others. So is the schedule of an adaptive policy;
    what is certified are the adaptive decisions themselves.

    With `groups`, every group has a threshold of its own, and the error rate among its accepted images is at most its
    risk, in all groups at once with probability 1 - `delta`. A group where nothing can be guaranteed accepts nothing.

    Parameters
    ----------
    preds
        Predictions with labels, for images that were not used to choose views, method or risk. Each image must be an
        independent draw: a copy of another image counts as a second one unless it is among `duplicates`.
    method, options
        A confidence method, or a list of methods to choose from, and the options of all of them. By default 'blend',
        or 'msr' if there is only one view.
    risk
        Largest error rate among accepted images. With `groups`, it may be a mapping from groups (names or indices of
        classes, or labels) to risks, with the key "*" for all others.
    delta
        Failure probability of the guarantee.
    groups
        "class" for the predicted classes, or one label per image, [N], which must be known of new images, too, when
        they are decided: `policy.accept(preds, groups=...)`. The true class is not.
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
    if not preds.has_labels:
        raise DecisionError(
            "a guarantee needs labeled images, but these predictions have no labels",
            repair=Repair("pass {labels}", labels=ANY),
        )
    check_probability("delta", delta)
    looking = LookingRequest(adaptive, tolerance, max_looks)
    grouping = make_grouping(preds, groups, risk, predict_from, top_k, is_adaptive=adaptive is not False)
    one_risk = {"risk": risk, "delta": delta}
    guarantee = Guarantee.model_validate(one_risk) if grouping is None else grouping.guarantee(delta)
    distinct, apart = exclude_images(preds, frozenset(duplicates), tuning)
    fitted = fit_on_tuning_images(distinct, method, options, predict_from, top_k, apart, looking)
    share = delta / len(fitted.options)
    policies, candidates = [], []
    for text in fitted.options:
        scored = score_judged_images(distinct, fitted, text, looking, lambda one: plan_for_risk(one, guarantee.risk))
        correct, confidence = scored.correct(), scored.confidence
        if grouping is None:
            chosen = certify_confidence(correct, confidence, risk=guarantee.risk, delta=share)
        else:
            _check_finite(confidence)
            chosen = certify_groups(correct, confidence, scored.preds.ids, grouping, share)
        policies.append(scored.complete(chosen, share))
        candidates.append(scored)
    best = max(range(len(policies)), key=lambda place: policies[place].coverage)
    policy = _complete_best(policies, best, guarantee)
    counts = {"duplicates": preds.n_images - distinct.n_images, "tuning": len(fitted.tuning)}
    assert policy.calibration is not None, "every way to choose a threshold counts images"
    compared = tuple(
        ComparedMethod(
            method=text,
            threshold=one.threshold if one.certified else None,
            coverage=one.coverage,
            chosen=place == best,
        )
        for place, (text, one) in enumerate(zip(fitted.options, policies, strict=True))
    )
    return policy.model_copy(
        update={
            "calibration": policy.calibration.model_copy(update=counts),
            "compared": compared,
            "reference": candidates[best].describe_reference(policy.threshold, len(policies)),
        }
    )


EXTERNAL = "external"
"""Method of a policy whose confidences were computed elsewhere."""


def certify_confidence(
    correct: ArrayLike, confidence: ArrayLike, *, risk: float, delta: float = DEFAULT_DELTA, method: str = EXTERNAL
) -> Policy:
    """Return the policy of `certify` for a confidence computed elsewhere, which is called `method`.

    bool [N], float64 [N]
    """
    check_probability("risk", risk)
    check_probability("delta", delta)
    ranking = _rank(correct, confidence)
    _check_finite(np.asarray(confidence))
    guarantee = Guarantee(risk=risk, delta=delta)
    accepted = largest_certified_count(ranking, risk, delta)
    if accepted is not None:
        tie = int(np.searchsorted(ranking.accepted, accepted))
        calibration = Calibration(images=ranking.n_images, accepted=accepted, errors=int(ranking.errors[tie]))
        threshold = float(ranking.confidences[tie])
        return Policy(threshold=threshold, method=method, guarantee=guarantee, calibration=calibration)
    prospect = estimate_prospect(ranking, risk, delta)
    shortfall = Shortfall(
        requested=guarantee,
        smallest_risk=smallest_certifiable_risk(
            lambda other: largest_certified_count(ranking, other, delta) is not None, risk
        ),
        additional_images=None if prospect.needed is None else prospect.needed - ranking.n_images,
        larger_delta=find_certifiable_delta(
            lambda other: largest_certified_count(ranking, risk, other) is not None, delta
        ),
        closest=Calibration(images=ranking.n_images, accepted=prospect.accepted, errors=prospect.errors),
    )
    nothing = Calibration(images=ranking.n_images, accepted=0, errors=0)
    return Policy(threshold=math.inf, method=method, calibration=nothing, shortfall=shortfall)


def threshold_for(
    preds: Predictions,
    method: str | None = None,
    *,
    coverage: float,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    tuning: object = None,
    adaptive: Adaptive = False,
    tolerance: float = Schedule.DEFAULT_TOLERANCE,
    max_looks: int | None = None,
    **options: object,
) -> Policy:
    """Return the policy that accepts at least this fraction of the images, without a guarantee about errors.

    Images of equal confidence are accepted together, so the coverage may be larger. Labels are not needed, except to
    fit a method. The default method and the other arguments are those of `certify`.
    """
    if not is_number(coverage) or not 0 < coverage <= 1:
        raise DecisionError(
            "is not a fraction of images; expected a number in (0, 1], such as 0.8", argument="coverage", value=coverage
        )
    looking = LookingRequest(adaptive, tolerance, max_looks)
    fitted = fit_on_tuning_images(preds, method, options, predict_from, top_k, tuning, looking)
    (text,) = fitted.options
    scored = score_judged_images(preds, fitted, text, looking, lambda one: find_threshold(one.confidence, coverage))
    threshold = find_threshold(scored.confidence, coverage)
    accepted = scored.confidence >= threshold
    errors = int(np.sum(accepted & ~scored.correct())) if preds.has_labels else None
    calibration = Calibration(
        images=len(accepted), accepted=int(np.sum(accepted)), errors=errors, tuning=len(fitted.tuning)
    )
    policy = scored.complete(Policy(threshold=threshold, calibration=calibration), DEFAULT_DELTA)
    return policy.model_copy(update={"reference": scored.describe_reference(threshold)})


def _complete_best(policies: Sequence[Policy], best: int, guarantee: Guarantee) -> Policy:
    """Return the best policy, each of which had an equal share of delta, with the guarantee or shortfall of the choice.

    With probability 1 - delta all certified policies are good at once, so the choice may depend on the labeled images.
    """
    if policies[best].certified:
        return policies[best].model_copy(update={"guarantee": guarantee})
    shortfalls = [policy.shortfall for policy in policies if policy.shortfall is not None]
    closest = min(shortfalls, key=lambda one: math.inf if one.additional_images is None else one.additional_images)
    alike = [one for one in shortfalls if one.group == closest.group]
    risks = [one.smallest_risk for one in alike if one.smallest_risk is not None]
    deltas = [len(policies) * one.larger_delta for one in alike if one.larger_delta is not None]
    reachable = {"smallest_risk": min(risks, default=None), "larger_delta": min(deltas, default=None)}
    shortfall = closest.model_copy(update={"requested": guarantee, **reachable})
    return policies[best].model_copy(update={"shortfall": shortfall})


def _check_finite(confidence: Array) -> None:
    """Raise an error for a confidence that no threshold could be. [N]"""
    for index in np.flatnonzero(~np.isfinite(confidence)):
        raise DecisionError(
            f"confidence is {float(confidence[index])} at index {index}, expected a finite number; fix or remove this "
            "image."
        )


def _rank(correct: ArrayLike, confidence: ArrayLike) -> Ranking:
    try:
        return rank(correct, confidence)
    except MetricError as error:
        raise DecisionError.from_error(error) from None


# --- The frontier of adaptive looking: which coverage can be certified with how many looks ---


class CertifiedPoint(NamedTuple):
    """What one margin costs and gives on the images that are certified on."""

    margin: float
    looks: float
    """Mean number of looks; where nothing can be certified, that on the tuning images."""
    coverage: float
    """Certified coverage; 0 if nothing can be certified."""
    differing: float
    """Fraction of images whose decision differs from that with all looks."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """Certified coverage against mean looks, for margins from one look to all looks.

    Each point is certified as if it were the only one: to choose among them, look at other images.
    """

    schedule: Schedule
    """The schedule with the margin of the default tolerance."""
    policy: Policy
    """The adaptive policy with this schedule; it may not be certified."""
    points: tuple[CertifiedPoint, ...]
    """By increasing margin; those that certify nothing are included."""
    all_looks: CertifiedPoint

    @classmethod
    def compute(
        cls,
        preds: Predictions,
        method: str | None = None,
        *,
        risk: float,
        delta: float = DEFAULT_DELTA,
        predict_from: PredictFrom = "image",
        top_k: int = 1,
        duplicates: Collection[str] = (),
        tuning: object = None,
        **options: object,
    ) -> Self:
        """Certify adaptive policies of increasing margins on the same images; the arguments are those of `certify`."""
        check_probability("risk", risk)
        check_probability("delta", delta)
        looking = LookingRequest(True, Schedule.DEFAULT_TOLERANCE, None)
        distinct, apart = exclude_images(preds, frozenset(duplicates), tuning)
        fitted = fit_on_tuning_images(distinct, method, options, predict_from, top_k, apart, looking)
        (text,) = fitted.options
        scored = score_judged_images(distinct, fitted, text, looking, lambda one: plan_for_risk(one, risk))
        assert scored.adapted is not None, "looking is adaptive"
        chosen = scored.adapted.schedule
        margins = sorted({*FRONTIER_MARGINS, chosen.margin})
        policies = {margin: _certify_margin(scored, margin, risk, delta) for margin in margins}
        expected = {point.margin: point.looks for point in chosen.frontier}
        points = tuple(_make_point(margin, policy, expected[margin]) for margin, policy in policies.items())
        final = replace(scored, confidence=scored.adapted.running[:, -1], adapted=None)
        full = certify_confidence(final.correct(), final.confidence, risk=risk, delta=delta)
        all_looks = CertifiedPoint(float("inf"), chosen.full_looks, full.coverage, 0.0)
        return cls(chosen, policies[chosen.margin], points, all_looks)


def _certify_margin(scored: ScoredImages, margin: float, risk: float, delta: float) -> Policy:
    assert scored.adapted is not None, "looking is adaptive"
    schedule = scored.adapted.schedule.model_copy(update={"margin": margin})
    adapted = replace(scored.adapted, schedule=schedule)
    changed = replace(scored, confidence=adapted.confidence, adapted=adapted)
    return changed.complete(certify_confidence(changed.correct(), adapted.confidence, risk=risk, delta=delta), delta)


def _make_point(margin: float, policy: Policy, expected_looks: float) -> CertifiedPoint:
    counts = policy.calibration
    assert counts is not None, "certify_confidence counts images"
    looks = expected_looks if counts.mean_looks is None else counts.mean_looks
    return CertifiedPoint(margin, looks, counts.coverage, (counts.differing or 0) / counts.images)
