"""The policy file: written, read, refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.predictions import Predictions
from secondlook.selective import Policy, Rule, certify, certify_confidence

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def classifier(brightness: Callable[[Any], Any]) -> Classifier:
    return load_classifier(brightness, name="brightness")


@pytest.fixture
def policy(preds: Predictions, classifier: Classifier) -> Policy:
    rule = certify(preds, "bootstrap-lower", risk=0.1, delta=0.05, level=0.9, seed=3)
    return Policy.of(rule, classifier=classifier, views=preds.views.texts, data="array", data_digest="d" * 64)


def test_what_is_written_is_read(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert again == policy
    assert again.rule.threshold == policy.threshold
    assert again.rule.guarantee == policy.rule.guarantee
    assert again.rule.options == {"level": 0.9, "seed": 3}
    sure = np.linspace(0, 1, 50)
    assert np.array_equal(again.accept(sure), policy.rule.accept(sure))


def test_people_can_read_it(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    content = json.loads((tmp_path / "policy.json").read_text())
    assert content["format"] == "secondlook policy"
    assert content["version"] == 1
    assert content["classifier"]["name"] == "brightness"
    assert content["classifier"]["preprocessing"]["scale"] == 1 / 255
    assert content["views"] == ["identity", "hflip", "shift:1,0", "shift:0,1"]
    assert content["guarantee"]["text"].startswith("at most 10 % errors among the accepted")
    assert content["calibration"]["images"] == 800
    assert content["made"].endswith("+00:00")
    assert "for brightness, 4 views" in str(policy)


def test_a_policy_without_a_guarantee_says_so(classifier: Classifier) -> None:
    policy = Policy.of(Rule(0.9), classifier=classifier, views=("identity",))
    assert not policy.guarantee.certified
    assert policy.guarantee.text == "none"
    assert not policy.rule.certified


def test_another_classifier_is_refused(policy: Policy, brightness: Callable[[Any], Any]) -> None:
    policy.check(load_classifier(brightness, name="brightness"))
    with pytest.raises(DecisionError, match=r"the policy is for classifier 'brightness'.*got 'darkness'"):
        policy.check(load_classifier(brightness, name="darkness"))
    with pytest.raises(DecisionError, match="has no name to recognize it by"):
        policy.check(load_classifier(brightness))


def test_another_preprocessing_or_output_is_refused(policy: Policy) -> None:
    changed = {**policy.classifier.preprocessing, "mean": [0.5]}
    with pytest.raises(DecisionError, match=r"preprocessing mean=\[0\.0\], but the classifier has mean=\[0\.5\]"):
        policy.check(policy.classifier.model_copy(update={"preprocessing": changed}))
    with pytest.raises(DecisionError, match="gives probabilities, but 'brightness' gives logits"):
        policy.check(policy.classifier.model_copy(update={"output": "logits"}))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda content: content.update(version=2), "version: Input should be 1"),
        (lambda content: content.update(color="red"), "color: Extra inputs are not permitted"),
        (lambda content: content.pop("threshold"), "threshold: Field required"),
        (lambda content: content.update(threshold="NaN"), "threshold: Input should be a finite number"),
        (lambda content: content.update(views=["identity", "wobble:3"]), "views: .*wobble"),
        (lambda content: content.update(views=["hflip"]), "begins with 'identity'"),
        (lambda content: content.update(method="meen"), "Did you mean 'mean'"),
        (lambda content: content["guarantee"].update(risk=2.0), "guarantee.risk: Input should be less than 1"),
        (lambda content: content["guarantee"].pop("risk"), "a certified guarantee needs risk and delta"),
    ],
)
def test_a_damaged_policy_is_refused(policy: Policy, tmp_path: Path, edit: Edit, sentence: str) -> None:
    content = json.loads(policy.model_dump_json())
    edit(content)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DecisionError, match=sentence):
        Policy.load(path)


def test_no_policy_file(tmp_path: Path) -> None:
    with pytest.raises(DecisionError, match="cannot be read: No such file"):
        Policy.load(tmp_path / "policy.json")
    (tmp_path / "half.json").write_text('{"format": "second')
    with pytest.raises(DecisionError, match="the whole file: Invalid JSON"):
        Policy.load(tmp_path / "half.json")


def test_what_cannot_be_a_policy(classifier: Classifier) -> None:
    nothing = certify_confidence([False] * 50, np.arange(50.0), risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="a policy needs a finite threshold"):
        Policy.of(nothing, classifier=classifier, views=("identity",))
    with pytest.raises(DecisionError, match="option passes= of confidence 'mc-dropout' is a ndarray"):
        Policy.of(Rule(0.5, "mc-dropout", options={"passes": np.zeros(3)}), classifier=classifier, views=("identity",))
    with pytest.raises(DecisionError, match=r"no policy can be made of this rule, method: .*unknown confidence 'maen'"):
        Policy.of(Rule(0.5, "maen"), classifier=classifier, views=("identity",))
    with pytest.raises(DecisionError, match=r"views: .*begins with 'identity', got \['hflip'\]"):
        Policy.of(Rule(0.5), classifier=classifier, views=("hflip",))


def test_names_of_classes_are_kept_where_known(policy: Policy, classifier: Classifier, tmp_path: Path) -> None:
    named = Policy.of(Rule(0.9), classifier=classifier, views=("identity",), class_names=("dark", "bright"))
    named.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").class_names == ("dark", "bright")
    older = json.loads(policy.model_dump_json())
    del older["class_names"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert Policy.load(tmp_path / "older.json").class_names is None
