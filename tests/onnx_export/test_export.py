"""Exported files against the library: the same decisions from the same images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.errors import DecisionError, ExportError
from secondlook.onnx_export import export_onnx
from secondlook.predictions import Predictions
from secondlook.scoring import load_decider, load_policy
from secondlook.selective import Policy, Rule, certify, fit_schedule
from tests.estimators.conftest import LEARNED_WEIGHTS
from tests.onnx_export.conftest import N_CLASSES, make_images, make_policy, write_network

METHODS: dict[str, dict[str, Any]] = {
    "mean": {},
    "blend": {},
    "learned": LEARNED_WEIGHTS,
    "msr": {},
    "entropy": {"on": "views"},
    "mean-logit": {"temperature": 2.0},
}


def run_file(path: Path, images: Array) -> dict[str, Array]:
    """Run an exported file with ONNX Runtime alone, as someone without this library would."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images}), strict=True))


def check_equal(found: dict[str, Array], rule: Rule, preds: Predictions, *, atol: float = 1e-6) -> None:
    """Compare the outputs of a file with what the library computes from predictions."""
    looked = rule.look(preds)
    first = looked.predicted.reshape(len(preds), -1)
    np.testing.assert_array_equal(found["label"], first[:, 0])
    if rule.top_k > 1:
        np.testing.assert_array_equal(found["labels"], first)
    np.testing.assert_allclose(found["confidence"], looked.confidence, atol=atol)
    np.testing.assert_array_equal(found["accept"], rule.accept_images(preds, looked.confidence))
    np.testing.assert_array_equal(found["looks"], looked.looks)
    taken = np.arange(len(rule.list_views(preds.views.texts))) < looked.looks[:, None]
    np.testing.assert_array_equal(np.isnan(found["view_outputs"]).any(axis=2), ~taken)


def fit_adaptive_rule(preds: Predictions, method: str, **settings: Any) -> Rule:
    """Return a rule with a schedule that looks at some images once and at others often."""
    plain = Rule(0.5, method, options=METHODS[method], **settings)
    threshold = float(np.median(plain.confidence(preds)))
    plain = replace(plain, threshold=threshold)
    return replace(plain, schedule=fit_schedule(preds, plain, tolerance=0.02))


@pytest.mark.parametrize("settings", [{}, {"predict_from": "views"}, {"top_k": 2}], ids=str)
@pytest.mark.parametrize("method", list(METHODS))
def test_decisions_equal_the_library(
    classifier: Classifier, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    images = make_images()
    rule = Rule(0.5, method, options=METHODS[method], **settings)
    policy, preds = make_policy(classifier, images, rule)
    lower, upper = np.sort(rule.confidence(preds))[10:12]
    rule = replace(rule, threshold=float(lower + upper) / 2)
    policy, _ = make_policy(classifier, images, rule)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    found = run_file(summary.path, images)
    check_equal(found, rule, preds, atol=2e-3)  # rotations and zooms may round a pixel to its neighbor
    assert 0 < found["accept"].sum() < len(images)
    np.testing.assert_allclose(found["probabilities"], preds.probabilities.mean(axis=1), atol=2e-3)


@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize("settings", [{}, {"predict_from": "views"}, {"top_k": 2}], ids=str)
@pytest.mark.parametrize("method", ["mean", "blend", "learned"])
def test_adaptive_decisions_equal_the_library(
    classifier: Classifier, tmp_path: Path, method: str, settings: dict[str, Any], batch: int
) -> None:
    images, views = make_images(120), "identity hflip shift:1,0 shift:-1,2 shift:2,2 hflip+shift:0,1 gamma:0.8"
    _, preds = make_policy(classifier, images, Rule(0.5), views)
    rule = fit_adaptive_rule(preds, method, **settings)
    policy, _ = make_policy(classifier, images, rule, views)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert summary.adaptive
    parts = [
        run_file(summary.path, images[start : start + batch]) for start in range(0, 12 if batch == 1 else 120, batch)
    ]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    seen = preds.select(images=np.arange(len(found["label"])))
    check_equal(found, rule, seen)
    if batch > 1:
        assert len(set(found["looks"])) > 2


def test_adaptive_file_contains_the_network_once(classifier: Classifier, network_file: Path, tmp_path: Path) -> None:
    _, preds = make_policy(classifier, make_images(120), Rule(0.5))
    policy, _ = make_policy(classifier, make_images(120), fit_adaptive_rule(preds, "mean"))
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    (loop,) = [node for node in onnx.load(summary.path).graph.node if node.op_type == "Loop"]
    body = loop.attribute[0].g
    assert [node.op_type for node in body.node].count("AveragePool") == 1
    assert {"first", "last"} <= {tensor.name for tensor in body.initializer}


def test_threshold_of_each_class_is_used(classifier: Classifier, tmp_path: Path) -> None:
    images = make_images(600)
    _, preds = make_policy(classifier, images, Rule(0.5))
    labels = preds.predicted().copy()
    labels[::20] = (labels[::20] + 1) % N_CLASSES
    labeled = Predictions(logits=preds.logits, views=preds.views, labels=labels)
    rule = certify(labeled, "mean", risk=0.2, delta=0.1, groups="class")
    assert len({group.threshold for group in rule.groups}) > 1
    policy, _ = make_policy(classifier, images[:1], rule)
    found = run_file(export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier).path, images)
    looked = rule.look(preds)
    clear = np.abs(looked.confidence - np.array([group.threshold for group in rule.groups])[looked.predicted]) > 1e-3
    np.testing.assert_array_equal(found["accept"][clear], rule.accept_images(preds, looked.confidence)[clear])


def test_ensemble_with_different_normalization_is_exported(tmp_path: Path) -> None:
    files = [write_network(tmp_path / f"member{seed}.onnx", seed=seed) for seed in range(3)]
    members = [
        load_classifier(f"onnx:{file}?mean={mean}&std={std}")
        for file, mean, std in zip(files, (0.5, 0.4, 0.3), (0.25, 0.3, 0.2), strict=True)
    ]
    classifier, images = Ensemble(members), make_images(120)
    for method in ("mean", "blend"):
        _, preds = make_policy(classifier, images, Rule(0.5))
        rule = fit_adaptive_rule(preds, method)
        for chosen in (replace(rule, schedule=None), rule):
            policy, _ = make_policy(classifier, images, chosen)
            summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, overwrite=True)
            looked = chosen.look(preds)
            found = run_file(summary.path, images)
            clear = np.abs(looked.confidence - chosen.threshold) > 1e-3
            np.testing.assert_array_equal(found["accept"][clear], chosen.accept(looked.confidence)[clear])
            np.testing.assert_array_equal(found["label"], looked.predicted)


@pytest.mark.parametrize(
    "settings", ["resize=20&crop=16", "resize=16,16", "crop=16", "resize=16,16&interpolation=bicubic"]
)
def test_images_of_any_size_are_resized_and_cropped(network_file: Path, tmp_path: Path, settings: str) -> None:
    classifier = load_classifier(f"onnx:{network_file}?mean=.5&std=.25&{settings}")
    sizes = ((40, 60), (37, 21), (16, 16), (90, 33))
    photos = [
        np.kron(make_images(1, 16, seed=seed)[0], np.ones((6, 6, 1), np.uint8))[:h, :w]
        for seed, (h, w) in enumerate(sizes)
    ]
    fitted = classifier.preprocessing.fit(photos)
    rule = Rule(0.5)
    policy, preds = (
        make_policy(classifier, fitted, rule)
        if settings == "crop=16"
        else make_policy(load_classifier(f"onnx:{network_file}?mean=.5&std=.25"), fitted, rule)
    )
    policy = Policy.from_rule(rule, classifier=classifier, views=preds.views.texts)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert summary.image_shape == (None, None, 3)
    for place, photo in enumerate(photos):
        found = run_file(summary.path, photo[None])
        expected = preds.select(images=[place])
        assert found["label"] == expected.predicted()
        np.testing.assert_allclose(found["confidence"], rule.confidence(expected), atol=1e-2)


def test_float_pixels_are_taken(classifier: Classifier, tmp_path: Path) -> None:
    images = make_images()
    values = (images / 255).astype(np.float32)
    rule = Rule(0.5)
    policy, preds = make_policy(classifier, values, rule)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, pixels="float32")
    found = run_file(summary.path, values)
    np.testing.assert_allclose(found["confidence"], rule.confidence(preds), atol=1e-4)
    np.testing.assert_array_equal(found["label"], preds.predicted())


def test_gray_images_become_colors(network_file: Path, tmp_path: Path) -> None:
    classifier = load_classifier(f"onnx:{network_file}?gray=repeat")
    images, rule = make_images(channels=1), Rule(0.5)
    policy, preds = make_policy(classifier, images, rule)
    path = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier).path
    for given in (images, images.repeat(3, axis=3)):
        np.testing.assert_allclose(run_file(path, given)["confidence"], rule.confidence(preds), atol=2e-3)


def test_file_grows_little_and_tells_what_it_is(classifier: Classifier, tmp_path: Path) -> None:
    _, preds = make_policy(classifier, make_images(120), Rule(0.5))
    policy, _ = make_policy(classifier, make_images(120), fit_adaptive_rule(preds, "mean"))
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert summary.size == summary.path.stat().st_size
    assert 0 < summary.added < 50_000
    assert summary.opset >= 18
    model = onnx.load(summary.path)
    onnx.checker.check_model(model, full_check=True)
    metadata = {one.key: one.value for one in model.metadata_props}
    assert Policy.model_validate_json(metadata["secondlook.policy"]) == policy
    assert json.loads(metadata["secondlook.export"])["adaptive"] is True
    assert "until its decision is clear" in model.doc_string
    assert set(summary.to_dict()) >= {"path", "size", "added", "opset", "pixels"}
    assert str(summary.path) in str(summary)


def test_shapes_can_be_inferred(classifier: Classifier, tmp_path: Path) -> None:
    _, preds = make_policy(classifier, make_images(120), Rule(0.5))
    for rule in (Rule(0.5), fit_adaptive_rule(preds, "mean")):
        policy, _ = make_policy(classifier, make_images(4), rule)
        path = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, overwrite=True).path
        model = onnx.load(path)
        del model.graph.output[:]
        model.graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(name) for name in ("confidence", "view_outputs")
        )
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        sizes = {one.name: [size.dim_value for size in one.type.tensor_type.shape.dim] for one in inferred.graph.output}
        assert len(sizes["confidence"]) == 1
        assert sizes["view_outputs"][2] == N_CLASSES


def test_policy_file_is_exported_and_loaded(
    network_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    classifier = load_classifier("onnx:network.onnx?mean=.5&std=.25")
    policy, _ = make_policy(classifier, make_images(), Rule(0.6))
    policy.save("policy.json")
    path = export_onnx("policy.json", "decide.onnx").path
    decider, loaded = load_decider(path), load_policy("policy.json")
    for image in make_images()[:5]:
        one, other = decider.decide(image), loaded.decide(image)
        assert (one.label, one.accept, one.looks) == (other.label, other.accept, other.looks)
        assert one.confidence == pytest.approx(other.confidence, abs=2e-3)
        assert one.interval == pytest.approx(other.interval, abs=5e-3)
    assert decider.policy == policy


def test_policy_of_another_classifier_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    policy, _ = make_policy(classifier, make_images(), Rule(0.5))
    other = load_classifier(f"onnx:{write_network(tmp_path / 'other.onnx', seed=5)}?mean=.5&std=.25")
    with pytest.raises(DecisionError):
        export_onnx(policy, tmp_path / "decide.onnx", classifier=other)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=other, allow_mismatch=True)
    assert "none, since" in summary.guarantee_text
    assert load_decider(summary.path).record.mismatch


def test_method_without_an_onnx_form_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    policy, _ = make_policy(classifier, make_images(), Rule(0.5, "bootstrap-lower"))
    with pytest.raises(ExportError, match="bootstrap-lower"):
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)


def test_function_is_refused(tmp_path: Path) -> None:
    def predict(images: Array) -> Array:
        return np.eye(N_CLASSES)[np.zeros(len(images), dtype=int)]

    classifier = load_classifier(predict, output="probabilities", name="mine")
    policy, _ = make_policy(classifier, make_images(), Rule(0.5))
    with pytest.raises(ExportError, match="function"):
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, image_shape=(16, 16, 3))


def test_unknown_size_must_be_given(tmp_path: Path) -> None:
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'any.onnx', side=None)}?mean=.5&std=.25")
    policy, _ = make_policy(classifier, make_images(side=20), Rule(0.5))
    with pytest.raises(ExportError, match="image_shape"):
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, image_shape=(20, 20, 3))
    assert summary.image_shape == (20, 20, 3)


def test_files_are_not_replaced_by_accident(classifier: Classifier, tmp_path: Path) -> None:
    policy, _ = make_policy(classifier, make_images(), Rule(0.5))
    (tmp_path / "decide.onnx").write_text("precious")
    with pytest.raises(ExportError, match=r"decide\.onnx"):
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    with pytest.raises(ExportError, match=r"decide\.bin"):
        export_onnx(policy, tmp_path / "decide.bin", classifier=classifier)
    with pytest.raises(ExportError, match="float64"):
        export_onnx(policy, tmp_path / "other.onnx", classifier=classifier, pixels="float64")  # type: ignore[arg-type]
    assert (tmp_path / "decide.onnx").read_text() == "precious"
