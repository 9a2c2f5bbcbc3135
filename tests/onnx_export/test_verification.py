"""`verify_export`: differences between a file and the library are found, explained and reported."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
from onnx import numpy_helper
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, OnnxFile, load_classifier
from secondlook.decisions import load_policy, score
from secondlook.errors import DecisionError, PredictionsError
from secondlook.onnx_export import export_onnx, verification, verify_export
from secondlook.policies import Policy, fit_schedule
from secondlook.predictions import Execution
from tests.onnx_export.conftest import MEAN, make_images, make_policy, write_network
from tests.policy_maker import limit_familiarity

VIEWS = "identity hflip shift:1,0 shift:-1,2 gamma:0.8"
IMAGES = make_images(150, seed=8)


def write_changed(network: Path, path: Path, change: float) -> str:
    """Write a network with slightly other weights, and return its spec."""
    model = onnx.load(network)
    (last,) = (one for one in model.graph.initializer if one.name == "last")
    noise = np.random.default_rng(0).normal(0, change, numpy_helper.to_array(last).shape)
    last.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(last) + noise).astype(np.float32), "last"))
    onnx.save(model, path)
    return f"onnx:{path}?mean=.5&std=.25"


def make_rule(classifier: Classifier, kind: str) -> Policy:
    """Return a rule that accepts half of the images, or most familiar ones; 'adaptive' is one with a schedule."""
    settings: dict[str, Any] = {"top_k": 2} if kind == "top-2" else {"predict_from": "views"} if kind == "views" else {}
    rule, share = Policy(threshold=0.5, method="mean", **settings), 0.2 if "familiar" in kind else 0.5
    _, preds = make_policy(classifier, IMAGES, rule, VIEWS)
    rule = rule.model_copy(update={"threshold": float(np.quantile(rule.confidence(preds), share))})
    if "adaptive" in kind:
        rule = rule.model_copy(update={"schedule": fit_schedule(preds, rule, tolerance=0.02)})
    return limit_familiarity(rule, preds) if "familiar" in kind else rule


@pytest.fixture
def changed(classifier: Classifier, network_file: Path, tmp_path: Path) -> Callable[[str], tuple[Path, Policy]]:
    """Returns a function that exports the policy of a rule with a slightly other network."""

    def export(kind: str) -> tuple[Path, Policy]:
        policy, _ = make_policy(classifier, IMAGES[:1], make_rule(classifier, kind), VIEWS)
        other = write_changed(network_file, tmp_path / "changed.onnx", 0.05)
        return export_onnx(policy, tmp_path / "d.onnx", classifier=other, allow_mismatch=True).path, policy

    return export


def read_decisions(given: Any, images: Array, out: Path, **options: Any) -> list[dict[str, Any]]:
    score(given, images, out, **options, execution=Execution(progress=False))
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows


@pytest.mark.parametrize("kind", ["image", "views", "top-2", "adaptive", "familiar", "familiar, adaptive"])
def test_the_same_classifier_passes(classifier: Classifier, tmp_path: Path, kind: str) -> None:
    policy, _ = make_policy(classifier, IMAGES, make_rule(classifier, kind), VIEWS)
    export_onnx(policy, tmp_path / "d.onnx", classifier=classifier)
    result = verify_export(tmp_path / "d.onnx", policy, IMAGES, classifier=classifier, max_difference=1e-5)
    assert result.passed
    assert (result.images, result.skipped) == (150, 0)
    assert (result.differing_labels, result.differing_decisions, result.differing_looks) == (0, 0, 0)
    assert result.differing == ()
    assert 0 < result.mean_difference <= result.largest_difference < 1e-5
    assert result.largest_probability_difference < 1e-5
    assert "passed" in str(result)


@pytest.mark.parametrize("kind", ["image", "views", "top-2", "adaptive", "familiar", "familiar, adaptive"])
def test_differences_are_those_of_the_scores(changed: Any, classifier: Classifier, tmp_path: Path, kind: str) -> None:
    """A slightly other network in the file; the rows of both are compared as an independent reference."""
    file, policy = changed(kind)
    mine = read_decisions(policy, IMAGES, tmp_path / "mine.parquet", classifier=classifier)
    theirs = read_decisions(file, IMAGES, tmp_path / "theirs.parquet")
    result = verify_export(file, policy, IMAGES, classifier=classifier)
    pairs = list(zip(mine, theirs, strict=True))
    classes = "labels" if kind == "top-2" else "label"
    assert result.differing_labels == sum(one[classes] != other[classes] for one, other in pairs)
    assert result.differing_decisions == sum(one["accept"] != other["accept"] for one, other in pairs)
    assert result.differing_looks == sum(one["looks"] != other["looks"] for one, other in pairs)
    alike = [(one, other) for one, other in pairs if (one[classes], one["looks"]) == (other[classes], other["looks"])]
    differences = [abs(one["confidence"] - other["confidence"]) for one, other in alike]
    assert result.largest_difference == pytest.approx(max(differences), abs=1e-6)
    assert result.mean_difference == pytest.approx(sum(differences) / len(differences), abs=1e-6)
    names = (classes, "accept", "looks")
    changed_ids = {one["id"] for one, other in pairs if [one[n] for n in names] != [other[n] for n in names]}
    assert {image.id for image in result.differing} == changed_ids
    assert changed_ids, "the test needs a difference"
    by_id = {one["id"]: (one, other) for one, other in pairs}
    for image in result.differing:
        one, other = by_id[image.id]
        assert image.library.confidence == pytest.approx(one["confidence"], abs=1e-6)
        assert image.file.confidence == pytest.approx(other["confidence"], abs=1e-6)
        assert image.threshold_distance == pytest.approx(abs(one["confidence"] - policy.threshold), abs=1e-6)
        assert (image.library.accept, image.file.accept) == (one["accept"], other["accept"])
    distances = [image.distance for image in result.differing]
    assert distances == sorted(distances, reverse=True)
    assert not result.passed
    assert "failed" in str(result)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        *(("image", "decision"), ("views", "class"), ("adaptive", "looks")),
        *(("familiar", "familiarity"), ("familiar, adaptive", "familiarity")),
    ],
)
def test_ties_are_explained_within_the_tolerance(changed: Any, classifier: Classifier, kind: str, cause: str) -> None:
    file, policy = changed(kind)

    def verify(max_difference: float) -> Any:
        return verify_export(file, policy, IMAGES, classifier=classifier, max_difference=max_difference)

    strict = verify(1e-9)
    distances = [image.distance for image in strict.differing]
    assert cause in {image.cause for image in strict.differing}
    assert strict.unexplained == sum(distance > 1e-9 for distance in distances)
    largest = max(*distances, strict.largest_difference)
    assert verify(largest * 1.0001).passed
    assert not verify(largest * 0.999).passed
    assert np.median(distances) < 0.2, "images that differ are those close to where the result changes"


def test_distance_of_looks_is_measured_to_the_next_limit(changed: Any, classifier: Classifier) -> None:
    file, policy = changed("adaptive")
    rule, (_, preds) = make_rule(classifier, "adaptive"), make_policy(classifier, IMAGES, MEAN, VIEWS)
    result = verify_export(file, policy, IMAGES, classifier=classifier)
    assert rule.schedule is not None
    lower, upper = rule.schedule.limits(rule.threshold)
    running = rule.compiled.running(preds.select(views=list(policy.views)))
    looked = [image for image in result.differing if image.cause == "looks"]
    assert len(looked) > 1
    for image in looked:
        looks = min(image.library.looks, image.file.looks)
        after = running[preds.ids.index(image.id), looks - 1]
        estimate = float(rule.schedule.estimate(looks, np.array([after]))[0])
        expected = min(abs(estimate - lower[looks - 1]), abs(estimate - upper[looks - 1]))
        assert image.distance == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["image", "adaptive"])
def test_different_probabilities_fail(classifier: Classifier, tmp_path: Path, kind: str) -> None:
    policy, _ = make_policy(classifier, IMAGES, make_rule(classifier, kind), VIEWS)
    file = export_onnx(policy, tmp_path / "d.onnx", classifier=classifier).path
    change_probabilities(file, 1.01)
    result = verify_export(file, policy, IMAGES, classifier=classifier)
    assert result.largest_difference < 1e-5
    assert 0.005 < result.largest_probability_difference < 0.0101
    assert not result.passed
    assert "probability" in result.verdict
    assert verify_export(file, policy, IMAGES, classifier=classifier, max_difference=0.0101).passed


def change_probabilities(file: Path, factor: float) -> None:
    """Multiply the probabilities of a file, and nothing else."""
    model = onnx.load(file)
    (node,) = (node for node in model.graph.node if list(node.output) == ["probabilities"])
    model.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    node.op_type = "Mul"
    node.input.append("factor")
    file.write_bytes(OnnxFile.seal(model.SerializeToString()))


@pytest.mark.parametrize(
    ("settings", "views", "interpolates"),
    [
        ("", VIEWS, False),
        ("", "identity shift:0.5,0", True),
        ("", "identity rotate:5", True),
        ("&resize=16,16", "identity hflip", True),
        ("&resize=16,16&interpolation=nearest", "identity hflip", False),
    ],
)
def test_failure_explains_rounded_pixels(
    network_file: Path, tmp_path: Path, settings: str, views: str, interpolates: bool
) -> None:
    classifier = load_classifier(f"onnx:{network_file}?mean=.5&std=.25{settings}")
    policy, _ = make_policy(classifier, IMAGES, Policy(threshold=0.7, method="mean"), views)
    file = export_onnx(policy, tmp_path / "d.onnx", classifier=classifier).path
    result = verify_export(file, policy, IMAGES[:20], classifier=classifier, max_difference=0)
    assert not result.passed
    assert ("rounding" in result.verdict) == interpolates
    assert "rounding" not in replace(result, largest_difference=0.1).verdict, "which is too much for rounding"
    assert "rounding" not in replace(result, max_difference=1).verdict, "the file passes"


def test_another_policy_and_invalid_arguments_are_rejected(classifier: Classifier, tmp_path: Path) -> None:
    policies = [
        make_policy(classifier, IMAGES[:5], Policy(threshold=threshold, method="mean"), VIEWS)[0]
        for threshold in (0.61, 0.62)
    ]
    export_onnx(policies[0], tmp_path / "d.onnx", classifier=classifier)
    with pytest.raises(DecisionError, match=r"0\.61.*0\.62") as error:
        verify_export(tmp_path / "d.onnx", policies[1], IMAGES, classifier=classifier)
    assert all(policy.checksum[:8] in str(error.value) for policy in policies)
    valid: dict[str, Any] = {"path": tmp_path / "d.onnx", "policy": tmp_path / "p.json", "data": IMAGES}
    wrong = (("path", "policy.json"), ("max_difference", -1), ("max_difference", "x"), ("limit", 0), ("limit", 2.5))
    for name, value in wrong:
        with pytest.raises(DecisionError, match=re.escape(repr(value))):
            verify_export(**{**valid, name: value})


def test_policy_may_be_a_file_or_bound_to_its_classifier(
    classifier: Classifier, network_file: Path, tmp_path: Path
) -> None:
    policy, _ = make_policy(classifier, IMAGES[:5], Policy(threshold=0.6, method="mean"), VIEWS)
    policy.save(tmp_path / "policy.json")
    export_onnx(tmp_path / "policy.json", tmp_path / "d.onnx")
    for given in (tmp_path / "policy.json", load_policy(tmp_path / "policy.json"), tmp_path / "d.onnx"):
        assert verify_export(tmp_path / "d.onnx", given, IMAGES[:20]).passed
    network_file.unlink()
    with pytest.raises(DecisionError, match="classifier="):
        verify_export(tmp_path / "d.onnx", policy, IMAGES)


def test_files_of_several_sizes_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network_file: Path) -> None:
    classifier = load_classifier(f"onnx:{network_file}?resize=16,16&interpolation=nearest")
    policy, _ = make_policy(classifier, IMAGES, Policy(threshold=0.7, method="mean"), VIEWS)
    export_onnx(policy, tmp_path / "d.onnx", classifier=classifier)
    (tmp_path / "new").mkdir()
    for number, image in enumerate(make_images(30, 20)):
        Image.fromarray(image[:, : 18 + number % 3]).save(tmp_path / "new" / f"{number:02d}.png")
    (tmp_path / "new" / "03.png").write_bytes(b"broken")
    monkeypatch.setattr(verification, "BLOCK_IMAGES", 4)
    given, skip = (tmp_path / "d.onnx", policy, f"folder:{tmp_path / 'new'}"), Execution(on_error="skip", batch_size=3)
    result = verify_export(*given, classifier=classifier, execution=skip)
    assert (result.images, result.skipped, result.passed) == (29, 1, True)
    some = verify_export(*given, classifier=classifier, execution=Execution(on_error="skip"), limit=7)
    assert some.images + some.skipped == 7
    for path in (tmp_path / "new").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(PredictionsError, match=r"00\.png"):
        verify_export(*given, classifier=classifier, execution=skip)


def test_only_some_differing_images_are_kept_and_listed(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = make_policy(classifier, IMAGES[:5], Policy(threshold=0.7, method="mean"), VIEWS)
    other = f"onnx:{write_network(tmp_path / 'other.onnx', seed=5)}?mean=.5&std=.25"
    export_onnx(policy, tmp_path / "d.onnx", classifier=other, allow_mismatch=True)
    monkeypatch.setattr(verification, "MAX_KEPT", 30)
    result = verify_export(tmp_path / "d.onnx", policy, IMAGES, classifier=classifier)
    assert len(result.differing) == 30
    assert result.unexplained > 60
    assert sum("reject" in line or "accept" in line for line in str(result).splitlines()) == 20
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told["passed"] is False
    assert (told["images"], told["unexplained"]) == (result.images, result.unexplained)
    assert told["differing"][0]["library"]["confidence"] == result.differing[0].library.confidence
    assert "<table" in result._repr_html_()
