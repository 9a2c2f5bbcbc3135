"""The frontier of adaptive looking: which coverage can be certified with how many looks."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from secondlook.policies.certification import certify_confidence, check_risk_and_delta
from secondlook.policies.guarantee import DEFAULT_DELTA
from secondlook.policies.policy import Policy
from secondlook.policies.schedule import Schedule
from secondlook.policies.schedule_fit import DEFAULT_TOLERANCE, FRONTIER_MARGINS
from secondlook.policies.scored_images import (
    Looking,
    ScoredImages,
    exclude_images,
    fit_on_tuning_images,
    plan_for_risk,
    score_judged_images,
)
from secondlook.predictions import PredictFrom, Predictions


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


def compute_frontier(
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
) -> Frontier:
    """Certify adaptive policies of increasing margins on the same images; the arguments are those of `certify`."""
    check_risk_and_delta(risk, delta)
    looking = Looking(True, DEFAULT_TOLERANCE, None)
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
    return Frontier(chosen, policies[chosen.margin], points, all_looks)


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
