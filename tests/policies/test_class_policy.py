"""Policies with a threshold for each predicted class: written, read, verified and rejected."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.files import compute_checksum
from secondlook.policies import Guarantee, Policy, PolicyWarning, certify
from secondlook.predictions import Predictions

NAMES = ("ant", "bee", "cat", "dog", "elk")
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return load_classifier(lambda batch: batch, name="animals", output="logits")


@pytest.fixture(scope="module")
def labeled(preds: Predictions) -> Predictions:
    return Predictions(logits=preds.logits, views=preds.views, labels=preds.labels, class_names=NAMES)


@pytest.fixture(scope="module")
def policy(labeled: Predictions, classifier: Classifier) -> Policy:
    """A policy of five classes, of which the last accepts nothing."""
    rule = certify(labeled, ["msr", "mean"], risk={"*": 0.2, "cat": 0.3, "elk": 1e-4}, delta=0.1, groups="class")
    assert [math.isfinite(group.threshold) for group in rule.groups] == [True] * 4 + [False]
    return Policy.from_rule(rule, classifier=classifier, views=labeled.views.texts, class_names=NAMES)


def test_saved_policy_decides_as_its_rule(policy: Policy, labeled: Predictions, tmp_path: Path) -> None:
    rule = certify(labeled, ["msr", "mean"], risk={"*": 0.2, "cat": 0.3, "elk": 1e-4}, delta=0.1, groups="class")
    policy.save(tmp_path / "policy.json")
    loaded = Policy.load(tmp_path / "policy.json")
    assert loaded == policy
    assert loaded.rule == rule
    assert str(loaded.rule) == str(rule)
    assert loaded.class_thresholds == (*(group.threshold for group in rule.groups[:4]), None)
    assert loaded.threshold == min(group.threshold for group in rule.groups)
    assert loaded.certified
    assert loaded.guarantee_text == str(Guarantee(0.3, 0.1, "class", 1e-4))
    values, predicted = rule.confidence(labeled), labeled.predicted()
    assert np.array_equal(loaded.accept(values, predicted), rule.accept(values, groups=predicted))
    assert not loaded.accept([1.0], [4]).any()
    for name in NAMES:
        assert name in str(loaded)
    assert "chosen" in str(loaded)


def test_columns_are_lines_of_the_file(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    lines = [line.strip() for line in (tmp_path / "policy.json").read_text().splitlines()]
    assert any(line.startswith('"thresholds": [0.') and line.endswith(",null],") for line in lines)


def test_policy_without_class_names_has_numbers(policy: Policy) -> None:
    unnamed = policy.model_copy(update={"class_names": None})
    assert [group.name for group in unnamed.rule.groups] == ["0", "1", "2", "3", "4"]


def test_policy_with_one_threshold_has_no_classes(preds: Predictions, classifier: Classifier) -> None:
    rule = certify(preds, "mean", risk=0.1, delta=0.1)
    policy = Policy.from_rule(rule, classifier=classifier, views=preds.views.texts)
    assert (policy.classes, policy.class_thresholds) == (None, None)
    assert policy.rule == rule


def test_other_groups_cannot_be_stored(preds: Predictions, classifier: Classifier) -> None:
    rule = certify(preds, "mean", risk=0.3, delta=0.1, groups=["north", "south"] * 400)
    assert rule.certified
    with pytest.raises(DecisionError, match=r"other groups.*accept\(\)"):
        Policy.from_rule(rule, classifier=classifier, views=preds.views.texts)


def test_names_of_other_classes_are_rejected(policy: Policy, labeled: Predictions, classifier: Classifier) -> None:
    with pytest.raises(DecisionError, match="4 classes, got 5"):
        Policy.from_rule(policy.rule, classifier=classifier, views=labeled.views.texts, class_names=NAMES[:4])


def test_rule_that_accepts_nothing_cannot_be_stored(labeled: Predictions, classifier: Classifier) -> None:
    rule = certify(labeled, "mean", risk=1e-4, groups="class")
    with pytest.raises(DecisionError, match="finite threshold"):
        Policy.from_rule(rule, classifier=classifier, views=labeled.views.texts)


def set_value(column: str, index: int, value: object) -> Edit:
    return lambda content: content["classes"][column].__setitem__(index, value)


@pytest.mark.parametrize(
    ("edit", "offending"),
    [
        (lambda content: content["classes"]["risks"].pop(), "risks"),
        (set_value("thresholds", 0, "high"), "classes.thresholds.0"),
        (set_value("thresholds", 0, math.inf), "classes.thresholds.0"),
        (set_value("thresholds", 0, None), "class 0"),
        (set_value("thresholds", 4, 0.999), "class 4"),
        (set_value("risks", 1, 1.5), "classes.risks.1"),
        (set_value("errors", 1, 10**6), "class 1"),
        (set_value("accepted", 1, 10**6), "class 1"),
        (set_value("images", 1, -1), "classes.images.1"),
        (lambda content: content["classes"].update({name: [] for name in content["classes"]}), "at least one"),
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
        Policy.load(path)


def test_changed_threshold_of_a_class_loses_the_guarantee(policy: Policy, tmp_path: Path) -> None:
    content = json.loads(policy.model_dump_json())
    highest = max(range(4), key=content["classes"]["thresholds"].__getitem__)
    content["classes"]["thresholds"][highest] = policy.threshold
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    with pytest.warns(PolicyWarning):
        changed = Policy.load(path)
    assert not changed.certified
    assert changed.rule.guarantee is None
    assert changed.accept([policy.threshold], [highest]).all()
    assert "changed" in changed.guarantee_text


def test_policy_with_a_schedule_has_one_threshold(policy: Policy) -> None:
    from secondlook.policies import Schedule

    views = policy.views
    schedule = Schedule(
        views=views,
        method="mean",
        changes=(0.0,) * len(views),
        spreads=(0.1,) * len(views),
        margin=1.0,
        tolerance=0.01,
        full_looks=len(views),
        images=100,
        threshold=policy.threshold,
    )
    with pytest.raises(DecisionError, match="schedule"):
        Policy.from_rule(
            replace(policy.rule, method="mean", schedule=schedule), classifier=policy.classifier, views=views
        )
