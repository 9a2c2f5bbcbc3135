"""Choosing a threshold: for a guaranteed risk, or for a coverage."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, is_number
from secondlook.errors import ANY, DecisionError, MetricError, Repair
from secondlook.metrics import rank
from secondlook.policies.fixed_sequence import describe_shortfall, find_cut, largest_certified_count
from secondlook.policies.group_certification import CertifiedGroups, Risks, certify_groups, make_grouping
from secondlook.policies.guarantee import DEFAULT_DELTA, Calibration, ComparedMethod, Guarantee, check_probability
from secondlook.policies.policy import Policy
from secondlook.policies.schedule import FRONTIER_MARGINS, Schedule
from secondlook.policies.scored_images import Adaptive, exclude_images, find_threshold, plan_for_risk, score_candidates
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
    grouping = make_grouping(preds, groups, risk, predict_from, top_k, is_adaptive=adaptive is not False)
    one_risk = {"risk": risk, "delta": delta}
    guarantee = Guarantee.model_validate(one_risk) if grouping is None else grouping.guarantee(delta)
    distinct, apart = exclude_images(preds, frozenset(duplicates), tuning)
    candidates = score_candidates(
        distinct,
        method,
        options,
        lambda one: plan_for_risk(one, guarantee.risk),
        predict_from=predict_from,
        top_k=top_k,
        tuning=apart,
        adaptive=adaptive,
        tolerance=tolerance,
        max_looks=max_looks,
    )
    share, policies = delta / len(candidates), []
    counts = {"duplicates": preds.n_images - distinct.n_images, "tuning": candidates[0].tuning}
    for one in candidates:
        if grouping is None:
            chosen = certify_confidence(one.correct(), one.confidence, risk=guarantee.risk, delta=share)
        else:
            _check_finite(one.confidence)
            chosen = certify_groups(one.correct(), one.confidence, one.preds.ids, grouping, share)
        policies.append(one.complete(chosen, share, counts))
    best = max(range(len(policies)), key=lambda place: policies[place].coverage)
    policy = _complete_best(policies, best, guarantee)
    compared = tuple(
        ComparedMethod(
            method=one.text,
            threshold=made.threshold if made.certified else None,
            coverage=made.coverage,
            chosen=place == best,
        )
        for place, (one, made) in enumerate(zip(candidates, policies, strict=True))
    )
    reference = candidates[best].describe_reference(policy.threshold, len(policies))
    return policy.model_copy(update={"compared": compared, "reference": reference})


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
    try:
        ranking = rank(correct, confidence)
    except MetricError as error:
        raise DecisionError.from_error(error) from None
    _check_finite(np.asarray(confidence))
    guarantee = Guarantee(risk=risk, delta=delta)
    accepted = largest_certified_count(ranking, risk, delta)
    if accepted is not None:
        threshold, errors = find_cut(ranking, accepted)
        calibration = Calibration(images=ranking.n_images, accepted=accepted, errors=errors)
        return Policy(threshold=threshold, method=method, guarantee=guarantee, calibration=calibration)

    def can_certify(other: float | None, level: float) -> bool:
        return largest_certified_count(ranking, risk if other is None else other, level) is not None

    shortfall = describe_shortfall(guarantee, ranking, risk, delta, can_certify)
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
    (scored,) = score_candidates(
        preds,
        method,
        options,
        lambda one: find_threshold(one.confidence, coverage),
        predict_from=predict_from,
        top_k=top_k,
        tuning=tuning,
        adaptive=adaptive,
        tolerance=tolerance,
        max_looks=max_looks,
    )
    threshold = find_threshold(scored.confidence, coverage)
    accepted = scored.confidence >= threshold
    errors = int(np.sum(accepted & ~scored.correct())) if preds.has_labels else None
    calibration = Calibration(images=len(accepted), accepted=int(np.sum(accepted)), errors=errors)
    chosen = Policy(threshold=threshold, calibration=calibration)
    policy = scored.complete(chosen, DEFAULT_DELTA, {"tuning": scored.tuning})
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
        distinct, apart = exclude_images(preds, frozenset(duplicates), tuning)
        (scored,) = score_candidates(
            distinct,
            method,
            options,
            lambda one: plan_for_risk(one, risk),
            predict_from=predict_from,
            top_k=top_k,
            tuning=apart,
            adaptive=True,
        )
        assert scored.adapted is not None, "looking is adaptive"
        chosen = scored.adapted.schedule
        expected = {point.margin: point.looks for point in chosen.frontier}
        policies, points = {}, []
        for margin in sorted({*FRONTIER_MARGINS, chosen.margin}):
            adapted = replace(scored.adapted, schedule=chosen.model_copy(update={"margin": margin}))
            changed = replace(scored, confidence=adapted.confidence, adapted=adapted)
            certified = certify_confidence(changed.correct(), changed.confidence, risk=risk, delta=delta)
            policies[margin] = changed.complete(certified, delta)
            counts = policies[margin].calibration
            assert counts is not None, "certify_confidence counts images"
            differing = (counts.differing or 0) / counts.images
            points.append(CertifiedPoint(margin, counts.mean_looks or expected[margin], counts.coverage, differing))
        final = replace(scored, confidence=scored.adapted.running[:, -1], adapted=None)
        full = certify_confidence(final.correct(), final.confidence, risk=risk, delta=delta)
        all_looks = CertifiedPoint(math.inf, chosen.full_looks, full.coverage, 0.0)
        return cls(chosen, policies[chosen.margin], tuple(points), all_looks)
