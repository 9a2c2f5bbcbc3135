"""Thresholds for groups that are guaranteed jointly: the procedure, the rules it makes, and how they decide."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.errors import DecisionError
from secondlook.estimators import confidence
from secondlook.metrics import Ranking, rank
from secondlook.policies import Guarantee, Policy, certify, largest_certified_count
from secondlook.policies.fixed_sequence import FixedSequence, compute_starts, find_joint_counts
from secondlook.predictions import Predictions

RISK, DELTA = 0.05, 0.2


@pytest.fixture(scope="module")
def named() -> Predictions:
    """2,000 images x 2 views x 3 classes, of which predictions of 'cat' are right more often."""
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=2000)
    margin = rng.gamma(2.0, np.where(labels == 1, 8.0, 2.5), size=2000)
    logits = rng.normal(size=(2000, 2, 3)) + 0.5 * rng.normal(size=(2000, 1, 3))
    logits[np.arange(2000), :, labels] += margin[:, None]
    return Predictions(logits=logits, views="identity hflip", labels=labels, class_names=["ant", "cat", "dog"])


# ------------------------------------------------------------------------------------------------------ the procedure


def reference_run(correct: list[bool], values: list[float], risk: float, starts: list[int], level: float) -> Any:
    """Return the largest certified rank, or None, and the starts whose shares arrive at the last rank."""
    order = sorted(range(len(values)), key=lambda image: (-values[image], correct[image]))
    held: list[int] = []
    largest, errors = None, 0
    for rank_, image in enumerate(order, start=1):
        errors += not correct[image]
        p_value = binom.cdf(errors, rank_, risk)
        if held:
            if p_value <= len(held) * level / len(starts) * (1 + 1e-12):
                if rank_ == len(order) or values[order[rank_]] < values[image]:
                    largest = rank_
            else:
                held = []
        if rank_ in starts and (held or p_value <= level / len(starts) * (1 + 1e-12)):
            held = [*held, rank_]
    return largest, len(held)


def reference_joint(groups: list[tuple[list[bool], list[float], float]], delta: float) -> list[int | None]:
    """Follow the procedure step by step, over groups of the given order."""
    best: set[int] = set()
    for size in range(len(groups), 0, -1):
        can_pass = {
            i for i, (correct, _, risk) in enumerate(groups) if (1 - risk) ** (len(correct) - 1) <= delta / size
        }
        if len(can_pass) >= size:
            # As many as possible, those that need the smallest level first; equal ones only together.
            needs = sorted((1 - groups[i][2]) ** (len(groups[i][0]) - 1) for i in can_pass)
            best = {i for i in can_pass if (1 - groups[i][2]) ** (len(groups[i][0]) - 1) <= needs[size - 1]}
            if len(best) == size:
                break
            best = set()
    level = delta / max(len(best), 1)
    starts = {i: compute_starts(len(groups[i][0]), groups[i][2], delta / len(best)) for i in best}
    while True:
        runs = {i: reference_run(*groups[i], starts[i], level) for i in best}
        needed = sum(1 - held / len(starts[i]) for i, (_, held) in runs.items())
        if needed <= 1e-12 or delta / needed <= level * (1 + 1e-12):
            return [runs[i][0] if i in best else None for i in range(len(groups))]
        level = delta / needed


@st.composite
def drawn_groups(draw: Callable[..., Any]) -> list[tuple[list[bool], list[float], float]]:
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        n, risk = draw(st.integers(2, 150)), draw(st.sampled_from([0.05, 0.1, 0.3]))
        rng, rate = np.random.default_rng(draw(st.integers(0, 10**6))), draw(st.sampled_from([0.0, 0.03, 0.1, 0.5]))
        levels = draw(st.sampled_from([4, 1000]))
        quantile = np.ceil(rng.random(n) * levels) / levels
        groups.append(((rng.random(n) >= rate * quantile).tolist(), (-quantile).tolist(), risk))
    return groups


@settings(max_examples=150, deadline=None)
@given(drawn_groups(), st.sampled_from([0.01, 0.1, 0.3]), st.randoms(use_true_random=False))
def test_reference_agrees_in_any_order_of_groups(groups: Any, delta: float, random: Any) -> None:
    counts = find_joint_counts([rank(correct, values) for correct, values, _ in groups], [g[2] for g in groups], delta)
    assert counts == reference_joint(groups, delta)
    order = list(range(len(groups)))
    random.shuffle(order)
    shuffled = [groups[place] for place in order]
    again = find_joint_counts([rank(*group[:2]) for group in shuffled], [group[2] for group in shuffled], delta)
    assert again == [counts[place] for place in order]


def test_one_group_is_certified_as_all_images_are() -> None:
    rng = np.random.default_rng(0)
    ranking = rank(rng.random(700) >= 0.1 * np.linspace(0, 1, 700), -np.arange(700.0))
    assert find_joint_counts([ranking], [RISK], 0.01) == [largest_certified_count(ranking, RISK, 0.01)]


def draw_ranking(rng: np.random.Generator, error_rate: Callable[[Any], Any], n: int) -> Ranking:
    quantile = rng.random(n)
    return rank(rng.random(n) >= error_rate(quantile), -quantile)


def is_bad(error_rate: Callable[[Any], Any], quantile: float) -> bool:
    """Whether the error rate of all images up to a quantile exceeds the risk."""
    return float(np.mean(error_rate(np.linspace(0, quantile, 20_001)))) > RISK + 1e-6


def rise_steeply(quantile: Any) -> Any:
    """Return error rates whose mean up to a quantile is 0.08 u^6, which exceeds the risk at the end."""
    return 0.56 * quantile**6


def never_err(quantile: Any) -> Any:
    return 0 * quantile


WORLDS: dict[str, list[Callable[[Any], Any]]] = {
    "one hard": [never_err, never_err, rise_steeply],
    "all hard": [rise_steeply] * 3,
    "flat": [lambda u: np.full_like(u, 0.0503)] * 3,
    "good after a bad beginning": [lambda u: np.where(u < 0.3, 0.09, 0.0), never_err, rise_steeply],
    "bad in the middle": [lambda u: np.where((u > 0.3) & (u < 0.6), 0.12, 0.01), lambda u: 0.01 + 0 * u, rise_steeply],
}


@pytest.mark.parametrize("name", WORLDS)
def test_joint_guarantee_fails_in_at_most_delta_of_draws(name: str) -> None:
    world, rng, draws = WORLDS[name], np.random.default_rng(1), 800
    failures = 0
    for _ in range(draws):
        rankings = [draw_ranking(rng, error_rate, 400) for error_rate in world]
        counts = find_joint_counts(rankings, [RISK] * len(world), DELTA)
        failures += any(
            count is not None and is_bad(error_rate, -float(ranking.confidences[count - 1]))
            for error_rate, ranking, count in zip(world, rankings, counts, strict=True)
        )
    # By chance alone, one test in ten thousand may fail.
    assert failures <= binom.ppf(1 - 1e-4, draws, DELTA)
    if name == "one hard":
        assert failures > 0.5 * DELTA * draws, "the level of the easy groups is used, not lost"


def test_whole_delta_for_each_group_would_break_the_guarantee() -> None:
    """So the simulation above can tell a procedure that is wrong."""
    rng, draws = np.random.default_rng(1), 300
    broken = sum(
        any(largest_certified_count(draw_ranking(rng, rise_steeply, 400), RISK, DELTA) for _ in range(3))
        for _ in range(draws)
    )
    assert broken > binom.ppf(1 - 1e-4, draws, DELTA)


def test_groups_without_errors_leave_the_whole_delta_to_the_others() -> None:
    rng = np.random.default_rng(4)
    easy = rank(np.ones(400, dtype=bool), rng.random(400))
    gains = []
    for _ in range(30):
        hard = draw_ranking(rng, lambda u: 0.1 * u**2, 2000)
        *_, joint = find_joint_counts([easy] * 9 + [hard], [RISK] * 10, 0.01)
        expected = FixedSequence.plan(hard, RISK, 0.01 / 10).run(0.01)[0]
        assert joint == expected
        bonferroni = largest_certified_count(hard, RISK, 0.01 / 10)
        assert joint is not None
        assert bonferroni is not None
        assert joint >= bonferroni
        gains.append(joint - bonferroni)
    assert np.mean(gains) > 10


def test_group_that_is_too_small_takes_nothing_from_the_others() -> None:
    rng = np.random.default_rng(2)
    rankings: list[Ranking | None] = [draw_ranking(rng, lambda u: 0.1 * u**2, 1500) for _ in range(2)]
    tiny = rank(np.ones(40, dtype=bool), np.arange(40.0))
    alone = find_joint_counts(rankings, [RISK] * 2, 0.01)
    assert find_joint_counts([tiny, None, *rankings], [RISK] * 4, 0.01) == [None, None, *alone]


@settings(max_examples=100, deadline=None)
@given(drawn_groups(), st.sampled_from([0.01, 0.1]), st.floats(1, 3))
def test_larger_level_never_certifies_less(groups: Any, delta: float, factor: float) -> None:
    """The proof needs it."""
    for correct, values, risk in groups:
        sequence = FixedSequence.plan(rank(correct, values), risk, delta)
        small, large = sequence.run(delta), sequence.run(delta * factor)
        assert (large[0] or 0) >= (small[0] or 0)
        assert large[1] >= small[1]


# --------------------------------------------------------------------------------------------------- rules for classes


def test_every_class_has_its_threshold(named: Predictions) -> None:
    rule = certify(named, "mean", risk=0.1, delta=0.05, groups="class")
    values, predicted, correct = confidence(named, "mean"), named.predicted(), named.correct()
    assert [group.name for group in rule.groups] == ["ant", "cat", "dog"]
    assert rule.grouped_by == "class"
    assert rule.guarantee == Guarantee(risk=0.1, delta=0.05, grouped_by="class")
    accept = rule.accept(values, groups=predicted, method=rule.method)
    assert (accept == rule.accept(named)).all()
    for index, group in enumerate(rule.groups):
        chosen = predicted == index
        assert (accept[chosen] == (values[chosen] >= group.threshold)).all()
        assert (group.images, group.accepted) == (chosen.sum(), accept[chosen].sum())
        assert group.errors == np.sum(accept & chosen & ~correct)
        assert group.coverage == accept[chosen].mean()
    assert rule.threshold == min(group.threshold for group in rule.groups)
    assert rule.calibration is not None
    assert rule.calibration.accepted == accept.sum()
    assert rule.calibration.errors == np.sum(accept & ~correct)
    assert rule.coverage == accept.mean()


def test_thresholds_are_those_of_the_joint_procedure(named: Predictions) -> None:
    values, predicted, correct = confidence(named, "mean"), named.predicted(), named.correct()
    rankings = [rank(correct[predicted == index], values[predicted == index]) for index in range(3)]
    risks = [0.1, 0.05, 0.2]
    rule = certify(named, "mean", risk={"ant": 0.1, "cat": 0.05, "*": 0.2}, delta=0.05, groups="class")
    assert [group.accepted or None for group in rule.groups] == find_joint_counts(rankings, risks, 0.05)
    assert [group.risk for group in rule.groups] == risks
    assert rule.guarantee == Guarantee(risk=0.2, delta=0.05, grouped_by="class", smallest_risk=0.05)
    by_index = certify(named, "mean", risk={0: 0.1, 1: 0.05, 2: 0.2}, delta=0.05, groups="class")
    assert by_index == rule


def test_class_where_nothing_can_be_guaranteed_accepts_nothing(named: Predictions) -> None:
    rule = certify(named, "mean", risk={"*": 0.1, "dog": 0.0005}, delta=0.05, groups="class")
    *_, dog = rule.groups
    assert rule.certified
    assert dog.threshold == math.inf
    assert dog.accepted == 0
    assert dog.additional_images is not None
    assert not rule.accept(named)[named.predicted() == 2].any()
    assert math.isfinite(rule.threshold)
    assert f"needs {dog.additional_images:,} more" in str(rule)


def test_class_that_is_never_predicted_has_no_threshold(named: Predictions) -> None:
    some = named.select(images=named.predicted() != 2)
    rule = certify(some, "mean", risk=0.1, delta=0.05, groups="class")
    assert (rule.groups[2].images, rule.groups[2].threshold) == (0, math.inf)
    assert not rule.accept([1.0], groups=[2], method=rule.method).any()


def test_nothing_certified_is_a_shortfall_of_the_closest_class(named: Predictions) -> None:
    rule = certify(named, "mean", risk=0.001, delta=0.001, groups="class")
    assert not rule.certified
    assert rule.threshold == math.inf
    assert rule.shortfall is not None
    assert rule.shortfall.requested == Guarantee(risk=0.001, delta=0.001, grouped_by="class")
    assert rule.shortfall.group == "cat"
    assert rule.shortfall.additional_images == rule.groups[1].additional_images
    smallest = rule.shortfall.smallest_risk
    assert smallest is not None
    assert certify(named, "mean", risk=smallest, delta=0.001, groups="class").certified
    assert "'cat'" in str(rule)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_classes_are_those_that_are_predicted(preds: Predictions, predict_from: Any, top_k: int) -> None:
    rule = certify(preds, "mean", risk=0.3, delta=0.1, groups="class", predict_from=predict_from, top_k=top_k)
    first = preds.predicted(predict_from, top_k).reshape(len(preds), -1)[:, 0]
    assert [group.images for group in rule.groups] == np.bincount(first, minlength=5).tolist()
    values = rule.confidence(preds)
    assert (rule.accept(preds) == rule.accept(values, groups=first, method=rule.method)).all()


def test_duplicates_and_tuning_images_are_left_out(named: Predictions) -> None:
    labels = np.where(np.arange(2000) % 2, "odd", "even")
    rule = certify(
        named,
        "mean",
        risk=0.2,
        delta=0.05,
        groups=labels,
        duplicates=named.ids[:100],
        tuning=range(100, 301),
    )
    assert [(group.name, group.images) for group in rule.groups] == [("even", 849), ("odd", 850)]
    assert rule.calibration is not None
    assert (rule.calibration.duplicates, rule.calibration.tuning) == (100, 201)
    kept = named.select(images=np.arange(301, 2000))
    assert certify(kept, "mean", risk=0.2, delta=0.05, groups=labels[301:]).groups == rule.groups


def test_best_of_several_methods_is_chosen_by_the_joint_coverage(named: Predictions) -> None:
    methods = ["msr", "mean", "blend"]
    rule = certify(named, methods, risk=0.1, delta=0.06, groups="class")
    each = [certify(named, method, risk=0.1, delta=0.02, groups="class") for method in methods]
    best = max(each, key=lambda one: one.coverage)
    assert rule.groups == best.groups
    assert rule.guarantee == Guarantee(risk=0.1, delta=0.06, grouped_by="class")
    assert [one.method for one in rule.compared] == methods
    assert [one.coverage for one in rule.compared] == [one.coverage for one in each]
    assert [one.threshold for one in rule.compared] == [one.threshold for one in each]
    assert [one.method for one in rule.compared if one.chosen] == [best.method]


def test_compared_methods_are_listed(preds: Predictions) -> None:
    rule = certify(preds, ["msr", "mean"], risk=0.1, delta=0.1)
    each = [certify(preds, method, risk=0.1, delta=0.05) for method in ("msr", "mean")]
    assert [(one.threshold, one.coverage) for one in rule.compared] == [(one.threshold, one.coverage) for one in each]
    chosen = str(rule.list_tables()[0]).splitlines()[2]
    assert chosen.split() == ["mean", f"{rule.threshold:.6g}", f"{100 * rule.coverage:.2f}", "%", "chosen"]
    assert str(rule.list_tables()[0]) in str(rule)
    assert "best of 2" in str(rule)
    nothing = certify(preds, ["msr", "mean"], risk=0.0001)
    assert [one.threshold for one in nothing.compared] == [None, None]
    assert len(certify(preds, "mean", risk=0.1, delta=0.1).compared) == 1


def test_rule_lists_its_classes(named: Predictions) -> None:
    rule = certify(named, "mean", risk={"*": 0.1, "cat": 0.05}, delta=0.05, groups="class")
    lines = str(rule).splitlines()
    assert "predicted class" in lines[0]
    assert "5 % to 10 %" in lines[1]
    assert "jointly" in lines[1]
    cat = next(line for line in lines if line.startswith("cat"))
    group = rule.groups[1]
    assert cat.split()[2:] == [
        *("%", f"{group.threshold:.6g}", f"{group.images:,}", str(group.accepted), str(group.errors)),
        *(f"{100 * group.coverage:.1f}", "%"),
    ]
    assert "<th>threshold</th>" in rule.list_tables()[0].to_html()


def test_of_many_groups_those_with_the_smallest_coverage_are_printed(named: Predictions) -> None:
    rule = certify(named, "mean", risk=0.3, delta=0.1, groups=np.arange(2000) % 25)
    lines = str(rule.list_tables()[0]).splitlines()
    assert len(lines) == 22
    assert lines[-1].split()[1] == "5"
    shown = {line.split()[0] for line in lines[1:-1]}
    covered = sorted(group.coverage for group in rule.groups)
    assert {group.name for group in rule.groups if group.coverage < covered[20]} <= shown


# ----------------------------------------------------------------------------------------------------- groups by label


def test_groups_by_label_decide_with_labels(named: Predictions) -> None:
    sites = np.where(np.arange(2000) % 3 == 0, "north", "south")
    rule = certify(named, "mean", risk={"north": 0.05, "south": 0.1}, delta=0.05, groups=sites)
    values = confidence(named, "mean")
    north, south = rule.groups
    assert (rule.grouped_by, north.name, south.name) == ("label", "north", "south")
    expected = values >= np.where(sites == "north", north.threshold, south.threshold)
    assert (rule.accept(values, groups=sites, method=rule.method) == expected).all()
    assert (rule.accept(values, groups=sites.tolist(), method=rule.method) == expected).all()
    order = np.random.default_rng(0).permutation(2000)
    shuffled = certify(
        named.select(images=order), "mean", risk={"*": 0.1, "north": 0.05}, delta=0.05, groups=sites[order]
    )
    assert shuffled.groups == rule.groups


def test_numbers_can_be_groups(named: Predictions) -> None:
    rule = certify(named, "mean", risk={1: 0.1, 2: 0.2}, delta=0.05, groups=1 + np.arange(2000) % 2)
    assert [(group.name, group.value, group.risk) for group in rule.groups] == [("1", 1, 0.1), ("2", 2, 0.2)]


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        ({"groups": "classes"}, "'classes'"),
        ({"groups": ["a", "b"]}, r"\(2,\)"),
        ({"groups": np.where(np.arange(2000) == 7, np.nan, 1.0)}, "image 7"),
        ({"groups": {"site": np.zeros(2000)}}, "mapping"),
        ({"groups": "class", "risk": {"*": 0.1, "cta": 0.2}}, "Did you mean 'cat'"),
        ({"groups": "class", "risk": {"cat": 0.1}}, "'ant', 'dog'"),
        ({"groups": "class", "risk": {"*": 0.1, "cat": 1.5}}, "1.5 of 'cat'"),
        ({"groups": "class", "risk": {"*": 0.1, "cat": "x"}}, "'x' of 'cat'"),
        ({"groups": "class", "risk": 0}, "risk=0"),
        ({"groups": "class", "delta": 2}, "delta=2"),
        ({"groups": "class", "adaptive": True}, "adaptive="),
        ({"risk": {"cat": 0.1}}, "groups="),
    ],
)
def test_invalid_groups_and_risks_are_rejected(named: Predictions, arguments: Any, offending: str) -> None:
    with pytest.raises(DecisionError, match=offending):
        certify(named, "mean", **{"risk": 0.1, **arguments})


def test_messages_name_some_of_many_groups(named: Predictions) -> None:
    with pytest.raises(DecisionError, match=r"'group 0', .*, \.\.\.; name every group") as error:
        certify(named, "mean", risk={"group 3": 0.1}, groups=[f"group {number % 50}" for number in range(2000)])
    assert len(str(error.value)) < 500


def test_decisions_need_the_groups(named: Predictions) -> None:
    rule = certify(named, "mean", risk=0.1, delta=0.05, groups="class")
    for arguments, offending in (
        (None, "groups="),
        ([0, 1], r"\(2,\)"),
        ([0, 1, 3], "3 at index 2"),
    ):
        with pytest.raises(DecisionError, match=offending):
            rule.accept([0.9, 0.9, 0.9], groups=arguments, method=rule.method)
    with pytest.raises(DecisionError, match="groups="):
        Policy(threshold=0.5, method="mean").accept([0.9], groups=[0], method="mean")
    other = Predictions(logits=np.zeros((2, 2, 4)), views=named.views)
    with pytest.raises(DecisionError, match=r"3 classes.* has 4"):
        rule.accept(other)
    sites = certify(named, "mean", risk=0.1, delta=0.05, groups=["north", "south"] * 1000)
    with pytest.raises(DecisionError, match="Did you mean 'north'"):
        sites.accept([0.9], groups=["nort"], method=sites.method)
    with pytest.raises(DecisionError, match="groups="):
        sites.accept(named)
