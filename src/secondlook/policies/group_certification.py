"""Thresholds for groups of images, each with its own risk, that are guaranteed jointly.

docs/policies.md has the proof. All groups are tested at the same level. A group whose sequence of tests passes its
last rank needs the level that arrives there no more, and all are tested again with a larger one, until nothing changes.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.errors import ANY, DecisionError, MetricError, Repair
from secondlook.evaluation import select_groups
from secondlook.metrics import Ranking, rank
from secondlook.policies.fixed_sequence import (
    FixedSequence,
    count_without_errors,
    estimate_prospect,
    find_certifiable_delta,
    smallest_certifiable_risk,
)
from secondlook.policies.guarantee import (
    Calibration,
    GroupedBy,
    GroupThreshold,
    Guarantee,
    Shortfall,
    check_probability,
)
from secondlook.policies.policy import Policy, find_first_classes, join_names
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.tables import format_class

CertifiedGroups = str | Sequence[object] | Array | None
"""What `certify` accepts as groups: "class", or one label per image."""
Risks = float | Mapping[Any, float]
"""One risk for all images or groups, or the risk of each group by its name or its value."""
OTHER_GROUPS = "*"
"""Key of a mapping of risks for all groups that it does not name."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """The group of each image, and the risk of each group."""

    grouped_by: GroupedBy
    names: tuple[str, ...]
    values: tuple[object, ...]
    """What identifies each group: the index of a class, or a label."""
    risks: tuple[float, ...]
    members: Mapping[str, int]
    """Which group each image belongs to, by its id."""

    def guarantee(self, delta: float) -> Guarantee:
        """Return what is guaranteed about all groups."""
        smallest, largest = min(self.risks), max(self.risks)
        return Guarantee(
            risk=largest,
            delta=delta,
            grouped_by=self.grouped_by,
            smallest_risk=None if smallest == largest else smallest,
        )


def make_grouping(
    preds: Predictions,
    groups: CertifiedGroups,
    risk: Risks,
    predict_from: PredictFrom,
    top_k: int,
    *,
    is_adaptive: bool,
) -> Grouping | None:
    """Return the groups of images with their risks, None for one risk of all images, or raise an error."""
    if groups is None:
        if isinstance(risk, Mapping):
            raise DecisionError(
                "is a mapping of the risks of groups, but there are no groups",
                argument="risk",
                repair=Repair("pass {groups}", groups=ANY),
            )
        check_probability("risk", risk)
        return None
    if is_adaptive:
        raise DecisionError(
            "looks until one threshold decides, but groups have several",
            argument="adaptive",
            repair=Repair("omit it, or {groups}", groups=ANY),
        )
    values: tuple[object, ...]
    grouped_by: GroupedBy
    if isinstance(groups, str) and groups == "class":
        grouped_by, members = "class", find_first_classes(preds, predict_from, top_k)
        values = tuple(range(preds.n_classes))
        names = tuple(format_class(preds.class_names, index) for index in range(preds.n_classes))
    else:
        grouped_by, labels = "label", _check_labels(groups, preds.n_images)
        found, members = np.unique(labels, return_inverse=True)
        values = tuple(found.tolist())
        names = tuple(map(str, values))
    risks = _resolve_risks(risk, grouped_by, names, values)
    for name, value in zip(names, risks, strict=True):
        check_probability("risk", value, f"of {name!r} " if isinstance(risk, Mapping) else "")
    return Grouping(grouped_by, names, values, risks, dict(zip(preds.ids, members.tolist(), strict=True)))


def _check_labels(groups: CertifiedGroups, n_images: int) -> Array:
    """Return one label per image. [N]"""
    if isinstance(groups, Mapping):
        raise DecisionError("is a mapping; expected 'class', or one label per image", argument="groups")
    try:
        by_name = select_groups(groups, n_images, np.arange(n_images))
    except MetricError as error:
        raise DecisionError.from_error(error) from None
    assert isinstance(by_name, Mapping), "labels have a name"
    (labels,) = by_name.values()
    return np.asarray(labels)


def _resolve_risks(
    risk: Risks, grouped_by: GroupedBy, names: tuple[str, ...], values: tuple[object, ...]
) -> tuple[float, ...]:
    """Return the risk of each group, which a mapping may have under its name or its value."""
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise DecisionError(f"duplicate group {name!r} ({times} times); group names must be unique, so rename them.")
    if not isinstance(risk, Mapping):
        return (risk,) * len(names)
    noun = "class" if grouped_by == "class" else "group"
    for key in risk:
        if key not in names and key not in values and key != OTHER_GROUPS:
            raise DecisionError(
                f"names {key!r}, which is no {noun}; known: {join_names(names)}.{did_you_mean(str(key), names)}",
                argument="risk",
            )
    by_group = [
        [risk[key] for key in (name, value, OTHER_GROUPS) if key in risk]
        for name, value in zip(names, values, strict=True)
    ]
    missing = [repr(name) for name, found in zip(names, by_group, strict=True) if not found]
    if missing:
        raise DecisionError(
            f"has no risk for {join_names(missing)}; name every {noun}, or give the others a risk with the key "
            f"{OTHER_GROUPS!r}",
            argument="risk",
        )
    return tuple(found[0] for found in by_group)


def certify_groups(
    correct: BoolArray, confidence: Float64Array, ids: Sequence[str], grouping: Grouping, delta: float
) -> Policy:
    """Return the policy with a threshold for each group, all of which are guaranteed jointly. bool [N], float64 [N]"""
    members = np.array([grouping.members[id_] for id_ in ids])
    rankings = [
        rank(correct[chosen], confidence[chosen]) if chosen.any() else None
        for chosen in (members == index for index in range(len(grouping.names)))
    ]
    counts = find_joint_counts(rankings, grouping.risks, delta)
    # What a group with too few images would have had: an equal share.
    share = delta / len(rankings)
    groups = tuple(
        _describe_group(grouping, index, ranking, count, share)
        for index, (ranking, count) in enumerate(zip(rankings, counts, strict=True))
    )
    calibration = Calibration(
        images=len(correct),
        accepted=sum(group.accepted for group in groups),
        errors=sum(group.errors for group in groups),
    )
    threshold = min(group.threshold for group in groups)
    is_certified = math.isfinite(threshold)
    return Policy(
        threshold=threshold,
        guarantee=grouping.guarantee(delta) if is_certified else None,
        calibration=calibration,
        shortfall=None if is_certified else _describe_shortfall(grouping, groups, rankings, delta),
        grouped_by=grouping.grouped_by,
        groups=groups,
    )


def find_joint_counts(rankings: Sequence[Ranking | None], risks: Sequence[float], delta: float) -> list[int | None]:
    """Return how many of the most confident images of each group may be accepted, jointly with probability 1 - delta.

    None where no number can be guaranteed. A group without images has no ranking. The order of the groups does not
    matter.
    """
    sizes = [0 if ranking is None else ranking.n_images for ranking in rankings]
    testable = _find_testable(sizes, risks, delta)
    share = delta / max(len(testable), 1)
    sequences = {
        index: FixedSequence.plan(ranking, risks[index], share)
        for index, ranking in enumerate(rankings)
        if index in testable and ranking is not None
    }
    results, level = {}, share
    while True:
        results = {index: sequence.run(level) for index, sequence in sequences.items()}
        # Only the level that did not arrive at the last rank of its group can still certify something bad.
        needed = math.fsum(1 - result.finished for result in results.values())
        if needed == 0 or delta / needed <= level:
            return [results[index].largest if index in results else None for index in range(len(rankings))]
        level = delta / needed


def _find_testable(sizes: Sequence[int], risks: Sequence[float], delta: float) -> frozenset[int]:
    """Return as many groups as can pass at all if they share `delta` equally; it depends on their sizes alone.

    A group that could not pass without a single error would only take from the level of the others.
    """
    # The logarithm of the level that all images but one pass if none of them is wrong: a start and the rank after it.
    levels = [(max(size, 1) - 1) * math.log1p(-risk) for size, risk in zip(sizes, risks, strict=True)]
    ordered = [*sorted(levels), math.inf]
    for count in range(len(levels), 0, -1):
        hardest = ordered[count - 1]
        # Groups that need the same level are tested together or not at all, so that their order does not matter.
        if ordered[count] > hardest and hardest <= math.log(delta / count):
            return frozenset(index for index, level in enumerate(levels) if level <= hardest)
    return frozenset()


def _describe_group(
    grouping: Grouping, index: int, ranking: Ranking | None, count: int | None, share: float
) -> GroupThreshold:
    """Return the threshold of a group; `share` is the level that estimates of needed images suppose."""
    known: dict[str, Any] = {
        "name": grouping.names[index],
        "value": grouping.values[index],
        "risk": (risk := grouping.risks[index]),
        "images": 0 if ranking is None else ranking.n_images,
    }
    if ranking is not None and count is not None:
        tie = int(np.searchsorted(ranking.accepted, count))
        threshold, errors = float(ranking.confidences[tie]), int(ranking.errors[tie])
        return GroupThreshold(**known, threshold=threshold, accepted=count, errors=errors)
    more: int | None = count_without_errors(risk, share) + 1
    if ranking is not None:
        prospect = estimate_prospect(ranking, risk, share)
        more = None if prospect.needed is None else prospect.needed - ranking.n_images
    return GroupThreshold(**known, threshold=math.inf, accepted=0, errors=0, additional_images=more)


def _describe_shortfall(
    grouping: Grouping, groups: Sequence[GroupThreshold], rankings: Sequence[Ranking | None], delta: float
) -> Shortfall:
    """Return why no group has a threshold, for the group that needs the fewest additional images."""

    def count_needed(index: int) -> float:
        needed = groups[index].additional_images
        return math.inf if needed is None else needed

    closest = min((index for index, ranking in enumerate(rankings) if ranking is not None), key=count_needed)
    ranking, group = rankings[closest], groups[closest]
    assert ranking is not None, "groups without images were left out"
    prospect = estimate_prospect(ranking, group.risk, delta / len(groups))
    requested = grouping.guarantee(delta)

    def can_certify(risks: Sequence[float], delta: float) -> bool:
        return any(find_joint_counts(rankings, risks, delta))

    return Shortfall(
        requested=requested,
        smallest_risk=smallest_certifiable_risk(lambda risk: can_certify([risk] * len(groups), delta), requested.risk),
        additional_images=group.additional_images,
        larger_delta=find_certifiable_delta(lambda other: can_certify(grouping.risks, other), delta),
        closest=Calibration(images=ranking.n_images, accepted=prospect.accepted, errors=prospect.errors),
        group=group.name,
    )
