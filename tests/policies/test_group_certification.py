"""Thresholds for groups: the rules that `certify` makes, how they decide, and their files."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.estimators import confidence
from secondlook.files import compute_checksum
from secondlook.policies import CountedImages, Guarantee, Policy, PolicyWarning, certify, read_policy
from secondlook.policies.fixed_sequence import find_joint_counts
from secondlook.predictions import Predictions
from tests.policies.conftest import known, make_schedule
from tests.policy_maker import attach

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def named() -> Predictions:
    """2,000 images x 2 views x 3 classes, of which predictions of 'cat' are right more often."""
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=2000)
    margin = rng.gamma(2.0, np.where(labels == 1, 8.0, 2.5), size=2000)
    logits = rng.normal(size=(2000, 2, 3)) + 0.5 * rng.normal(size=(2000, 1, 3))
    logits[np.arange(2000), :, labels] += margin[:, None]
    return Predictions(logits=logits, views="identity hflip", labels=labels, class_names=["ant", "cat", "dog"])


# ------------------------------------------------------------------------------------------------- predicted classes


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
    counts = known(rule.calibration)
    assert (counts.accepted, counts.errors) == (accept.sum(), int(np.sum(accept & ~correct)))
    assert rule.coverage == accept.mean()


def test_thresholds_are_those_of_the_joint_procedure(named: Predictions) -> None:
    values, predicted, correct = confidence(named, "mean"), named.predicted(), named.correct()
    classes = [CountedImages.count(correct[predicted == index], values[predicted == index]) for index in range(3)]
    risks = [0.1, 0.05, 0.2]
    rule = certify(named, "mean", risk={"ant": 0.1, "cat": 0.05, "*": 0.2}, delta=0.05, groups="class")
    assert [group.accepted or None for group in rule.groups] == find_joint_counts(classes, risks, 0.05)
    assert [group.risk for group in rule.groups] == risks
    assert rule.guarantee == Guarantee(risk=0.2, delta=0.05, grouped_by="class", smallest_risk=0.05)
    assert certify(named, "mean", risk={0: 0.1, 1: 0.05, 2: 0.2}, delta=0.05, groups="class") == rule


def test_classes_that_share_a_threshold_are_certified_together(named: Predictions, tmp_path: Path) -> None:
    shared: dict[str, list[str | int]] = {"insects": ["ant"], "pets": ["cat", 2]}
    rule = certify(named, "mean", risk={"pets": 0.05, "*": 0.1}, delta=0.05, groups=shared)
    is_pet, correct = named.predicted() > 0, named.correct()
    labels = certify(named, "mean", risk={"True": 0.05, "*": 0.1}, delta=0.05, groups=is_pet)
    expected = [labels.groups[index].threshold for index in (0, 1, 1)]
    assert [group.threshold for group in rule.groups] == expected
    assert [(group.name, group.value, group.shared_by) for group in rule.groups] == [
        ("ant", 0, None),
        ("cat", 1, "pets"),
        ("dog", 2, "pets"),
    ]
    accept = rule.accept(named)
    assert (accept == labels.accept(confidence(named, "mean"), groups=is_pet, method="mean")).all()
    for group in rule.groups:
        own = named.predicted() == group.value
        counts = own.sum(), accept[own].sum(), np.sum(accept & own & ~correct)
        assert (group.images, group.accepted, group.errors) == counts
    assert rule.calibration == labels.calibration
    assert rule.guarantee == Guarantee(risk=0.1, delta=0.05, grouped_by="classes", smallest_risk=0.05)
    assert rule.shared_classes == {"pets": [1, 2]}
    assert ["pets", "5", "%", f"{expected[1]:.6g}", f"{is_pet.sum():,}"] in [
        line.split()[:5] for line in str(rule).splitlines()
    ]
    assert rule.list_tables()[0].rows[0][0] == "group"
    rule.save(tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json").groups == rule.groups


def test_wrong_copies_count_in_their_class(named: Predictions) -> None:
    copies = [named.ids[index] for index in range(0, 2000, 3)]
    options: dict[str, Any] = {"risk": 0.1, "delta": 0.05, "duplicates": copies}
    rule = certify(named, "mean", **options, groups={"pets": ["cat", "dog"]})
    apart = certify(named, "mean", **options, groups="class")
    assert [group.images for group in rule.groups] == [group.images for group in apart.groups]
    for name in ("images", "accepted", "errors"):
        assert sum(getattr(group, name) for group in rule.groups) == getattr(known(rule.calibration), name)


def test_class_where_nothing_can_be_guaranteed_accepts_nothing(named: Predictions) -> None:
    rule = certify(named, "mean", risk={"*": 0.1, "dog": 0.0005}, delta=0.05, groups="class")
    *_, dog = rule.groups
    assert rule.certified
    assert (dog.threshold, dog.accepted) == (math.inf, 0)
    assert not rule.accept(named)[named.predicted() == 2].any()
    assert math.isfinite(rule.threshold)
    assert f"needs {known(dog.additional_images):,} more" in str(rule)
    assert "share" in str(rule)
    joined = certify(named, "mean", risk={"*": 0.1, "pets": 0.0005}, delta=0.05, groups={"pets": ["cat", "dog"]})
    assert "share" not in str(joined), "these share a threshold already"


def test_class_that_is_never_predicted_has_no_threshold(named: Predictions) -> None:
    rule = certify(named.select(images=named.predicted() != 2), "mean", risk=0.1, delta=0.05, groups="class")
    assert (rule.groups[2].images, rule.groups[2].threshold) == (0, math.inf)
    assert not rule.accept([1.0], groups=[2], method=rule.method).any()


def test_nothing_certified_is_a_shortfall_of_the_closest_class(named: Predictions) -> None:
    rule = certify(named, "mean", risk=0.001, delta=0.001, groups="class")
    assert not rule.certified
    assert rule.threshold == math.inf
    shortfall = known(rule.shortfall)
    assert shortfall.requested == Guarantee(risk=0.001, delta=0.001, grouped_by="class")
    assert shortfall.group == "cat"
    assert shortfall.additional_images == rule.groups[1].additional_images
    assert certify(named, "mean", risk=known(shortfall.smallest_risk), delta=0.001, groups="class").certified
    assert "'cat'" in str(rule)
    assert "share a threshold" in str(rule)
    fewest = shortfall.images_needed
    assert 0.999 ** (fewest - 1) <= 0.001 / 3 < 0.999 ** (fewest - 2), "fewer cannot pass, also without an error"
    assert shortfall.median_images == np.median([group.images for group in rule.groups])
    assert f"at least {fewest:,}" in str(rule)


def test_of_many_classes_the_nearest_to_a_guarantee_are_listed() -> None:
    labels = np.repeat(np.arange(50), [200] * 20 + [60] * 10 + [20] * 20)
    logits = np.random.default_rng(0).normal(size=(len(labels), 1, 50)) + 20 * np.eye(50)[labels][:, None]
    names = [f"{number:02} {'long name ' * 9}" for number in range(50)]
    rule = certify(
        Predictions(logits=logits, views="identity", labels=labels, class_names=names), risk=0.1, groups="class"
    )
    text = str(rule)
    assert "classes: 20 of 50 have a threshold, the others accept nothing: 30 need roughly" in text
    table = text.splitlines()
    rows = table[table.index(next(line for line in table if line.startswith("class "))) + 1 :][:21]
    assert [row[:2] for row in rows[:10]] == [str(number) for number in range(20, 30)], (
        "those that need the fewest images"
    )
    assert rows[-1] == "and 30 others"
    assert max(map(len, rows)) < 110


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_classes_are_those_that_are_predicted(preds: Predictions, predict_from: Any, top_k: int) -> None:
    rule = certify(preds, "mean", risk=0.3, delta=0.1, groups="class", predict_from=predict_from, top_k=top_k)
    first = preds.predicted(predict_from, top_k).reshape(len(preds), -1)[:, 0]
    assert [group.images for group in rule.groups] == np.bincount(first, minlength=5).tolist()
    assert (rule.accept(preds) == rule.accept(rule.confidence(preds), groups=first, method=rule.method)).all()


def test_best_of_several_methods_is_chosen_by_the_joint_coverage(named: Predictions) -> None:
    methods = ["msr", "mean", "blend"]
    rule = certify(named, methods, risk=0.1, delta=0.06, groups="class")
    each = [certify(named, method, risk=0.1, delta=0.02, groups="class") for method in methods]
    best = max(each, key=lambda one: one.coverage)
    assert rule.groups == best.groups
    assert rule.guarantee == Guarantee(risk=0.1, delta=0.06, grouped_by="class")
    assert [(one.method, one.coverage, one.threshold, one.chosen) for one in rule.compared] == [
        (one.method, one.coverage, one.threshold, one is best) for one in each
    ]


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
    risk = {"*": 0.1, "north": 0.05}
    shuffled = certify(named.select(images=order), "mean", risk=risk, delta=0.05, groups=sites[order])
    assert shuffled.groups == rule.groups


def test_numbers_can_be_groups(named: Predictions) -> None:
    rule = certify(named, "mean", risk={1: 0.1, 2: 0.2}, delta=0.05, groups=1 + np.arange(2000) % 2)
    assert [(group.name, group.value, group.risk) for group in rule.groups] == [("1", 1, 0.1), ("2", 2, 0.2)]


def test_correct_duplicates_and_tuning_images_are_left_out(named: Predictions) -> None:
    labels, correct = np.where(np.arange(2000) % 2, "odd", "even"), named.correct()
    rule = certify(
        named, "mean", risk=0.2, delta=0.05, groups=labels, duplicates=named.ids[:100], tuning=range(100, 301)
    )
    counted = np.concatenate([np.flatnonzero(~correct[:100]), np.arange(301, 2000)])
    odd = int(np.sum(counted % 2))
    assert [(group.name, group.images) for group in rule.groups] == [("even", len(counted) - odd), ("odd", odd)]
    assert (known(rule.calibration).duplicates, known(rule.calibration).tuning) == (correct[:100].sum(), 201)
    images = [
        CountedImages.count(correct[own], confidence(named, "mean")[own], np.arange(2000)[own] < 100)
        for own in ((labels == name) & ((np.arange(2000) < 100) | (np.arange(2000) > 300)) for name in ("even", "odd"))
    ]
    assert [group.accepted for group in rule.groups] == find_joint_counts(images, [0.2, 0.2], 0.05)


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        ({"groups": "classes"}, "'classes'"),
        ({"groups": ["a", "b"]}, r"\(2,\)"),
        ({"groups": np.where(np.arange(2000) == 7, np.nan, 1.0)}, "image 7"),
        ({"groups": {"pets": ["cat", "dgo"]}}, "'dgo'.* Did you mean 'dog'"),
        ({"groups": {"pets": [1, 3]}}, "'pets' has 3"),
        ({"groups": {"pets": ["cat", "dog"], "small": ["cat"]}}, "'cat' is in 'pets' and in 'small'"),
        ({"groups": {"ant": ["cat", "dog"]}}, "'ant'"),
        ({"groups": {"pets": ["cat", "dog"]}, "risk": {"pets": 0.1}}, "'ant'"),
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
    with pytest.raises(DecisionError, match=r"'group 0', .* and 44 more; name every group") as error:
        certify(named, "mean", risk={"group 3": 0.1}, groups=[f"group {number % 50}" for number in range(2000)])
    assert len(str(error.value)) < 500


def test_decisions_need_the_groups(named: Predictions) -> None:
    rule = certify(named, "mean", risk=0.1, delta=0.05, groups="class")
    sites = certify(named, "mean", risk=0.1, delta=0.05, groups=["north", "south"] * 1000)
    for decider, groups, offending in (
        (rule, None, "groups="),
        (rule, [0, 1], r"\(2,\)"),
        (rule, [0, 1, 3], "3 at index 2"),
        (sites, ["nort"] * 3, "Did you mean 'north'"),
        (Policy(threshold=0.5, method="mean"), [0] * 3, "groups="),
    ):
        with pytest.raises(DecisionError, match=offending):
            decider.accept([0.9, 0.9, 0.9], groups=groups, method=decider.method)
    with pytest.raises(DecisionError, match=r"3 classes.* has 4"):
        rule.accept(Predictions(logits=np.zeros((2, 2, 4)), views=named.views))
    with pytest.raises(DecisionError, match="groups="):
        sites.accept(named)


# --------------------------------------------------------------------------------------------------------------- files

NAMES = ("ant", "bee", "cat", "dog", "elk")


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return load_classifier(lambda batch: batch, name="animals", output="logits")


@pytest.fixture(scope="module")
def labeled(preds: Predictions) -> Predictions:
    return Predictions(logits=preds.logits, views=preds.views, labels=preds.labels, class_names=NAMES)


@pytest.fixture(scope="module")
def rule(labeled: Predictions) -> Policy:
    """A rule of five classes, of which the last accepts nothing."""
    rule = certify(labeled, ["msr", "mean"], risk={"*": 0.2, "cat": 0.3, "elk": 1e-4}, delta=0.1, groups="class")
    assert [math.isfinite(group.threshold) for group in rule.groups] == [True] * 4 + [False]
    return rule


@pytest.fixture(scope="module")
def policy(rule: Policy, labeled: Predictions, classifier: Classifier) -> Policy:
    return attach(rule, classifier=classifier, views=labeled.views.texts, class_names=NAMES)


def test_saved_policy_decides_as_its_rule(rule: Policy, policy: Policy, labeled: Predictions, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    loaded = read_policy(tmp_path / "policy.json")
    assert loaded.decides_like(policy)
    assert (loaded.groups, loaded.threshold) == (rule.groups, rule.threshold)
    assert loaded.certified
    assert loaded.guarantee_text == str(Guarantee(risk=0.3, delta=0.1, grouped_by="class", smallest_risk=1e-4))
    values, predicted = rule.confidence(labeled), labeled.predicted()
    decided = loaded.accept(values, groups=predicted, method=loaded.method)
    assert np.array_equal(decided, rule.accept(values, groups=predicted, method=rule.method))
    assert not loaded.accept([1.0], groups=[4], method=loaded.method).any()
    assert all(text in str(loaded) for text in (str(rule), *NAMES, "chosen"))


def test_other_groups_cannot_be_stored(preds: Predictions, tmp_path: Path) -> None:
    rule = certify(preds, "mean", risk=0.3, delta=0.1, groups=["north", "south"] * 400)
    assert rule.certified
    with pytest.raises(DecisionError, match=r"groups other.*accept\(\)"):
        rule.save(tmp_path / "policy.json")


def test_names_of_other_classes_are_rejected(policy: Policy, labeled: Predictions, classifier: Classifier) -> None:
    with pytest.raises(DecisionError, match="4 classes, got 5"):
        attach(policy, classifier=classifier, views=labeled.views.texts, class_names=NAMES[:4])


def set_value(column: str, index: int, value: object) -> Edit:
    return lambda content: content["groups"][index].update({column: value})


@pytest.mark.parametrize(
    ("edit", "offending"),
    [
        (lambda content: content["groups"][0].pop("risk"), "groups.0.risk"),
        (lambda content: content["groups"].pop(), "5 classes, got 4"),
        (lambda content: content["groups"].reverse(), "order"),
        (set_value("threshold", 0, "high"), "groups.0.threshold"),
        (set_value("threshold", 0, None), "groups.0"),
        (set_value("threshold", 4, 0.999), "groups.4"),
        (set_value("risk", 1, 1.5), "groups.1.risk"),
        (set_value("errors", 1, 10**6), "groups.1"),
        (set_value("accepted", 1, 10**6), "groups.1"),
        (set_value("images", 1, -1), "groups.1.images"),
        (lambda content: content.update(groups=[]), "groups if"),
        (lambda content: content.update(threshold=0.123), "threshold"),
        (lambda content: content["guarantee"].update(risk=0.01), "risk"),
        (lambda content: content["compared"][0].update(coverage=2), "compared.0.coverage"),
    ],
)
def test_invalid_file_is_rejected(policy: Policy, tmp_path: Path, edit: Edit, offending: str) -> None:
    content = json.loads(policy.model_dump_json(exclude={"checksum"}))
    edit(content)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({**content, "checksum": compute_checksum(content)}))
    with pytest.raises(DecisionError, match=offending):
        read_policy(path)


def test_changed_threshold_of_a_class_loses_the_guarantee(policy: Policy, tmp_path: Path) -> None:
    content = json.loads(policy.model_dump_json())
    highest = max(range(4), key=lambda index: content["groups"][index]["threshold"])
    content["groups"][highest]["threshold"] = policy.threshold
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    with pytest.warns(PolicyWarning):
        changed = read_policy(path)
    assert changed.guarantee is None
    assert changed.accept([policy.threshold], groups=[highest], method=changed.method).all()
    assert "changed" in changed.guarantee_text


def test_policy_with_a_schedule_has_one_threshold(policy: Policy) -> None:
    schedule = make_schedule(changes=(0.0,) * 4, spreads=(0.1,) * 4)
    with pytest.raises(DecisionError, match="schedule"):
        policy.replace(method=schedule.method, schedule=schedule)
