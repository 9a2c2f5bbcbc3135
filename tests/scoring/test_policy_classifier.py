"""The classifier of a policy: loaded, compared, and rejected if loading runs code."""

from collections.abc import Callable
from typing import Any

import pytest

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.scoring import resolve_classifier
from secondlook.selective import Policy, Rule
from secondlook.specs import MEMBER_SEPARATOR


@pytest.fixture
def policy(classifier: Classifier) -> Policy:
    return Policy.from_rule(Rule(0.9), classifier=classifier, views=("identity",))


def rename(policy: Policy, name: str) -> Policy:
    return policy.model_copy(update={"classifier": policy.classifier.model_copy(update={"name": name})})


@pytest.mark.parametrize(
    "name",
    [
        "function:os:getcwd?name=x",
        "function:os:getcwd?name=",
        "sklearn:evil.pkl?trust_pickle=true",
        "torch:package.module:factory?output=logits",
        f"onnx:m.onnx{MEMBER_SEPARATOR}function:os:getcwd",
    ],
)
def test_policy_never_runs_code(policy: Policy, name: str) -> None:
    with pytest.raises(DecisionError, match=r"'(function|sklearn|torch):.*classifier="):
        resolve_classifier(rename(policy, name), None, allow_mismatch=True)


@pytest.mark.parametrize("name", ["brightness", "onnx:absent.onnx", f"onnx:a.onnx{MEMBER_SEPARATOR}onnx:b.onnx"])
def test_classifier_that_cannot_be_loaded_is_rejected(policy: Policy, name: str) -> None:
    with pytest.raises(DecisionError, match="classifier="):
        resolve_classifier(rename(policy, name), None, allow_mismatch=False)


def test_given_classifier_is_compared(policy: Policy, classifier: Classifier, brightness: Callable[[Any], Any]) -> None:
    resolved = resolve_classifier(policy, classifier, allow_mismatch=False)
    assert resolved.classifier is classifier
    assert resolved.mismatch is None
    assert resolve_classifier(policy, classifier, allow_mismatch=True).mismatch is None
    other = load_classifier(brightness, name="darkness")
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        resolve_classifier(policy, other, allow_mismatch=False)
    allowed = resolve_classifier(policy, other, allow_mismatch=True)
    assert allowed.classifier is other
    assert allowed.mismatch is not None
    assert "'darkness'" in allowed.mismatch
