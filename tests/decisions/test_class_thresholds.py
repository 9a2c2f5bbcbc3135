"""Policies with a threshold for each class decide alike everywhere: `score`, `decide`, `SelectiveClassifier`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import SelectiveClassifier, load_policy
from secondlook.errors import DecisionError
from secondlook.policies import Policy, certify
from secondlook.predictions import collect
from secondlook.sources import open_source
from tests.policy_maker import attach, score

VIEWS = "identity hflip shift:1,0"
Data = tuple[Array, Array]


@pytest.fixture(scope="module")
def policy(classifier: Classifier, bright_or_dark: Data) -> Policy:
    images, labels = bright_or_dark
    source = open_source(images[:500], labels=labels[:500])
    preds = collect(classifier, source, VIEWS)
    copies = [source.ids[index] for index in source.find_duplicates()]
    rule = certify(preds, "mean", risk={0: 0.07, 1: 0.13}, delta=0.1, groups="class", duplicates=copies)
    assert all(group.accepted for group in rule.groups)
    return attach(rule, classifier=classifier, views=preds.views.texts)


def score_rows(policy: Policy, images: Array, path: Path, **options: Any) -> list[dict[str, Any]]:
    score(policy, images, path, **options)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_follow_the_threshold_of_the_predicted_class(
    policy: Policy, classifier: Classifier, bright_or_dark: Data, tmp_path: Path
) -> None:
    rows = score_rows(policy, bright_or_dark[0][500:], tmp_path / "scores.jsonl", classifier=classifier)
    dark, bright = (group.threshold for group in policy.groups)
    assert dark != bright
    between = [row for row in rows if min(dark, bright) <= row["confidence"] < max(dark, bright)]
    assert {row["accept"] for row in between} == {True, False}, "one threshold for all could not decide like this"
    assert all(row["accept"] == (row["confidence"] >= (bright if row["label"] else dark)) for row in rows)


def test_all_ways_to_decide_agree(policy: Policy, classifier: Classifier, bright_or_dark: Data, tmp_path: Path) -> None:
    images = bright_or_dark[0][500:540]
    expected = [row["accept"] for row in score_rows(policy, images, tmp_path / "s.jsonl", classifier=classifier)]
    policy.save(tmp_path / "policy.json")
    loaded = load_policy(tmp_path / "policy.json", classifier=classifier)
    decisions = [loaded.decide(image) for image in images]
    assert [decision.accept for decision in decisions] == expected
    assert decisions[0].guarantee == policy.guarantee
    chooser = SelectiveClassifier(classifier, policy)
    assert chooser.decide(images).accept.tolist() == expected
    assert (chooser.predict(images) != -1).tolist() == expected


def test_fit_calibrates_all_classes_again(policy: Policy, classifier: Classifier, bright_or_dark: Data) -> None:
    images, labels = bright_or_dark
    chooser = SelectiveClassifier(classifier, policy).fit(images[:500], labels[:500])
    assert len(chooser.policy_.groups) == len(policy.groups) == 2
    for again, before in zip(chooser.policy_.groups, policy.groups, strict=True):
        assert again.threshold == pytest.approx(before.threshold)
        assert (again.risk, again.accepted, again.errors) == (before.risk, before.accepted, before.errors)
    assert chooser.policy_.guarantee == policy.guarantee


def test_classifier_with_another_number_of_classes_is_refused(
    policy: Policy, bright_or_dark: Data, tmp_path: Path
) -> None:
    three = load_classifier(lambda batch: np.full((len(batch), 3), 1 / 3), name="three", output="probabilities")
    with pytest.raises(DecisionError, match=r"2 classes.* has 3"):
        score_rows(policy, bright_or_dark[0][:5], tmp_path / "s.jsonl", classifier=three, allow_mismatch=True)
