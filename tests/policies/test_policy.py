"""Policy files: written, read, upgraded, verified and rejected."""

import hashlib
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.files import compute_checksum
from secondlook.policies import (
    Calibration,
    Guarantee,
    Policy,
    PolicyWarning,
    Rule,
    ShiftModel,
    certify,
    certify_confidence,
)
from secondlook.policies.policy import PolicyGuarantee
from secondlook.predictions import Predictions

Edit = Callable[[dict[str, Any]], object]

VERSION_1 = """{
  "format": "secondlook policy",
  "version": 1,
  "made": "2026-01-01T00:00:00+00:00",
  "secondlook": "0.1.0",
  "classifier": {
    "name": "onnx:m.onnx?output=logits",
    "digest": "3f5a",
    "output": "logits",
    "preprocessing": {"scale": 0.00392156862745098, "mean": [0.485, 0.456, 0.406]}
  },
  "views": ["identity", "hflip", "shift:1,0"],
  "method": "bootstrap-lower",
  "options": {"level": 0.9, "seed": 3},
  "by": "D",
  "k": 2,
  "threshold": 0.8712345678901234,
  "promise": {
    "certified": true,
    "risk": 0.1,
    "delta": 0.05,
    "text": "at most 10 % errors among the accepted, with certainty 95 %"
  },
  "calibration": {"data": "array", "digest": "d4", "images": 800, "accepted": 631, "errors": 40},
  "class_names": ["dark", "bright"]
}"""

VERSION_2 = json.dumps(
    {
        **{key: value for key, value in json.loads(VERSION_1).items() if key not in ("by", "k", "promise")},
        "version": 2,
        "predict_from": "views",
        "top_k": 2,
        "guarantee": json.loads(VERSION_1)["promise"],
    }
)


def classify(batch: Any) -> Any:
    raise AssertionError("a policy does not run its classifier")


@pytest.fixture
def classifier() -> Classifier:
    return load_classifier(classify, name="brightness", output="probabilities")


@pytest.fixture
def policy(preds: Predictions, classifier: Classifier) -> Policy:
    rule = certify(preds, "bootstrap-lower", risk=0.1, delta=0.05, level=0.9, seed=3)
    return Policy.from_rule(rule, classifier=classifier, views=preds.views.texts, data="array", data_digest="d" * 64)


def test_saved_policy_is_loaded(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    loaded = Policy.load(tmp_path / "policy.json")
    assert loaded == policy
    assert loaded.rule.threshold == policy.threshold
    assert loaded.rule.guarantee == policy.rule.guarantee
    assert loaded.rule.options == {"level": 0.9, "seed": 3}
    values = np.linspace(0, 1, 50)
    assert np.array_equal(loaded.accept(values), policy.rule.accept(values))


def test_file_is_readable_json(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    content = json.loads((tmp_path / "policy.json").read_text())
    assert list(content) == [
        *("format", "version", "made", "secondlook", "classifier", "views", "method", "options"),
        *("predict_from", "top_k", "threshold", "guarantee", "calibration", "class_names", "schedule", "classes"),
        *("compared", "reference", "shifts", "checksum"),
    ]
    assert content["format"] == "secondlook policy"
    assert content["version"] == 6
    assert content["classifier"]["name"] == "brightness"
    assert content["classifier"]["preprocessing"]["scale"] == 1 / 255
    assert content["views"] == ["identity", "hflip", "shift:1,0", "shift:0,1"]
    assert content["predict_from"] == "image"
    assert content["top_k"] == 1
    assert content["guarantee"] == {
        "certified": True,
        "risk": 0.1,
        "delta": 0.05,
        "text": str(Guarantee(0.1, 0.05)),
    }
    assert content["calibration"]["images"] == 800
    assert content["made"].endswith("+00:00")
    assert "brightness, 4 views" in str(policy)


def test_version_1_is_upgraded(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(VERSION_1)
    policy = Policy.load(tmp_path / "policy.json")
    assert policy.version == 6
    assert policy.rule == Rule(
        0.8712345678901234,
        "bootstrap-lower",
        "views",
        2,
        {"level": 0.9, "seed": 3},
        Guarantee(0.1, 0.05),
        Calibration(800, 631, 40),
    )
    assert policy.views == ("identity", "hflip", "shift:1,0")
    assert policy.classifier.model_dump() == json.loads(VERSION_1)["classifier"]
    assert policy.guarantee.model_dump() == json.loads(VERSION_1)["promise"]
    assert policy.class_names == ("dark", "bright")
    policy.save(tmp_path / "upgraded.json")
    assert Policy.load(tmp_path / "upgraded.json") == policy


def test_version_2_keeps_its_guarantee_without_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(VERSION_2)
    (tmp_path / "version-1.json").write_text(VERSION_1)
    policy = Policy.load(tmp_path / "policy.json")
    assert policy == Policy.load(tmp_path / "version-1.json")
    assert policy.rule.guarantee == Guarantee(0.1, 0.05)
    assert Policy.is_intact(tmp_path / "policy.json") is None
    policy.save(tmp_path / "upgraded.json")
    assert json.loads((tmp_path / "upgraded.json").read_text())["version"] == 6
    assert Policy.is_intact(tmp_path / "upgraded.json") is True


def test_version_4_keeps_its_guarantee(policy: Policy, tmp_path: Path) -> None:
    content = json.loads(policy.model_dump_json(exclude={"checksum", "schedule"}))
    looks = ("mean_looks", "differing", "differing_bound", "differing_delta")
    content |= {
        "version": 4,
        "calibration": {name: value for name, value in content["calibration"].items() if name not in looks},
    }
    (tmp_path / "policy.json").write_text(json.dumps({**content, "checksum": compute_checksum(content)}))
    assert Policy.load(tmp_path / "policy.json") == policy


@pytest.mark.parametrize(("by", "expected"), [("x", "image"), ("D", "views"), (None, "image")])
def test_version_1_predicts_from_the_same_outputs(by: str | None, expected: str) -> None:
    content = json.loads(VERSION_1)
    del content["by"], content["class_names"]
    if by is not None:
        content["by"] = by
    policy = Policy.model_validate(content)
    assert policy.predict_from == expected
    assert policy.class_names is None


def test_policy_has_properties_of_its_rule(policy: Policy, classifier: Classifier) -> None:
    assert policy.certified
    assert policy.coverage == policy.rule.coverage
    plain = Policy.from_rule(Rule(0.9), classifier=classifier, views=("identity",))
    assert not plain.certified
    with pytest.raises(DecisionError, match="coverage"):
        plain.coverage  # noqa: B018


def test_policy_without_guarantee(classifier: Classifier) -> None:
    policy = Policy.from_rule(Rule(0.9), classifier=classifier, views=("identity",))
    assert not policy.guarantee.certified
    assert policy.guarantee.text == "none"
    assert not policy.rule.certified


def test_other_classifier_is_rejected(policy: Policy) -> None:
    policy.check(load_classifier(classify, name="brightness", output="probabilities"))
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        policy.check(load_classifier(classify, name="darkness", output="probabilities"))
    with pytest.raises(DecisionError, match=r"digest.*'brightness'"):
        policy.check(load_classifier(classify, output="probabilities"))


def test_other_preprocessing_or_output_is_rejected(policy: Policy) -> None:
    changed = {**policy.classifier.preprocessing, "mean": [0.5]}
    with pytest.raises(DecisionError, match=r"mean=\[0\.0\].*mean=\[0\.5\]"):
        policy.check(policy.classifier.model_copy(update={"preprocessing": changed}))
    with pytest.raises(DecisionError, match=r"probabilities.*'brightness' outputs logits"):
        policy.check(policy.classifier.model_copy(update={"output": "logits"}))


def test_mismatch_has_reason_and_repair(policy: Policy, classifier: Classifier) -> None:
    assert policy.find_mismatch(classifier) is None
    other = policy.classifier.model_copy(update={"digest": "0" * 64})
    mismatch = policy.find_mismatch(other)
    assert mismatch is not None
    with pytest.raises(DecisionError, match=re.escape(f"{mismatch.reason}; {mismatch.repair}.")):
        policy.check(other)


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda content: content.update(version=7), "version"),
        (lambda content: content.update(color="red"), "color"),
        (lambda content: content["calibration"].update(mean_looks=1.5), "calibration.*mean_looks"),
        (lambda content: content.pop("threshold"), "threshold"),
        (lambda content: content.update(threshold="NaN"), "threshold"),
        (lambda content: content.update(views=["identity", "wobble:3"]), "views: .*wobble"),
        (lambda content: content.update(views=["hflip"]), "views: .*'hflip'"),
        (lambda content: content.update(method="meen"), "method: .*'meen'.*'mean'"),
        (lambda content: content.update(method="mean:x"), "method: .*'mean:x'"),
        *(
            (lambda content, name=name: content["options"].update({name: 1}), f"options: .*'{name}'.*level")
            for name in ("k", "preds", "name", "method", "predict_from", "top_k", "levle", "")
        ),
        (lambda content: content.update(predict_from="x"), "predict_from"),
        (lambda content: content.update(by="x"), "by"),
        (lambda content: content["guarantee"].update(risk=2.0), "guarantee.risk"),
        (lambda content: content["guarantee"].pop("risk"), "guarantee: .*risk"),
    ],
)
def test_invalid_file_is_rejected(policy: Policy, tmp_path: Path, edit: Edit, where: str) -> None:
    content = json.loads(policy.model_dump_json())
    edit(content)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DecisionError, match=where):
        Policy.load(path)


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda content: content.update(color="red"), "color"),
        (lambda content: content.update(by="y"), "predict_from"),
        (lambda content: content.pop("promise"), "guarantee"),
    ],
)
def test_invalid_version_1_file_is_rejected(tmp_path: Path, edit: Edit, where: str) -> None:
    content = json.loads(VERSION_1)
    edit(content)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DecisionError, match=where):
        Policy.load(path)


def test_missing_or_truncated_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DecisionError, match=r"policy\.json.*No such file"):
        Policy.load(tmp_path / "policy.json")
    (tmp_path / "half.json").write_text('{"format": "second')
    with pytest.raises(DecisionError, match=r"half\.json.*Invalid JSON"):
        Policy.load(tmp_path / "half.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(DecisionError, match=r"list\.json"):
        Policy.load(tmp_path / "list.json")


def test_rule_that_cannot_be_stored_is_rejected(classifier: Classifier) -> None:
    def make(rule: Rule, views: tuple[str, ...] = ("identity",)) -> Policy:
        return Policy.from_rule(rule, classifier=classifier, views=views)

    with pytest.raises(DecisionError, match="finite threshold, got inf"):
        make(certify_confidence([False] * 50, np.arange(50.0), risk=0.1, delta=0.1))
    with pytest.raises(DecisionError, match=r"passes= .*'mc-dropout'.*ndarray"):
        make(Rule(0.5, "mc-dropout", options={"passes": np.zeros(3)}))
    with pytest.raises(DecisionError, match=r"options: .*'preds'"):
        make(Rule(0.5, "mean", options={"preds": 1}))
    with pytest.raises(DecisionError, match=r"method: .*'maen'"):
        make(Rule(0.5, "maen"))
    with pytest.raises(DecisionError, match=r"views: .*\['hflip'\]"):
        make(Rule(0.5), views=("hflip",))


def test_class_names_are_stored_if_known(classifier: Classifier, tmp_path: Path) -> None:
    named = Policy.from_rule(Rule(0.9), classifier=classifier, views=("identity",), class_names=("dark", "bright"))
    named.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").class_names == ("dark", "bright")
    content = json.loads(VERSION_2)
    del content["class_names"]
    (tmp_path / "without.json").write_text(json.dumps(content))
    assert Policy.load(tmp_path / "without.json").class_names is None


@pytest.mark.parametrize(("on", "expected"), [("x", "image"), ("D", "views")])
def test_version_1_options_are_upgraded(on: str, expected: str) -> None:
    content = json.loads(VERSION_1) | {"method": "entropy", "options": {"on": on}}
    assert Policy.model_validate_json(json.dumps(content)).options == {"on": expected}


def test_version_1_spelling_in_the_classifier_spec_is_upgraded() -> None:
    content = json.loads(VERSION_1)
    content["classifier"]["name"] = "onnx:grey=1.onnx?grey=luminance&colour=BGR&mean=0.5"
    policy = Policy.model_validate_json(json.dumps(content))
    assert policy.classifier.name == "onnx:grey=1.onnx?gray=luminance&color=BGR&mean=0.5"


def test_checksum_is_the_hash_of_the_other_content(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    content = json.loads((tmp_path / "policy.json").read_text())
    checksum = content.pop("checksum")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert checksum == policy.checksum == hashlib.sha256(canonical.encode()).hexdigest()


def test_file_with_other_spaces_or_order_is_intact(policy: Policy, tmp_path: Path) -> None:
    content = json.loads(policy.model_dump_json())
    (tmp_path / "policy.json").write_text(json.dumps(dict(reversed(content.items())), indent=1))
    assert Policy.load(tmp_path / "policy.json") == policy
    assert Policy.is_intact(tmp_path / "policy.json") is True
    assert Policy.model_validate_json(policy.model_dump_json()) == policy
    assert Policy.model_validate(policy.model_dump()) == policy
    assert Policy(**policy.model_dump()) == policy


def check_guarantee_is_lost(policy: Policy) -> None:
    assert not policy.certified
    assert policy.rule.guarantee is None
    assert not policy.guarantee.certified
    assert "changed" in policy.guarantee.text


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.update(threshold=0.469),
        lambda content: content["guarantee"].update(risk=0.0001),
        lambda content: content["classifier"].update(name="onnx:moved.onnx"),
        lambda content: content["views"].pop(),
        lambda content: content.pop("class_names"),
        lambda content: content.update(checksum="0" * 64),
        lambda content: content.update(checksum=None),
        lambda content: content.pop("checksum"),
        lambda content: (content.pop("checksum"), content.pop("version")),
        lambda content: content.update(version=2),
    ],
)
def test_edited_file_loses_its_guarantee(policy: Policy, tmp_path: Path, edit: Edit) -> None:
    content = json.loads(policy.model_dump_json())
    edit(content)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    with pytest.warns(PolicyWarning, match=r"policy\.json") as caught:
        loaded = Policy.load(path)
    assert [one.filename for one in caught] == [__file__]
    check_guarantee_is_lost(loaded)
    assert loaded.threshold == content["threshold"]
    assert Policy.is_intact(path) is False
    loaded.save(path)
    check_guarantee_is_lost(Policy.load(path))


def test_edited_content_loses_its_guarantee_wherever_it_is_read(policy: Policy) -> None:
    content = json.loads(policy.model_dump_json()) | {"threshold": 0.469}
    with pytest.warns(PolicyWarning, match="changed"):
        check_guarantee_is_lost(Policy.model_validate(content))
    with pytest.warns(PolicyWarning, match="changed"):
        check_guarantee_is_lost(Policy(**content))


def test_policy_changed_in_python_keeps_its_guarantee(policy: Policy, tmp_path: Path) -> None:
    changed = policy.model_copy(update={"class_names": ("dark", "bright")})
    assert changed.checksum != policy.checksum
    changed.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").rule.guarantee == policy.rule.guarantee


def test_no_flipped_bit_is_silent(policy: Policy, tmp_path: Path) -> None:
    """A damaged file is an error, or loses its guarantee and says so; otherwise its content is the same."""
    path = tmp_path / "policy.json"
    policy.save(path)
    content = path.read_bytes()
    ends = dict.fromkeys(("error", "warning", "same"), 0)
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                loaded = Policy.load(path)
            except DecisionError:
                ends["error"] += 1
                continue
        if caught:
            check_guarantee_is_lost(loaded)
            ends["warning"] += 1
        else:
            assert loaded == policy
            ends["same"] += 1
    assert ends["error"] > 100
    assert ends["warning"] > 100
    assert ends["same"] < 10, "a capital E in a number is the same number"


def test_another_policy_is_replaced_only_if_asked(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy.save(path)
    policy.model_copy(update={"made": "2027-01-01", "secondlook": "99.0"}).save(path)
    assert Policy.load(path).made == "2027-01-01", "the same policy may be written again"
    stored = path.read_bytes()
    others = [
        policy.model_copy(update=change)
        for change in ({"threshold": 0.123}, {"views": ("identity",)}, {"class_names": ("a", "b")})
    ]
    for other in others:
        with pytest.raises(DecisionError, match=r"another policy .*2027-01-01.*overwrite=True.*another name"):
            other.save(path)
        assert path.read_bytes() == stored
    others[0].save(path, overwrite=True)
    assert Policy.load(path) == others[0]


def test_changed_policy_is_another_one(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy.save(path)
    path.write_text(path.read_text().replace("identity", "identity ", 1))
    with pytest.raises(DecisionError, match="overwrite=True"):
        policy.save(path)
    path.write_text("{}")
    with pytest.raises(DecisionError, match="overwrite=True"):
        policy.save(path)


def test_reason_of_a_lost_guarantee_is_told(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy.save(path)
    content = json.loads(path.read_text())
    content["threshold"] /= 2
    path.write_text(json.dumps(content))
    with pytest.warns(PolicyWarning):
        changed = Policy.load(path)
    assert "changed after it was written" in changed.guarantee_text
    assert f"guarantee: {changed.guarantee_text}" in str(changed)


def test_text_of_a_file_does_not_claim_a_guarantee(policy: Policy) -> None:
    claim = PolicyGuarantee(certified=False, text="at most 0 % errors")
    assert policy.model_copy(update={"guarantee": claim}).guarantee_text == "none"


@pytest.mark.parametrize("change", [{"class_shares": ()}, {"class_shares": (0.1,) * 17}, {"shifts": ()}])
def test_empty_shift_model_is_rejected(change: dict[str, object]) -> None:
    shift = {"kind": "blur", "views": ["blur:1"], "accuracy": [0.8], "estimate": [0.7]}
    numbers = {"constant": 0.0, "slope": 1.0, "error": 0.1}
    content = {"images": 500, "class_shares": [1.0], "risk": None, "shifts": [shift]}
    content |= {"accuracy": {"clean": 2.0, "class_weight": 0.0, **numbers}}
    assert "blur" in str(ShiftModel.model_validate(content))
    with pytest.raises(ValidationError):
        ShiftModel.model_validate({**content, **change})
