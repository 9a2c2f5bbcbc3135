"""Policies: what they accept and tell, and their files: written, read, verified and rejected."""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError, SecondLookError
from secondlook.policies import (
    Calibration,
    Guarantee,
    Policy,
    PolicyWarning,
    ShiftModel,
    certify,
    read_policy,
)
from secondlook.predictions import Predictions
from tests.policy_maker import attach

Edit = Callable[[dict[str, Any]], object]


def classify(batch: Any) -> Any:
    raise AssertionError("a policy does not run its classifier")


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return load_classifier(classify, name="brightness", output="probabilities")


@pytest.fixture(scope="module")
def policy(preds: Predictions, classifier: Classifier) -> Policy:
    rule = certify(preds, "zero", risk=0.1, delta=0.05, share=0.5)
    return attach(rule, classifier=classifier, views=preds.views.texts, data="array", data_digest="d" * 64)


def write_edited(policy: Policy, folder: Path, edit: Edit) -> Path:
    content = json.loads(policy.model_dump_json())
    edit(content)
    path = folder / "policy.json"
    path.write_text(json.dumps(content))
    return path


def test_plain_threshold_has_no_guarantee() -> None:
    rule = Policy(threshold=0.9, method="mean")
    assert not rule.certified
    assert rule.accept([0.95, 0.9, 0.1], method=rule.method).tolist() == [True, True, False]
    assert "guarantee: none" in str(rule)
    with pytest.raises(DecisionError, match="coverage"):
        rule.coverage  # noqa: B018


@pytest.mark.parametrize("value", [math.nan, "0.9", None, True, [0.9], np.array([0.9, 0.8])])
def test_threshold_must_be_a_number(value: Any) -> None:
    with pytest.raises(DecisionError, match=re.escape(f"threshold={value!r}")):
        Policy(threshold=value, method="mean")


def test_infinite_threshold_accepts_nothing_or_everything() -> None:
    assert not Policy(threshold=math.inf, method="mean").accept([0.5], method="mean").any()
    assert Policy(threshold=-math.inf, method="mean").accept([0.5], method="mean").all()


@pytest.mark.parametrize(
    ("confidence", "offending"),
    [
        ([np.nan], "NaN at index 0"),
        *((one, "confidence") for one in ([[0.1], [0.2, 0.3]], ["a"], [None], np.ma.masked_array([0.5], mask=[True]))),
    ],
)
def test_confidences_must_be_numbers(confidence: Any, offending: str) -> None:
    with pytest.raises(DecisionError, match=offending):
        Policy(threshold=0.5, method="mean").accept(confidence, method="mean")


def test_text_has_threshold_guarantee_and_calibration() -> None:
    rule = Policy(
        threshold=0.75,
        method="mean",
        guarantee=Guarantee(risk=0.01, delta=0.001),
        calibration=Calibration(images=2000, accepted=1500, errors=7, duplicates=12, joint_delta=0.2),
    )
    for part in (
        "mean >= 0.75",
        "1 % errors",
        "99.9 %",
        "1,500 of 2,000",
        "75 %",
        "7 of them",
        "12 correct copies",
        "20 %",
    ):
        assert part in str(rule)
    assert rule.certified
    assert rule.coverage == 0.75


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"smallest_risk": 0.025, "additional_images": 1200}, "2.5 %"),
        ({"additional_images": 1200}, "1,200"),
        ({"smallest_risk": 0.025}, "would not help"),
        (
            {"smallest_risk": 0.025, "additional_images": 1200, "larger_delta": 0.05},
            "a risk of 2.5 % or a delta of 0.05",
        ),
        ({"closest": Calibration(images=2000, accepted=1040, errors=7)}, "7 of 1,040"),
    ],
)
def test_shortfall_text_has_what_would_have_been_possible(known: dict[str, Any], text: str) -> None:
    requested = Guarantee(risk=0.01, delta=0.001)
    shortfall: Any = {"requested": requested, "smallest_risk": None, "additional_images": None, **known}
    assert text in str(Policy(threshold=math.inf, method="mean", shortfall=shortfall).shortfall)


def test_saved_policy_is_loaded(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    loaded = read_policy(tmp_path / "policy.json")
    assert loaded.decides_like(policy)
    assert loaded.threshold == policy.threshold
    assert loaded.guarantee == policy.guarantee
    assert loaded.options == {"share": 0.5}
    values = np.linspace(0, 1, 50)
    assert np.array_equal(loaded.accept(values, method=loaded.method), policy.accept(values, method=policy.method))


def test_file_is_readable_json(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    content = json.loads((tmp_path / "policy.json").read_text())
    assert list(content) == [
        *("format", "version", "made", "secondlook", "classifier", "views", "method", "options"),
        *("predict_from", "top_k", "threshold", "guarantee", "average_risk", "costs", "calibration"),
        *(
            "class_names",
            "schedule",
            "grouped_by",
            "groups",
            "familiarity",
            "unknown",
            "compared",
            "reference",
            "shifts",
            "checksum",
        ),
    ]
    assert content["format"] == "secondlook policy"
    assert content["version"] == 1
    assert content["classifier"]["name"] == "brightness"
    assert content["classifier"]["preprocessing"]["scale"] == 1 / 255
    assert content["views"] == ["identity", "hflip", "shift:1,0", "shift:0,1"]
    assert content["predict_from"] == "image"
    assert content["top_k"] == 1
    assert content["guarantee"] == {"risk": 0.1, "delta": 0.05, "grouped_by": None, "smallest_risk": None}
    assert content["calibration"]["images"] == 800
    assert content["made"].endswith("+00:00")
    assert "brightness, 4 views" in str(policy)


def test_other_classifier_is_rejected(policy: Policy) -> None:
    policy.check(load_classifier(classify, name="brightness", output="probabilities"))
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        policy.check(load_classifier(classify, name="darkness", output="probabilities"))
    with pytest.raises(DecisionError, match=r"'function classify'.*'brightness'"):
        policy.check(load_classifier(classify, output="probabilities"))


def test_other_preprocessing_or_output_is_rejected(policy: Policy) -> None:
    changed = {**policy.known_classifier.preprocessing, "mean": [0.5]}
    with pytest.raises(DecisionError, match=r"mean \[0\.0\].*\[0\.5\]"):
        policy.check(policy.known_classifier.model_copy(update={"preprocessing": changed}))
    with pytest.raises(DecisionError, match=r"probabilities.*'brightness' outputs logits"):
        policy.check(policy.known_classifier.model_copy(update={"output": "logits"}))


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda content: content.update(version=2), "version"),
        (lambda content: content.update(color="red"), "color"),
        (lambda content: content["calibration"].update(mean_looks=1.5), "calibration.*mean_looks"),
        (lambda content: content.pop("threshold"), "threshold"),
        (lambda content: content.update(threshold="NaN"), "threshold"),
        (lambda content: content.update(views=["identity", "wobble:3"]), "views: .*wobble"),
        (lambda content: content.update(views=["hflip"]), "views: .*'hflip'"),
        (lambda content: content.update(method="meen"), "method: .*'meen'.*'mean'"),
        (lambda content: content.update(method="mean:x"), "method: .*'mean:x'"),
        *(
            (lambda content, name=name: content["options"].update({name: 1}), f"options: .*'{name}'.*share")
            for name in ("k", "preds", "name", "method", "predict_from", "top_k", "shaer", "")
        ),
        (lambda content: content.update(predict_from="x"), "predict_from"),
        (lambda content: content["guarantee"].update(risk=2.0), "guarantee.risk"),
        (lambda content: content["guarantee"].pop("risk"), "guarantee.risk"),
    ],
)
def test_invalid_file_is_rejected(policy: Policy, tmp_path: Path, edit: Edit, where: str) -> None:
    with pytest.raises(DecisionError, match=where):
        read_policy(write_edited(policy, tmp_path, edit))


@pytest.mark.parametrize(
    ("content", "fault"), [(None, ".*No such file"), ('{"format": "second', ".*Invalid JSON"), ("[1]", "")]
)
def test_missing_or_truncated_file_is_rejected(tmp_path: Path, content: str | None, fault: str) -> None:
    if content is not None:
        (tmp_path / "policy.json").write_text(content)
    with pytest.raises(DecisionError, match=rf"policy\.json{fault}"):
        read_policy(tmp_path / "policy.json")


def test_policy_that_cannot_be_stored_is_rejected(classifier: Classifier, tmp_path: Path) -> None:
    def make(view: str = "identity", threshold: float = 0.5, method: str = "mean", **options: object) -> None:
        policy = Policy(threshold=threshold, method=method, options=options)
        attach(policy, classifier=classifier, views=(view,)).save(tmp_path / "policy.json")

    with pytest.raises(DecisionError, match="finite threshold, got inf"):
        make(threshold=math.inf)
    with pytest.raises(DecisionError, match=r"'views'.*'mean'.*ndarray"):
        make(views=np.zeros(3))
    with pytest.raises(DecisionError, match=r"options=.*'preds'"):
        make(preds=1)
    with pytest.raises(SecondLookError, match=r"'maen'"):
        make(method="maen")
    with pytest.raises(DecisionError, match=r"'identity'.*'hflip'"):
        make("hflip")


def test_checksum_is_the_hash_of_the_other_content(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.json")
    content = json.loads((tmp_path / "policy.json").read_text())
    checksum = content.pop("checksum")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert checksum == hashlib.sha256(canonical.encode()).hexdigest()
    assert checksum == policy.model_copy(update={"made": content["made"]}).checksum


def test_file_with_other_spaces_or_order_is_intact(policy: Policy, tmp_path: Path) -> None:
    content = json.loads(policy.model_dump_json())
    (tmp_path / "policy.json").write_text(json.dumps(dict(reversed(content.items())), indent=1))
    assert read_policy(tmp_path / "policy.json") == policy
    assert not read_policy(tmp_path / "policy.json").was_changed
    assert Policy.model_validate_json(policy.model_dump_json()) == policy
    assert Policy.model_validate(policy.model_dump()) == policy
    assert Policy(**policy.model_dump()) == policy


def check_guarantee_is_lost(policy: Policy) -> None:
    assert not policy.certified
    assert policy.guarantee is None
    assert policy.was_changed
    assert "changed" in policy.guarantee_text


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
    ],
)
def test_edited_file_loses_its_guarantee(policy: Policy, tmp_path: Path, edit: Edit) -> None:
    path = write_edited(policy, tmp_path, edit)
    with pytest.warns(PolicyWarning, match=r"policy\.json") as caught:
        loaded = read_policy(path)
    assert [one.filename for one in caught] == [__file__]
    check_guarantee_is_lost(loaded)
    assert loaded.threshold == json.loads(path.read_text())["threshold"]
    loaded.save(path, overwrite=True)
    assert not read_policy(path).certified, "saving it does not restore the guarantee"


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
    assert read_policy(tmp_path / "policy.json").guarantee == policy.guarantee


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
                loaded = read_policy(path)
            except DecisionError:
                ends["error"] += 1
                continue
        if caught:
            check_guarantee_is_lost(loaded)
            ends["warning"] += 1
        else:
            assert loaded.decides_like(policy)
            ends["same"] += 1
    assert ends["error"] > 100
    assert ends["warning"] > 100
    assert ends["same"] < 10, "a capital E in a number is the same number"


def test_another_policy_is_replaced_only_if_asked(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy.save(path)
    policy.model_copy(update={"made": "2027-01-01", "secondlook": "99.0"}).save(path)
    assert read_policy(path).made == "2027-01-01", "the same policy may be written again"
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
    assert read_policy(path).decides_like(others[0])


def test_changed_policy_is_another_one(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy.save(path)
    for content in (path.read_text().replace("identity", "identity ", 1), "{}"):
        path.write_text(content)
        with pytest.raises(DecisionError, match="overwrite=True"):
            policy.save(path)


@pytest.mark.parametrize("change", [{"class_shares": ()}, {"class_shares": (0.1,) * 17}, {"shifts": ()}])
def test_empty_shift_model_is_rejected(change: dict[str, object]) -> None:
    shift = {"kind": "blur", "views": ["blur:1"], "accuracy": [0.8], "estimate": [0.7]}
    numbers = {"constant": 0.0, "slope": 1.0, "error": 0.1}
    content = {"images": 500, "class_shares": [1.0], "risk": None, "shifts": [shift]}
    content |= {"accuracy": {"clean": 2.0, "class_weight": 0.0, **numbers}}
    assert "blur" in str(ShiftModel.model_validate(content))
    with pytest.raises(ValidationError):
        ShiftModel.model_validate({**content, **change})
