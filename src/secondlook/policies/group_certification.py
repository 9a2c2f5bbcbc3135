"""Thresholds for groups of images, each with its own risk, that are guaranteed jointly.

docs/policies.md has the procedure and its proof.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.errors import ANY, DecisionError, MetricError, Repair
from secondlook.evaluation import format_class, select_groups
from secondlook.metrics import Ranking, rank
from secondlook.policies.fixed_sequence import (
    FixedSequence,
    count_without_errors,
    describe_shortfall,
    estimate_prospect,
    find_cut,
)
from secondlook.policies.guarantee import Calibration, GroupedBy, GroupThreshold, Guarantee, check_probability
from secondlook.policies.policy import Policy, find_first_classes, join_names
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean

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
        largest = max(self.risks)
        smallest = None if min(self.risks) == largest else min(self.risks)
        return Guarantee(risk=largest, delta=delta, grouped_by=self.grouped_by, smallest_risk=smallest)


def make_grouping(
    preds: Predictions, groups: CertifiedGroups, risk: Risks, predict_from: PredictFrom, top_k: int, is_adaptive: bool
) -> Grouping | None:
    """Return the groups of images with their risks, None for one risk of all images, or raise an error."""
    if groups is None:
        if isinstance(risk, Mapping):
            repair = Repair("pass {groups}", groups=ANY)
            raise DecisionError("has risks of groups, but there are no groups", argument="risk", repair=repair)
        check_probability("risk", risk)
        return None
    if is_adaptive:
        repair = Repair("omit it, or {groups}", groups=ANY)
        raise DecisionError("needs one threshold, but groups have several", argument="adaptive", repair=repair)
    values: tuple[object, ...]
    grouped_by: GroupedBy
    if isinstance(groups, str) and groups == "class":
        grouped_by, members = "class", find_first_classes(preds, predict_from, top_k)
        values = tuple(range(preds.n_classes))
        names = tuple(format_class(preds.class_names, index) for index in range(preds.n_classes))
    else:
        if isinstance(groups, Mapping):
            raise DecisionError("is a mapping; expected 'class', or one label per image", argument="groups")
        try:
            by_name = select_groups(groups, preds.n_images, np.arange(preds.n_images))
        except MetricError as error:
            raise DecisionError.from_error(error) from None
        assert isinstance(by_name, Mapping), "labels have a name"
        (labels,) = by_name.values()
        found, members = np.unique(labels, return_inverse=True)
        grouped_by, values = "label", tuple(found.tolist())
        names = tuple(map(str, values))
    risks = _resolve_risks(risk, grouped_by, names, values)
    for name, value in zip(names, risks, strict=True):
        check_probability("risk", value, f"of {name!r} " if isinstance(risk, Mapping) else "")
    return Grouping(grouped_by, names, values, risks, dict(zip(preds.ids, members.tolist(), strict=True)))


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
            fault = f"names {key!r}, which is no {noun}; known: {join_names(names)}.{did_you_mean(str(key), names)}"
            raise DecisionError(fault, argument="risk")
    keys = zip(names, values, [OTHER_GROUPS] * len(names), strict=True)
    by_group = [[risk[key] for key in one if key in risk] for one in keys]
    missing = [repr(name) for name, found in zip(names, by_group, strict=True) if not found]
    if missing:
        others = f"name every {noun}, or give the others a risk with the key {OTHER_GROUPS!r}"
        raise DecisionError(f"has no risk for {join_names(missing)}; {others}", argument="risk")
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
        _describe_group(*group, share)
        for group in zip(grouping.names, grouping.values, grouping.risks, rankings, counts, strict=True)
    )
    calibration = Calibration(
        images=len(correct),
        accepted=sum(group.accepted for group in groups),
        errors=sum(group.errors for group in groups),
    )
    threshold, guarantee = min(group.threshold for group in groups), grouping.guarantee(delta)
    known: dict[str, Any] = {
        "threshold": threshold,
        "calibration": calibration,
        "grouped_by": grouping.grouped_by,
        "groups": groups,
    }
    if math.isfinite(threshold):
        return Policy(**known, guarantee=guarantee)

    def can_certify(risk: float | None, delta: float) -> bool:
        return any(find_joint_counts(rankings, grouping.risks if risk is None else [risk] * len(groups), delta))

    # The group that needs the fewest additional images.
    group, ranking = min(
        ((group, ranking) for group, ranking in zip(groups, rankings, strict=True) if ranking is not None),
        key=lambda one: math.inf if one[0].additional_images is None else one[0].additional_images,
    )
    shortfall = describe_shortfall(guarantee, ranking, group.risk, share, can_certify, group.name)
    return Policy(**known, shortfall=shortfall)


def find_joint_counts(rankings: Sequence[Ranking | None], risks: Sequence[float], delta: float) -> list[int | None]:
    """Return how many of the most confident images of each group may be accepted, jointly with probability 1 - delta.

    None where no number can be guaranteed. A group without images has no ranking. The order of the groups does not
    matter.
    """
    testable = _find_testable([0 if ranking is None else ranking.n_images for ranking in rankings], risks, delta)
    level = delta / max(len(testable), 1)
    sequences = {
        index: FixedSequence.plan(ranking, risks[index], level)
        for index, ranking in enumerate(rankings)
        if index in testable and ranking is not None
    }
    while True:
        results = {index: sequence.run(level) for index, sequence in sequences.items()}
        # Only the level that did not arrive at the last rank of its group can still certify something bad.
        needed = math.fsum(1 - finished for _, finished in results.values())
        if needed == 0 or delta / needed <= level:
            return [results[index][0] if index in results else None for index in range(len(rankings))]
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
    name: str, value: object, risk: float, ranking: Ranking | None, count: int | None, share: float
) -> GroupThreshold:
    """Return the threshold of a group; `share` is the level that estimates of needed images suppose."""
    known: dict[str, Any] = {"name": name, "value": value, "risk": risk}
    if ranking is None:
        known |= {"images": 0, "additional_images": count_without_errors(risk, share) + 1}
    elif count is None:
        known |= {"images": ranking.n_images, "additional_images": estimate_prospect(ranking, risk, share)[1]}
    else:
        threshold, errors = find_cut(ranking, count)
        return GroupThreshold(**known, images=ranking.n_images, threshold=threshold, accepted=count, errors=errors)
    return GroupThreshold(**known, threshold=math.inf, accepted=0, errors=0)
