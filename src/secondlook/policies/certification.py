"""Choosing a threshold: for a guaranteed risk, a coverage, or the least cost."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray, is_number
from secondlook.diagnosis import warn_about_setup
from secondlook.errors import ANY, DecisionError, MetricError, PredictionsError, Repair
from secondlook.estimators import (
    FittedMethods,
    compile_method,
    compute_look_statistics,
    default_method,
    resolve_tuning,
    tuning_positions,
)
from secondlook.evaluation import select_groups
from secondlook.metrics import Ranking, rank
from secondlook.policies.costs import Costs, bound_risk, bound_selected
from secondlook.policies.familiarity import Candidates, Familiarity, UnknownBound
from secondlook.policies.fixed_sequence import (
    CountedImages,
    count_without_errors,
    describe_shortfall,
    estimate_prospect,
    find_cut,
    find_joint_counts,
    largest_certified_count,
)
from secondlook.policies.guarantee import (
    DEFAULT_DELTA,
    Calibration,
    ComparedMethod,
    GroupedBy,
    GroupThreshold,
    Guarantee,
)
from secondlook.policies.ledger import Ledger
from secondlook.policies.policy import Policy, join_names, select_schedule_views
from secondlook.policies.reference import Reference
from secondlook.policies.schedule import (
    FRONTIER_MARGINS,
    Schedule,
    check_adaptive_method,
    check_confidence_range,
    check_counts,
    fit_schedule,
)
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.tables import format_class

Adaptive = bool | Schedule
"""Whether to look at an image again only while its decision is open, or the schedule for this."""
CertifiedGroups = str | Mapping[str, Sequence[str | int]] | Sequence[object] | Array | None
"""Groups for `certify`: "class", classes by the name of their group, or one label per image."""
Risks = float | Mapping[Any, float]
"""One risk for all images or groups, or the risk of each group by name or value."""
OTHER_GROUPS = "*"
"""Key for the risk of all groups that a mapping does not name."""
EXTERNAL = "external"
"""Method of a policy whose confidences were computed elsewhere."""
MIN_REFERENCE_IMAGES = 10
"""Smallest number of calibration images for a reference."""
MIN_EXAMPLES = 20
"""Smallest number of example unknown images."""
PLANNED_COVERAGE = 0.5
"""Coverage to plan a schedule for if the error rate among tuning images exceeds the risk at any coverage."""


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
    unknown: Predictions | None = None,
    unknown_budget: float | None = None,
    **options: object,
) -> Policy:
    """Return the policy with the largest coverage whose error rate among accepted images is at most `risk`.

    The guarantee holds for every classifier, confidence and distribution, with probability 1 - `delta` over the draw of
    the labeled images (proof in docs/background/proofs.md). If nothing can be guaranteed, the policy accepts nothing:
    `certified` is False and `shortfall` describes what is missing.

    Several methods share `delta` equally, so the guarantee holds for the one with the largest coverage. A method,
    schedule or limit of familiarity is fitted on images that are set apart and certified on the others; by default a
    quarter is set apart, at most 1,000. With `groups`, every group has its own threshold, and all guarantees hold
    jointly with probability 1 - `delta`.

    A calibration on the predictions of a run is recorded in the run, even if it certifies nothing. A later one on the
    same images warns of the joint probability that a guarantee fails.

    Parameters
    ----------
    preds
        Predictions with labels, for images that were not used to choose views, method or risk. Each image must be an
        independent draw, or a copy of another image that is listed in `duplicates`.
    method, options
        A confidence method, or a list of methods to choose from, and their options. By default 'blend', or 'msr' if
        there is only one view.
    risk
        Largest error rate among accepted images. With `groups`, it may be a mapping from groups (names or indices of
        classes, or labels) to risks; the key "*" means all other groups.
    delta
        Failure probability of the guarantee.
    groups
        "class" for one group per predicted class; or a mapping from names of groups to predicted classes (names or
        indices) that share a threshold and a guarantee, chosen without these labels; or one label per image, [N]. Such
        a label must also be known for new images, unlike the true class: `policy.accept(preds, groups=...)`.
    predict_from, top_k
        Whether classes are predicted from the image itself or from the mean over views, and the number of classes.
    duplicates
        Ids of images that are copies of others; `Source.find_duplicates` finds them. Only errors among the copies
        count, so the guarantee holds whether copies occur in the distribution or were added to the data.
    tuning
        Positions or a mask bool [N] of images that were used to choose views or methods, or are used to fit a method or
        a schedule; nothing is certified on them.
    adaptive
        Whether to look at an image again only while its decision is open. True fits a schedule with `tolerance` and
        `max_looks`; a schedule from `fit_schedule` must have been fitted to other images.
    unknown
        Predictions for example images of none of the classes. The familiarity and its limit are fitted to a random
        half. The other half determines `policy.unknown`: a bound on the fraction of unknown images like these that is
        accepted, with 95 % confidence.
    unknown_budget
        Largest fraction of tuning images that may be lost by rejecting unfamiliar images; by default 0.02 with
        `unknown`, otherwise unfamiliar images are not rejected.
    """
    if not preds.has_labels:
        fault = "a guarantee needs labeled images, but these predictions have no labels"
        raise DecisionError(fault, repair=Repair("pass {labels}", labels=ANY))
    Guarantee.check("delta", delta)
    grouping = _make_grouping(preds, groups, risk, predict_from, top_k, adaptive is not False)
    guarantee = grouping.guarantee(delta) if grouping else Guarantee.model_validate({"risk": risk, "delta": delta})
    examples = UnknownExamples.split(preds, unknown, unknown_budget)
    if unknown is not None and grouping and grouping.grouped_by == "label":
        fault = "has no groups, so it is not known which thresholds accept them"
        raise DecisionError(fault, argument="unknown", repair=Repair("omit it, or {groups}", groups="class"))
    candidates = score_candidates(
        *(preds, guarantee.risk, None, method, options, predict_from, top_k, tuning, adaptive, tolerance, max_looks),
        duplicates=duplicates,
        examples=examples,
    )
    share, policies = delta / len(candidates), []
    for one in candidates:
        if grouping is None:
            chosen = one.certify(guarantee.risk, share)
        else:
            _check_finite(one.confidence)
            chosen = _certify_groups(one, grouping, share)
        policies.append(one.complete(chosen, share))
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
    bound = None if examples is None or not policy.certified else examples.bound_accepted(policy)
    policy = policy.model_copy(update={"compared": compared, "reference": reference, "unknown": bound})
    others: list[object] = []
    if grouping and grouping.grouped_by == "label":
        others.append([grouping.names, sorted(grouping.members.items())])
    if policy.familiarity is not None:
        others.append(policy.familiarity)
    return _record_calibration(
        *(preds, policy, adaptive, others),
        tuning=tuning,
        duplicates=duplicates,
        methods=tuple(one.text for one in candidates),
        options=options,
        risk=guarantee.risk,
        delta=delta,
        tolerance=tolerance,
        max_looks=max_looks,
        class_risks=grouping.risks if grouping else None,
        class_groups=grouping.class_groups if grouping else None,
    )


def _record_calibration(
    preds: Predictions,
    policy: Policy,
    adaptive: Adaptive,
    others: Sequence[object] = (),
    *,
    tuning: object,
    duplicates: Collection[str],
    tolerance: float | None,
    max_looks: int | None,
    **terms: Any,
) -> Policy:
    """Record a calibration in the ledger of the predictions, if any; return the policy with the joint delta."""
    if preds.ledger is None:
        return policy
    if isinstance(adaptive, Schedule):
        others = [*others, adaptive]
        tolerance, max_looks = adaptive.tolerance, adaptive.max_looks
    apart = None if tuning is None else resolve_tuning(tuning, preds.n_images)
    source = (preds.members or (preds,))[0].origin
    assert source is not None, "stored predictions have a source"
    advice = "to choose the best of several methods, pass them together in {method}, or calibrate on other images"
    joint_delta = Ledger.record(
        preds.ledger,
        Repair(advice, method=ANY),
        images=source.digest,
        predictions=preds.entry,
        selection=Ledger.identify_selection(preds, apart, duplicates, *others),
        views=preds.views.texts,
        predict_from=policy.predict_from,
        top_k=policy.top_k,
        tolerance=tolerance if adaptive else None,
        max_looks=max_looks if adaptive else None,
        **terms,  # as requested: fitted numbers follow from the images
    )
    assert policy.calibration is not None, "certified policies have counts"
    calibration = policy.calibration.model_copy(update={"joint_delta": joint_delta})
    return policy.model_copy(update={"calibration": calibration})


def certify_confidence(
    correct: ArrayLike,
    confidence: ArrayLike,
    *,
    risk: float,
    delta: float = DEFAULT_DELTA,
    is_copy: BoolArray | None = None,
) -> Policy:
    """Return the policy of `certify` for a confidence computed elsewhere. bool [N], float64 [N]

    `is_copy` marks copies of other images. bool [N]
    """
    Guarantee.check("risk", risk)
    Guarantee.check("delta", delta)
    try:
        images = CountedImages.count(correct, confidence, is_copy)
    except MetricError as error:
        raise DecisionError.from_error(error) from None
    _check_finite(np.asarray(confidence))
    guarantee, ranking = Guarantee(risk=risk, delta=delta), images.ranking
    counts: dict[str, Any] = {"images": ranking.n_images, "duplicates": images.n_images - ranking.n_images}
    accepted = largest_certified_count(images, risk, delta)
    if accepted is not None:
        threshold, errors = find_cut(ranking, accepted)
        calibration = Calibration(accepted=accepted, errors=errors, **counts)
        return Policy(threshold=threshold, method=EXTERNAL, guarantee=guarantee, calibration=calibration)

    def can_certify(other: float | None, level: float) -> bool:
        return largest_certified_count(images, risk if other is None else other, level) is not None

    shortfall = describe_shortfall(guarantee, ranking, risk, delta, can_certify)
    nothing = Calibration(accepted=0, errors=0, **counts)
    return Policy(threshold=math.inf, method=EXTERNAL, calibration=nothing, shortfall=shortfall)


def threshold_for(
    preds: Predictions,
    method: str | None = None,
    *,
    coverage: float | None = None,
    average_risk: float | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    delta: float = DEFAULT_DELTA,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    duplicates: Collection[str] = (),
    tuning: object = None,
    adaptive: Adaptive = False,
    tolerance: float = Schedule.DEFAULT_TOLERANCE,
    max_looks: int | None = None,
    **options: object,
) -> Policy:
    """Return a policy for a coverage, an average error rate, or the least cost.

    `coverage` accepts at least this fraction of the images; labels are only needed to fit a method.

    `average_risk` accepts as many images as possible while the error rate among accepted images, averaged over draws of
    labeled images, is at most this value. It needs few labels (proof in docs/background/proofs.md), but in about 40 of
    100 draws the error rate is higher, so the policy is not `certified`.

    `cost_error` and `cost_review` choose the threshold with the least cost per labeled image, from the cost of an
    accepted error and of a rejected image. The policy is `certified`: with probability 1 - `delta`, the error rate
    among accepted images is at most `policy.guarantee.risk`. This bound holds for all thresholds at once, so you can
    try other costs on the same images. `policy.costs` has the costs, and the mean cost of a new image.

    The other arguments are those of `certify`.
    """
    costs = None if cost_error is None and cost_review is None else Costs.check(cost_error, cost_review)
    if sum(one is not None for one in (coverage, average_risk, costs)) > 1:
        raise DecisionError("give one of coverage, average_risk, and cost_error with cost_review.")
    if costs is not None or average_risk is not None:
        if costs is None:
            Guarantee.check("average_risk", average_risk or 0.0)
        Guarantee.check("delta", delta)
        if not preds.has_labels:
            what = "an average risk" if costs is None else "the least cost"
            fault = f"{what} needs labeled images, but these predictions have no labels"
            raise DecisionError(fault, repair=Repair("pass {labels}", labels=ANY))
    elif not is_number(coverage) or not 0 < coverage <= 1:
        fault = "is not a fraction of images; expected a number in (0, 1], such as 0.8"
        raise DecisionError(fault, argument="coverage", value=coverage)
    planned = average_risk if costs is None else costs.break_even
    (scored,) = score_candidates(
        *(preds, planned, coverage, method, options, predict_from, top_k, tuning, adaptive, tolerance, max_looks),
        duplicates=duplicates,
    )
    if costs is not None:
        chosen = _choose_least_cost(scored, costs, delta)
    else:
        chosen = _choose_on_average(scored, average_risk) if coverage is None else _choose_coverage(scored, coverage)
    policy = scored.complete(chosen, delta)
    policy = policy.model_copy(update={"reference": scored.describe_reference(chosen.threshold)})
    if costs is None:
        return policy
    return _record_calibration(
        *(preds, policy, adaptive),
        tuning=tuning,
        duplicates=duplicates,
        methods=(scored.text,),
        options=options,
        risk=None,
        delta=delta,
        tolerance=tolerance,
        max_looks=max_looks,
    )


def _choose_least_cost(scored: "ScoredImages", costs: Costs, delta: float) -> Policy:
    """Return the threshold with the least cost, and a bound on its error rate that holds for every threshold."""
    _check_finite(scored.confidence)
    correct = scored.correct()
    images = CountedImages.count(correct, scored.confidence, scored.is_copy)
    ranking = images.ranking
    best = costs.choose(ranking)
    if best is None:
        rate = (
            f"at least {100 * float(np.min(ranking.errors / ranking.accepted)):.3g} % of the accepted images are wrong"
        )
        fault = f"at every threshold {rate}, so reviewing all images costs less than accepting any"
        raise DecisionError(fault, repair="review all images, or improve the classifier")
    counts: dict[str, Any] = {"accepted": int(ranking.accepted[best]), "errors": int(ranking.errors[best])}
    risk = bound_risk(**counts, n_images=images.n_images, delta=delta)
    copies = images.n_images - ranking.n_images
    counted = ~(scored.is_copy & correct)
    counted[0] |= not counted.any()  # like `CountedImages`
    return Policy(
        threshold=float(ranking.confidences[best]),
        guarantee=Guarantee(risk=risk, delta=delta) if risk < 1 else None,
        calibration=Calibration(images=ranking.n_images, duplicates=copies, **counts),
        costs=costs.estimate(correct[counted], scored.confidence[counted]),
    )


def _choose_coverage(scored: "ScoredImages", coverage: float) -> Policy:
    """Return the threshold that accepts at least this fraction of the images."""
    threshold = _find_threshold(scored.confidence, coverage)
    accepted = scored.confidence >= threshold
    errors = int(np.sum(accepted & ~scored.correct())) if scored.preds.has_labels else None
    calibration = Calibration(images=len(accepted), accepted=int(np.sum(accepted)), errors=errors)
    return Policy(threshold=threshold, calibration=calibration)


def _choose_on_average(scored: "ScoredImages", risk: float | None) -> Policy:
    """Return the lowest threshold at which (errors + 1) / (accepted + 1) is at most `risk`."""
    assert risk is not None, "either a risk or a coverage is given"
    _check_finite(scored.confidence)
    images = CountedImages.count(scored.correct(), scored.confidence, scored.is_copy)
    ranking = images.ranking
    passing = np.flatnonzero(ranking.errors + 1 <= risk * (ranking.accepted + 1))
    if not len(passing):
        rate = f"an error rate of {100 * risk:g} % on average"
        fault = f"no threshold on these {ranking.n_images:,} images has {rate}, which needs at least"
        fault += f" {math.ceil(1 / risk) - 1:,} accepted images without an error"
        raise DecisionError(fault, repair="use more labeled images, or a larger risk")
    last = passing[-1]
    counts: dict[str, Any] = {"accepted": int(ranking.accepted[last]), "errors": int(ranking.errors[last])}
    copies = images.n_images - ranking.n_images
    calibration = Calibration(images=ranking.n_images, duplicates=copies, **counts)
    return Policy(threshold=float(ranking.confidences[last]), average_risk=risk, calibration=calibration)


def _complete_best(policies: Sequence[Policy], best: int, guarantee: Guarantee) -> Policy:
    """Return the best policy, with the guarantee or shortfall of the choice; all policies had an equal share of delta.

    With probability 1 - delta, all guarantees hold at once, so the choice may depend on the labeled images.
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
    """Raise an error for a confidence that cannot be a threshold. [N]"""
    for index in np.flatnonzero(~np.isfinite(confidence)):
        value = float(confidence[index])
        raise DecisionError(f"confidence is {value} at index {index}; expected a finite number, so fix the image.")


# --- Groups of images, each with its own risk and threshold ---


@dataclass(frozen=True, eq=False)
class _Grouping:
    """The group of each image, and the risk of each group."""

    grouped_by: GroupedBy | Literal["classes"]
    names: tuple[str, ...]
    values: tuple[object, ...]
    """Identifier of each group: the index of a class, or a label."""
    risks: tuple[float, ...]
    members: Mapping[str, int]
    """Group of each image, by id."""
    of_classes: Sequence[int] = ()
    """Group of each class, if classes share groups."""

    @property
    def class_groups(self) -> dict[str, tuple[int, ...]] | None:
        """The classes of each group, by its name; None if no classes share groups."""
        if self.grouped_by != "classes":
            return None
        places = np.array(self.of_classes)
        return {name: tuple(np.flatnonzero(places == place).tolist()) for place, name in enumerate(self.names)}

    def guarantee(self, delta: float) -> Guarantee:
        """Return the guarantee for all groups."""
        largest = max(self.risks)
        smallest = None if min(self.risks) == largest else min(self.risks)
        return Guarantee(risk=largest, delta=delta, grouped_by=self.grouped_by, smallest_risk=smallest)


def _make_grouping(
    preds: Predictions, groups: CertifiedGroups, risk: Risks, predict_from: PredictFrom, top_k: int, is_adaptive: bool
) -> _Grouping | None:
    """Return the groups of images with their risks; None for one risk of all images."""
    if groups is None:
        if isinstance(risk, Mapping):
            repair = Repair("pass {groups}", groups=ANY)
            raise DecisionError("has risks of groups, but there are no groups", argument="risk", repair=repair)
        Guarantee.check("risk", risk)
        return None
    if is_adaptive:
        repair = Repair("omit it, or {groups}", groups=ANY)
        raise DecisionError("needs one threshold, but groups have several", argument="adaptive", repair=repair)
    grouped_by: GroupedBy | Literal["classes"] = "label"
    of_classes: list[int] = []
    if isinstance(groups, Mapping) or (isinstance(groups, str) and groups == "class"):
        grouped_by = "class"
        members = preds.predicted(predict_from, top_k).reshape(preds.n_images, -1)[:, 0]
        values: tuple[object, ...] = tuple(range(preds.n_classes))
        names = tuple(format_class(preds.class_names, index) for index in range(preds.n_classes))
        if isinstance(groups, Mapping):
            grouped_by = "classes"
            names, of_classes = _join_classes(groups, names)
            members = np.array(of_classes)[members]
            own = Counter(of_classes)
            values = tuple(of_classes.index(place) if own[place] == 1 else name for place, name in enumerate(names))
    else:
        try:
            by_name = select_groups(groups, preds.n_images, np.arange(preds.n_images))
        except MetricError as error:
            raise DecisionError.from_error(error) from None
        assert isinstance(by_name, Mapping), "groups are classes by name"
        (labels,) = by_name.values()
        found, members = np.unique(labels, return_inverse=True)
        values = tuple(found.tolist())
        names = tuple(map(str, values))
    risks = _resolve_risks(risk, "class" if grouped_by == "class" else "group", names, values)
    for name, value in zip(names, risks, strict=True):
        Guarantee.check("risk", value, f"of {name!r} " if isinstance(risk, Mapping) else "")
    return _Grouping(grouped_by, names, values, risks, dict(zip(preds.ids, members.tolist(), strict=True)), of_classes)


def _join_classes(
    groups: Mapping[str, Sequence[str | int]], class_names: tuple[str, ...]
) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of groups, and the group of each class; each other class is a separate group."""
    of_class: dict[str, str] = {}
    for group, classes in groups.items():
        for given in (classes,) if isinstance(classes, str) else classes:
            name = class_names[given] if isinstance(given, int) and 0 <= given < len(class_names) else given
            if name not in class_names:
                known = f"known classes: {join_names(class_names)}.{did_you_mean(str(given), class_names)}"
                raise DecisionError(f"group {group!r} has {given!r}, which is not a class; {known}")
            if name in of_class:
                raise DecisionError(f"class {name!r} is in {of_class[name]!r} and in {group!r}; keep it in one group.")
            of_class[str(name)] = str(group)
    found = [of_class.get(name, name) for name in class_names]
    names = tuple(dict.fromkeys(found))
    if overlapping := set(of_class.values()) & (set(class_names) - set(of_class)):
        raise DecisionError(f"group {min(overlapping)!r} has the name of a class outside the group; rename the group.")
    return names, [names.index(name) for name in found]


def _resolve_risks(risk: Risks, noun: str, names: tuple[str, ...], values: tuple[object, ...]) -> tuple[float, ...]:
    """Return the risk of each group; keys of a mapping are names or values."""
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise DecisionError(f"duplicate group {name!r} ({times} times); group names must be unique, so rename them.")
    if not isinstance(risk, Mapping):
        return (risk,) * len(names)
    for key in risk:
        if key not in names and key not in values and key != OTHER_GROUPS:
            fault = f"names {key!r}, which is not a {noun}; known: {join_names(names)}.{did_you_mean(str(key), names)}"
            raise DecisionError(fault, argument="risk")
    groups = zip(names, values, strict=True)
    keys = [[key for key in (*group, OTHER_GROUPS) if key in risk] for group in groups]
    missing = [name for name, found in zip(names, keys, strict=True) if not found]
    if missing:
        others = f"name every {noun}, or set the risk of the others with the key {OTHER_GROUPS!r}"
        raise DecisionError(f"has no risk for {join_names(missing)}; {others}", argument="risk")
    return tuple(risk[found[0]] for found in keys)


def _certify_groups(scored: "ScoredImages", grouping: _Grouping, delta: float) -> Policy:
    """Return the policy with a threshold for each group and a joint guarantee."""
    members, correct = np.array([grouping.members[id_] for id_ in scored.preds.ids]), scored.correct()
    counted = [
        CountedImages.count(correct[own], scored.confidence[own], scored.is_copy[own]) if own.any() else None
        for own in (scored.is_familiar & (members == index) for index in range(len(grouping.names)))
    ]
    unfamiliar = np.bincount(members[scored.is_rejected], minlength=len(grouping.names)).tolist()
    counts = find_joint_counts(counted, grouping.risks, delta)
    rankings = [None if images is None else images.ranking for images in counted]
    # For a group with too few images, report an equal share.
    share = delta / len(rankings)
    known_groups = zip(grouping.names, grouping.values, grouping.risks, rankings, counts, unfamiliar, strict=True)
    groups = tuple(_describe_group(*group, share=share) for group in known_groups)
    accepted, errors = sum(group.accepted for group in groups), sum(group.errors for group in groups)
    n_counted = sum(group.images for group in groups)
    left_out = len(members) - n_counted
    calibration = Calibration(images=n_counted, accepted=accepted, errors=errors, duplicates=left_out)
    threshold, guarantee = min(group.threshold for group in groups), grouping.guarantee(delta)
    kept = _split_by_class(groups, grouping.of_classes, scored) if grouping.of_classes else groups
    grouped_by: GroupedBy = "label" if grouping.grouped_by == "label" else "class"
    policy = Policy(threshold=threshold, calibration=calibration, grouped_by=grouped_by, groups=kept)
    if math.isfinite(threshold):
        return policy.model_copy(update={"guarantee": guarantee})

    def can_certify(risk: float | None, delta: float) -> bool:
        return any(find_joint_counts(counted, grouping.risks if risk is None else [risk] * len(groups), delta))

    # The group that needs the fewest additional images.
    group, ranking = min(
        ((group, ranking) for group, ranking in zip(groups, rankings, strict=True) if ranking is not None),
        key=lambda one: math.inf if one[0].additional_images is None else one[0].additional_images,
    )
    shortfall = describe_shortfall(guarantee, ranking, group.risk, share, can_certify, group.name)
    typical = int(np.median([group.images for group in groups]))
    needs = {"groups": len(groups), "images_needed": count_without_errors(group.risk, share) + 1}
    shortfall = shortfall.model_copy(update={**needs, "median_images": typical})
    return policy.model_copy(update={"shortfall": shortfall})


def _split_by_class(
    groups: Sequence[GroupThreshold], of_classes: Sequence[int], scored: "ScoredImages"
) -> tuple[GroupThreshold, ...]:
    """Return the threshold of each class, which may be that of its group, with the counts of the class."""
    predicted, correct = scored.settings.find_first_classes(scored.preds), scored.correct()
    n_classes = Counter(of_classes)
    thresholds = np.array([group.threshold for group in groups])[np.array(of_classes)]
    counts = ~(scored.is_copy & correct)
    accepts = counts & scored.is_familiar & (scored.confidence >= thresholds[predicted])
    images, accepted, errors = (
        np.bincount(predicted[chosen], minlength=len(of_classes)).tolist()
        for chosen in (counts, accepts, accepts & ~correct)
    )
    return tuple(
        groups[place].model_copy(
            update={
                "name": format_class(scored.preds.class_names, index),
                "value": index,
                "images": images[index],
                "accepted": accepted[index],
                "errors": errors[index],
                "shared_by": groups[place].name if n_classes[place] > 1 else None,
            }
        )
        for index, place in enumerate(of_classes)
    )


def _describe_group(
    name: str, value: object, risk: float, ranking: Ranking | None, count: int | None, unfamiliar: int, *, share: float
) -> GroupThreshold:
    """Return the threshold of a group; `share` is the delta for estimates of the number of needed images."""
    n_images = unfamiliar + (0 if ranking is None else ranking.n_images)
    known: dict[str, Any] = {"threshold": math.inf, "accepted": 0, "errors": 0}
    if ranking is None:
        known["additional_images"] = count_without_errors(risk, share) + 1
    elif count is None:
        known["additional_images"] = estimate_prospect(ranking, risk, share)[1]
    else:
        threshold, errors = find_cut(ranking, count)
        known = {"threshold": threshold, "accepted": count, "errors": errors}
    return GroupThreshold(name=name, value=value, risk=risk, images=n_images, **known)


# --- The frontier of adaptive looking: certified coverage against the number of looks ---


class CertifiedPoint(NamedTuple):
    """Cost and coverage of one margin on the calibration images."""

    margin: float
    looks: float
    """Mean number of looks; on the tuning images if nothing can be certified."""
    coverage: float
    """Certified coverage; 0 if nothing can be certified."""
    differing: float
    """Fraction of images whose decision differs from that with all looks."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """Certified coverage against mean looks, for margins from one look to all looks.

    Each point is certified as if it were the only one, so choose among them on other images.
    """

    schedule: Schedule
    """The schedule with the margin of the default tolerance."""
    policy: Policy
    """The adaptive policy with this schedule; it may not be certified."""
    points: tuple[CertifiedPoint, ...]
    """By increasing margin, including points that certify nothing."""
    all_looks: CertifiedPoint

    @property
    def chosen(self) -> CertifiedPoint:
        """The point of the default tolerance."""
        return next(point for point in self.points if point.margin == self.schedule.margin)

    @property
    def certified_points(self) -> tuple[CertifiedPoint, ...]:
        """The points that certify something, without repeats, from few looks to all."""
        # Keep the last of equal points: the chosen one, or all looks.
        found = (*self.points, self.all_looks, self.chosen)
        return tuple(sorted({(point.looks, point.coverage): point for point in found if point.coverage}.values()))

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
        Guarantee.check("risk", risk)
        Guarantee.check("delta", delta)
        (scored,) = score_candidates(
            preds, risk, None, method, options, predict_from, top_k, tuning, True, duplicates=duplicates
        )
        chosen = scored.schedule
        assert chosen is not None, "looking is adaptive"
        expected = {point.margin: point.looks for point in chosen.frontier}
        policies, points = {}, []
        for margin in sorted({*FRONTIER_MARGINS, chosen.margin}):
            schedule = chosen.model_copy(update={"margin": margin})
            changed = replace(scored, schedule=schedule, confidence=schedule.confidence(scored.running))
            policies[margin] = changed.complete(changed.certify(risk, delta), delta)
            counts = policies[margin].calibration
            assert counts is not None, "certify_confidence sets the counts"
            differing = (counts.differing or 0) / counts.images
            points.append(CertifiedPoint(margin, counts.mean_looks or expected[margin], counts.coverage, differing))
        full = replace(scored, schedule=None, confidence=scored.running[:, -1]).certify(risk, delta)
        all_looks = CertifiedPoint(math.inf, chosen.full_looks, full.coverage, 0.0)
        return cls(chosen, policies[chosen.margin], tuple(points), all_looks)


# --- Images to choose a threshold on ---


@dataclass(frozen=True, eq=False)
class ScoredImages:
    """The confidence of N images to choose a threshold on; with a schedule, also the values behind it."""

    text: str
    """The method as given, with its options."""
    settings: Policy
    """The policy without its threshold."""
    preds: Predictions
    tuning: int
    """Number of images set apart, not included here."""
    is_copy: BoolArray
    """Whether each image is a copy of another. bool [N]"""
    confidence: Float64Array
    """With a schedule, the largest threshold at which each image is accepted. float64 [N]"""
    familiarity: Float64Array | None = None
    """None if the policy has no limit for it. float64 [N]"""
    schedule: Schedule | None = None
    running: Float64Array = field(default_factory=lambda: np.empty((0, 0)))
    """Confidence after 1, 2, ... looks in the order of the schedule, up to all V looks. float64 [N, V]"""
    predicted: IntArray = field(default_factory=lambda: np.empty((0, 0, 0), dtype=np.int64))
    """The top-k classes after 1, 2, ... looks, int64 [N, V, k]; or [N, 1, k] if they depend on the image alone."""

    def select(self, images: IntArray) -> Self:
        """Return the images at some positions."""
        chosen = self.preds.select(images=images)
        return replace(self, preds=chosen, is_copy=self.is_copy[images], confidence=self.confidence[images])

    def adapt(self, schedule: Schedule) -> Self:
        """Return these images with the confidence for adaptive decisions."""
        settings, preds = self.settings, self.preds
        check_adaptive_method(settings.method, settings.options)
        if schedule.method != settings.method:
            fault = f"the schedule was fitted to method {schedule.method!r}, got {settings.method!r}"
            raise DecisionError(fault, repair="fit another schedule")
        select_schedule_views(preds, schedule)
        if schedule.full_looks != preds.n_views:
            fault = f"the schedule was fitted to {schedule.full_looks} views, got predictions for {preds.n_views}"
            raise DecisionError(fault, repair="select the views of the schedule, or fit another schedule")
        texts = [*schedule.views, *(view for view in preds.views.texts if view not in schedule.views)]
        running = settings.compiled.running(preds.select(views=texts))
        check_confidence_range(running, settings.method)
        counts = range(1, len(texts) + 1) if settings.predict_from == "views" else (1,)
        seen = (preds.select(views=texts[:count]) for count in counts)
        predicted = [one.predicted(settings.predict_from, settings.top_k).reshape(len(one), -1) for one in seen]
        return replace(
            self,
            confidence=schedule.confidence(running),
            schedule=schedule,
            running=running,
            predicted=np.stack(predicted, axis=1),
        )

    def correct(self) -> BoolArray:
        """Return which images count as correct. bool [N]

        Classes predicted from the views so far may depend on the threshold. An image counts as correct only if it is
        correct after every number of looks at which some threshold accepts it.
        """
        if self.schedule is None or self.settings.predict_from == "image":
            return self.preds.correct(self.settings.predict_from, self.settings.top_k)
        correct = np.any(self.predicted == self.preds.labels[:, None, None], axis=2)
        accepting = self.schedule.find_accepting_looks(self.running)
        result: BoolArray = (correct[:, : accepting.shape[1]] | ~accepting).all(axis=1)
        return result

    @cached_property
    def is_familiar(self) -> BoolArray:
        """Whether each image may be accepted; True without a limit of familiarity. bool [N]"""
        familiar = self.settings.is_familiar(self.familiarity)
        return np.ones(self.preds.n_images, dtype=np.bool_) if familiar is None else familiar

    @cached_property
    def is_rejected(self) -> BoolArray:
        """Whether each image is rejected at any threshold and counted; correct copies are not counted. bool [N]"""
        return ~self.is_familiar & ~(self.is_copy & self.correct())

    def certify(self, risk: float, delta: float) -> Policy:
        """Return the threshold with the largest certified coverage on these images.

        The limit of familiarity was fixed before. The familiar images are therefore independent draws, and the
        certified rate is the error rate among accepted images.
        """
        familiar = self.is_familiar
        arrays = (self.correct()[familiar], self.confidence[familiar])
        chosen = certify_confidence(*arrays, risk=risk, delta=delta, is_copy=self.is_copy[familiar])
        counts = chosen.calibration
        assert counts is not None, "certify_confidence sets the counts"
        images = counts.images + int(self.is_rejected.sum())
        added = {"images": images, "duplicates": len(familiar) - images}
        return chosen.model_copy(update={"calibration": counts.model_copy(update=added)})

    def look(self, schedule: Schedule, threshold: float) -> tuple[IntArray, Float64Array]:
        """Return the number of looks at each image, int64 [N], and the confidence after them, float64 [N]."""
        return schedule.look(self.running, threshold, self.is_familiar)

    def complete(self, chosen: Policy, delta: float) -> Policy:
        """Return the settings with a chosen threshold and the schedule."""
        names = ("threshold", "guarantee", "average_risk", "costs", "shortfall", "grouped_by", "groups")
        update: dict[str, Any] = {name: getattr(chosen, name) for name in names}
        known: dict[str, Any] = {"tuning": self.tuning}
        if self.schedule is not None and math.isfinite(chosen.threshold):
            known |= self._count_looks(self.schedule, chosen.threshold, delta)
            update |= {"schedule": self.schedule, "views": self.schedule.views}
        if self.preds.origin is not None:
            known |= {"data": self.preds.origin.data, "digest": self.preds.origin.digest}
        assert chosen.calibration is not None, "a chosen threshold has counts"
        update["calibration"] = chosen.calibration.model_copy(update=known)
        return self.settings.model_copy(update=update)

    def _count_looks(self, schedule: Schedule, threshold: float, delta: float) -> dict[str, float]:
        """Return the mean looks at a threshold, and a bound on differing decisions, for the calibration."""
        looks, _ = self.look(schedule, threshold)
        accepted, final = (
            self.is_familiar & (values >= threshold) for values in (self.confidence, self.running[:, -1])
        )
        # After an early stop, the class of an accepted image may also differ.
        place = np.minimum(looks, self.predicted.shape[1]) - 1
        stopped = np.take_along_axis(self.predicted, place[:, None, None], axis=1)[:, 0]
        is_other_class = (stopped != self.predicted[:, -1]).any(axis=1)
        differing = int(np.sum((accepted != final) | (accepted & is_other_class)))
        return {
            "mean_looks": float(looks.mean()),
            "differing": differing,
            "differing_bound": bound_selected(differing, len(looks) - 1, len(looks), delta),
            "differing_delta": delta,
        }

    @cached_property
    def look_statistics(self) -> tuple[Float64Array, Float64Array]:
        """The probability of the predicted class after the first look, and the disagreement. float64 [N] each"""
        return compute_look_statistics(self.preds, self.settings.top_k)

    def describe_reference(self, threshold: float, methods: int = 1) -> Reference | None:
        """Return the reference at a threshold; None without a threshold, or for few images."""
        if not math.isfinite(threshold) or self.preds.n_images < MIN_REFERENCE_IMAGES:
            return None
        first_look, disagreement = self.look_statistics
        confidence, compared = self.confidence, disagreement if self.preds.n_outputs > 1 else None
        if self.schedule is not None:
            # The number of looks depends on the threshold, hence on these images, so tests must not use it.
            (_, confidence), compared = self.look(self.schedule, threshold), None
        wrong = ~self.correct() if self.preds.has_labels else None
        return Reference.make(confidence, first_look, compared, wrong, self.familiarity, methods=methods)


def score_candidates(
    preds: Predictions,
    risk: float | None,
    coverage: float | None,
    method: str | Sequence[str] | None,
    options: Mapping[str, object],
    predict_from: PredictFrom,
    top_k: int,
    tuning: object,
    adaptive: Adaptive,
    tolerance: float = Schedule.DEFAULT_TOLERANCE,
    max_looks: int | None = None,
    *,
    duplicates: Collection[str] = (),
    examples: "UnknownExamples | None" = None,
) -> list[ScoredImages]:
    """Fit methods on images set apart, and compute their confidence for the other images.

    A schedule and a limit of familiarity are fitted for a risk or a coverage; the other arguments are those of
    `certify`.
    """
    given: object = adaptive  # callers without a type checker may pass anything
    if not isinstance(given, bool | Schedule):
        raise DecisionError("is invalid; expected True, False or a schedule", argument="adaptive", value=given)
    warn_about_setup(preds)
    names = (default_method(preds),) if method is None else as_methods(method)
    if adaptive is True:
        tuning = tuning_positions(preds.n_images) if tuning is None else tuning
        # First, since the default method of one view cannot be adaptive.
        check_counts(preds.n_views, len(resolve_tuning(tuning, preds.n_images)))
        for text in names:
            check_adaptive_method(text, options)
    if examples is not None and tuning is None:
        tuning = tuning_positions(preds.n_images)
    fitted = FittedMethods.fit(
        *(preds, names),
        tuning=tuning,
        predict_from=predict_from,
        top_k=top_k,
        duplicates=duplicates,
        options=options,
    )
    judged, scored = fitted.select_judged(preds), []
    is_copy = np.isin(judged.ids, list(duplicates)) if duplicates else np.zeros(judged.n_images, dtype=np.bool_)
    for text, all_options in fitted.options.items():
        settings = Policy(
            threshold=math.inf,
            method=compile_method(text).name,
            options=all_options,
            predict_from=predict_from,
            top_k=top_k,
            classifier=None if preds.origin is None else preds.origin.classifier,
            views=preds.views.texts,
            class_names=preds.class_names,
        )
        settings.check_transfers()
        one = ScoredImages(text, settings, judged, len(fitted.tuning), is_copy, np.empty(0))
        schedule = adaptive
        if examples is not None and not len(fitted.fitting):
            repair = Repair("pass {tuning} with some of them", tuning=ANY)
            raise DecisionError("no images are set apart to choose the limit of familiarity", repair=repair)
        if schedule is True or examples is not None:
            apart = preds.select(images=fitted.fitting)
            on_tuning = replace(one, preds=apart, confidence=fitted.compute(apart, text))
            planned = settings.model_copy(update={"threshold": _plan_threshold(on_tuning, risk, coverage)})
            if schedule is True:
                schedule = fit_schedule(apart, planned, tolerance=tolerance, max_looks=max_looks)
            if examples is not None:
                one = examples.limit_familiarity(one, on_tuning, planned.threshold, schedule or None)
        one = one.adapt(schedule) if schedule else replace(one, confidence=fitted.compute(judged, text))
        scored.append(one)
    return scored


@dataclass(frozen=True, eq=False)
class UnknownExamples:
    """The basis for a limit of familiarity: a budget, and two halves of the example unknown images, if any."""

    budget: float
    choosing: Predictions | None = None
    judging: Predictions | None = None
    """The other half, not used to choose anything."""

    @classmethod
    def split(cls, preds: Predictions, unknown: Predictions | None, budget: float | None) -> Self | None:
        """Check the arguments of `certify`, and split the examples at random; None without a limit of familiarity."""
        if budget is None and unknown is None:
            return None
        budget = Familiarity.DEFAULT_BUDGET if budget is None else budget
        if not is_number(budget) or not 0 < budget < 1:
            expected = "is out of range; expected a fraction of the images in (0, 1), such as 0.02"
            raise DecisionError(expected, argument="unknown_budget", value=budget)
        if unknown is None:
            return cls(budget)
        try:
            preds.concatenate(unknown)
        except PredictionsError as error:
            raise DecisionError(f"does not match the predictions: {error}", argument="unknown") from None
        if unknown.n_images < MIN_EXAMPLES:
            fault = f"has {unknown.n_images} images; expected at least {MIN_EXAMPLES}, half of which give the bound"
            raise DecisionError(fault, argument="unknown")
        order = np.random.default_rng(0).permutation(unknown.n_images)
        choosing, judging = (unknown.select(images=np.sort(half)) for half in np.array_split(order, 2))
        return cls(budget, choosing, judging)

    def limit_familiarity(
        self, scored: ScoredImages, tuning: ScoredImages, threshold: float, schedule: Schedule | None
    ) -> ScoredImages:
        """Return scored images with a limit, chosen on accepted tuning images and examples."""

        def look(preds: Predictions, confidence: Float64Array) -> Candidates:
            return Candidates(preds if schedule is None else preds.select(views="identity"), confidence >= threshold)

        unknown, examples = None, self.choosing
        if examples is not None:
            unknown = look(examples, tuning.settings.compiled.confidence(examples))
        limit = Familiarity.choose(look(tuning.preds, tuning.confidence), unknown, self.budget)
        familiarity = limit.compute(scored.preds if schedule is None else scored.preds.select(views="identity"))
        if familiarity.max() < limit.limit:
            fault = "no labeled image is as familiar as the tuning images, so nothing can be certified"
            raise DecisionError(fault, repair="draw the tuning images from all images at random")
        settings = scored.settings.model_copy(update={"familiarity": limit})
        return replace(scored, settings=settings, familiarity=familiarity)

    def bound_accepted(self, policy: Policy) -> UnknownBound | None:
        """Return a bound on accepted images like the examples; None without examples."""
        if self.judging is None:
            return None
        data = "" if self.judging.origin is None else self.judging.origin.data
        return UnknownBound.count(policy.accept(self.judging), data)


def _plan_threshold(scored: ScoredImages, risk: float | None, coverage: float | None) -> float:
    """Return the lowest threshold with at most this error rate among accepted images, or for a coverage."""
    if risk is not None:
        ranking = rank(scored.correct(), scored.confidence)
        passing = np.flatnonzero(ranking.errors <= risk * ranking.accepted)
        if len(passing):
            return float(ranking.confidences[passing[-1]])
    return _find_threshold(scored.confidence, coverage or PLANNED_COVERAGE)


def _find_threshold(confidence: Float64Array, coverage: float) -> float:
    """Return the largest threshold that accepts at least this fraction of the images. float64 [N]"""
    ranking = rank(np.ones(len(confidence), dtype=np.bool_), confidence)
    return float(ranking.confidences[np.searchsorted(ranking.accepted, ranking.count_for_coverage(coverage))])


def as_methods(method: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or more names of methods as a tuple; raise an error for none or duplicates."""
    given: object = method  # callers without a type checker may pass anything
    methods = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not methods or not all(isinstance(name, str) for name in methods):
        fault = "is invalid; expected the name of a confidence method, such as 'blend', or a list"
        raise DecisionError(fault, argument="method", value=method)
    for name in methods:
        if methods.count(name) > 1:
            raise DecisionError(f"duplicate method {name!r}; list each method once, since the methods share delta.")
    return methods
