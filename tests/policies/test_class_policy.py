"""Policies with a threshold for each predicted class: written, read, verified and rejected."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.files import compute_checksum
from secondlook.policies import Guarantee, Policy, PolicyWarning, certify, read_policy
from secondlook.predictions import Predictions
from tests.policies.test_schedule import make_schedule
from tests.policy_maker import attach

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
    return attach(rule, classifier=classifier, views=labeled.views.texts, class_names=NAMES)


def test_saved_policy_decides_as_its_rule(policy: Policy, labeled: Predictions, tmp_path: Path) -> None:
    rule = certify(labeled, ["msr", "mean"], risk={"*": 0.2, "cat": 0.3, "elk": 1e-4}, delta=0.1, groups="class")
    policy.save(tmp_path / "policy.json")
    loaded = read_policy(tmp_path / "policy.json")
    assert loaded.decides_like(policy)
    assert loaded.groups == rule.groups
    assert str(rule) in str(loaded)
    assert [group.threshold for group in loaded.groups][4] == math.inf
    assert loaded.threshold == min(group.threshold for group in rule.groups)
    assert loaded.certified
    assert loaded.guarantee_text == str(Guarantee(risk=0.3, delta=0.1, grouped_by="class", smallest_risk=1e-4))
    values, predicted = rule.confidence(labeled), labeled.predicted()
    assert np.array_equal(
        loaded.accept(values, groups=predicted, method=loaded.method),
        rule.accept(values, groups=predicted, method=rule.method),
    )
    assert not loaded.accept([1.0], groups=[4], method=loaded.method).any()
    for name in NAMES:
        assert name in str(loaded)
    assert "chosen" in str(loaded)


def test_other_groups_cannot_be_stored(preds: Predictions, classifier: Classifier, tmp_path: Path) -> None:
    rule = certify(preds, "mean", risk=0.3, delta=0.1, groups=["north", "south"] * 400)
    assert rule.certified
    with pytest.raises(DecisionError, match=r"other groups.*accept\(\)"):
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
    assert not changed.certified
    assert changed.guarantee is None
    assert changed.accept([policy.threshold], groups=[highest], method=changed.method).all()
    assert "changed" in changed.guarantee_text


def test_policy_with_a_schedule_has_one_threshold(policy: Policy) -> None:
    schedule = make_schedule(changes=(0.0,) * 4, spreads=(0.1,) * 4)
    with pytest.raises(DecisionError, match="schedule"):
        policy.replace(method=schedule.method, schedule=schedule)
