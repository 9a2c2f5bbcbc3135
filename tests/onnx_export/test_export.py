"""Exported files against the library: the same decisions from the same images."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import ExportedFile, compile_policy, load_policy
from secondlook.errors import DecisionError, ExportError, MissingExtraError
from secondlook.onnx_export import export_onnx, networks
from secondlook.onnx_export.networks import BATCH_NAME, iterate_graphs
from secondlook.policies import Policy, certify, fit_schedule
from secondlook.predictions import Predictions
from secondlook.views import ViewSet
from tests.estimators.conftest import LEARNED_WEIGHTS
from tests.onnx_export.conftest import MEAN, N_CLASSES, make_images, make_policy, order_views, write_network
from tests.policy_maker import attach

METHODS: dict[str, dict[str, Any]] = {
    "mean": {},
    "blend": {},
    "learned": LEARNED_WEIGHTS,
    "msr": {},
    "max-logit-pnorm": {"p": 3, "on": "views"},
}


def run_file(path: Path, images: Array) -> dict[str, Array]:
    """Run an exported file with ONNX Runtime alone, without this library."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images}), strict=True))


def check_equal(found: dict[str, Array], rule: Policy, preds: Predictions, *, atol: float = 1e-6) -> None:
    """Compare the outputs of a file with the results of the library from predictions."""
    looked = rule.look(preds)
    first = looked.predicted.reshape(len(preds), -1)
    np.testing.assert_array_equal(found["label"], first[:, 0])
    if rule.top_k > 1:
        np.testing.assert_array_equal(found["labels"], first)
    np.testing.assert_allclose(found["confidence"], looked.confidence, atol=atol)
    np.testing.assert_array_equal(found["accept"], rule.accept(preds))
    np.testing.assert_array_equal(found["looks"], looked.looks)
    taken = np.arange(len(order_views(rule, preds.views.texts))) < looked.looks[:, None]
    np.testing.assert_array_equal(np.isnan(found["view_outputs"]).any(axis=2), ~taken)


def fit_adaptive_rule(preds: Predictions, method: str, **settings: Any) -> Policy:
    """Return a rule with a schedule that looks at some images once and at others often."""
    plain = Policy(threshold=0.5, method=method, options=METHODS[method], **settings)
    threshold = float(np.median(plain.confidence(preds)))
    plain = plain.model_copy(update={"threshold": threshold})
    return plain.model_copy(update={"schedule": fit_schedule(preds, plain, tolerance=0.02)})


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Policy, Any]]:
    """A policy without and one with a schedule, and the summaries of their files."""
    folder = tmp_path_factory.mktemp("exported")
    classifier = load_classifier(f"onnx:{write_network(folder / 'network.onnx')}?mean=.5&std=.25")
    plain, preds = make_policy(classifier, make_images(120), MEAN)
    adaptive, _ = make_policy(classifier, make_images(1), fit_adaptive_rule(preds, "mean"))
    policies = {"plain": plain, "adaptive": adaptive}
    return {
        name: (policy, export_onnx(policy, folder / f"{name}.onnx", classifier=classifier))
        for name, policy in policies.items()
    }


@pytest.fixture
def labeled(classifier: Classifier) -> Predictions:
    """Predictions for 600 images, of which every 20th is wrong."""
    _, preds = make_policy(classifier, make_images(600), MEAN)
    labels = preds.predicted().copy()
    labels[::20] = (labels[::20] + 1) % N_CLASSES
    return Predictions(logits=preds.logits, views=preds.views, labels=labels)


@pytest.fixture
def other(tmp_path: Path) -> Classifier:
    return load_classifier(f"onnx:{write_network(tmp_path / 'other.onnx', seed=5)}?mean=.5&std=.25")


@pytest.mark.parametrize("settings", [{}, {"predict_from": "views"}, {"top_k": 2}], ids=str)
@pytest.mark.parametrize("method", list(METHODS))
def test_decisions_equal_library(classifier: Classifier, tmp_path: Path, method: str, settings: dict[str, Any]) -> None:
    images = make_images()
    rule = Policy(threshold=0.5, method=method, options=METHODS[method], **settings)
    policy, preds = make_policy(classifier, images, rule)
    lower, upper = np.sort(rule.confidence(preds))[10:12]
    rule = rule.model_copy(update={"threshold": float(lower + upper) / 2})
    policy, _ = make_policy(classifier, images, rule)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    found = run_file(summary.path, images)
    check_equal(found, rule, preds, atol=2e-3)  # rotations and zooms may round a pixel to its neighbor
    assert 0 < found["accept"].sum() < len(images)
    np.testing.assert_allclose(found["probabilities"], preds.probabilities.mean(axis=1), atol=2e-3)


@pytest.mark.parametrize("settings", [{}, {"predict_from": "views"}, {"top_k": 2}], ids=str)
@pytest.mark.parametrize("method", ["mean", "blend", "learned"])
def test_adaptive_decisions_equal_the_library(
    classifier: Classifier, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    images, views = make_images(120), "identity hflip shift:1,0 shift:-1,2 shift:2,2 hflip+shift:0,1 gamma:0.8"
    _, preds = make_policy(classifier, images, MEAN, views)
    rule = fit_adaptive_rule(preds, method, **settings)
    policy = attach(rule, classifier=classifier, views=order_views(rule, preds.views.texts))
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert summary.adaptive
    for count, batch in ((12, 1), (120, 3), (120, 40)):
        parts = [run_file(summary.path, images[start : start + batch]) for start in range(0, count, batch)]
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        check_equal(found, rule, preds.select(images=np.arange(count)))
        assert batch == 1 or len(set(found["looks"])) > 2


def test_threshold_of_each_class_is_used(classifier: Classifier, labeled: Predictions, tmp_path: Path) -> None:
    rule = certify(labeled, "mean", risk=0.2, delta=0.1, groups="class")
    assert len({group.threshold for group in rule.groups}) > 1
    policy, _ = make_policy(classifier, make_images(1), rule)
    path = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier).path
    graph = onnx.load(path).graph
    used = {name for node in graph.node for name in node.input}
    assert used >= {tensor.name for tensor in graph.initializer}, "ONNX Runtime warns of those that are not used"
    found, looked = run_file(path, make_images(600)), rule.look(labeled)
    clear = np.abs(looked.confidence - np.array([group.threshold for group in rule.groups])[looked.predicted]) > 1e-3
    np.testing.assert_array_equal(found["accept"][clear], rule.accept(labeled)[clear])


def test_ensemble_with_different_normalization_is_exported(tmp_path: Path) -> None:
    files = [write_network(tmp_path / f"member{seed}.onnx", seed=seed) for seed in range(3)]
    members = [
        load_classifier(f"onnx:{file}?mean={mean}&std={std}")
        for file, mean, std in zip(files, (0.5, 0.4, 0.3), (0.25, 0.3, 0.2), strict=True)
    ]
    classifier, images = Ensemble(members), make_images(120)
    for method in ("mean", "blend"):
        _, preds = make_policy(classifier, images, MEAN)
        rule = fit_adaptive_rule(preds, method)
        for chosen in (rule.model_copy(update={"schedule": None}), rule):
            policy, _ = make_policy(classifier, images, chosen)
            summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, overwrite=True)
            looked = chosen.look(preds)
            found = run_file(summary.path, images)
            clear = np.abs(looked.confidence - chosen.threshold) > 1e-3
            np.testing.assert_array_equal(found["accept"][clear], chosen.accept(preds)[clear])
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
    _, preds = make_policy(load_classifier(f"onnx:{network_file}?mean=.5&std=.25"), fitted, MEAN)
    policy = attach(MEAN, classifier=classifier, views=preds.views.texts)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert summary.image_shape == (None, None, 3)
    for place, photo in enumerate(photos):
        found = run_file(summary.path, photo[None])
        expected = preds.select(images=[place])
        assert found["label"] == expected.predicted()
        np.testing.assert_allclose(found["confidence"], MEAN.confidence(expected), atol=1e-2)


def test_gray_images_and_float_pixels_are_accepted(network_file: Path, tmp_path: Path, classifier: Classifier) -> None:
    gray, images = load_classifier(f"onnx:{network_file}?gray=repeat"), make_images(channels=1)
    policy, preds = make_policy(gray, images, MEAN)
    path = export_onnx(policy, tmp_path / "gray.onnx", classifier=gray).path
    for given in (images, images.repeat(3, axis=3)):
        np.testing.assert_allclose(run_file(path, given)["confidence"], MEAN.confidence(preds), atol=2e-3)
    values = (make_images() / 255).astype(np.float32)
    policy, preds = make_policy(classifier, values, MEAN)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, pixels="float32")
    found = run_file(summary.path, values)
    np.testing.assert_allclose(found["confidence"], MEAN.confidence(preds), atol=1e-4)
    np.testing.assert_array_equal(found["label"], preds.predicted())


@pytest.mark.parametrize("kind", ["plain", "adaptive"])
def test_shapes_can_be_inferred_and_the_number_of_images_for_the_network_has_a_name(
    exported: dict[str, tuple[Policy, Any]], kind: str
) -> None:
    """Otherwise ONNX Runtime copies tensors instead of changing them in place."""
    model = onnx.load(exported[kind][1].path)
    graphs = list(iterate_graphs(model.graph))
    (described,) = [one for graph in graphs for one in graph.value_info]
    batch, *sizes = described.type.tensor_type.shape.dim
    assert batch.dim_param == BATCH_NAME
    assert all(size.dim_value for size in sizes)
    (network,) = {node.output[0] for graph in graphs for node in graph.node if described.name in node.input}
    assert any(node.op_type == "Conv" and network in node.input for graph in graphs for node in graph.node)
    del model.graph.output[:]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in ("confidence", "view_outputs")]
    model.graph.output.extend(outputs)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    sizes = {one.name: [size.dim_value for size in one.type.tensor_type.shape.dim] for one in inferred.graph.output}
    assert len(sizes["confidence"]) == 1
    assert sizes["view_outputs"][2] == N_CLASSES


def test_adaptive_file_contains_the_network_once_and_its_description(exported: dict[str, tuple[Policy, Any]]) -> None:
    policy, summary = exported["adaptive"]
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
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    body = loop.attribute[0].g
    assert [node.op_type for node in body.node].count("AveragePool") == 1
    assert {"0/first", "0/last"} <= {tensor.name for tensor in body.initializer}


def test_policy_file_becomes_an_onnx_file(network_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    classifier = load_classifier("onnx:network.onnx?mean=.5&std=.25")
    policy, _ = make_policy(classifier, make_images(), Policy(threshold=0.6, method="mean"))
    policy.save("policy.json")
    path = export_onnx("policy.json", "decide.onnx").path
    decider, loaded = load_policy(path), load_policy("policy.json")
    for image in make_images()[:5]:
        one, other = decider.decide(image, interval=True), loaded.decide(image, interval=True)
        assert (one.label, one.accept, one.looks) == (other.label, other.accept, other.looks)
        assert one.confidence == pytest.approx(other.confidence, abs=2e-3)
        assert one.interval == pytest.approx(other.interval, abs=5e-3)
    assert decider == loaded
    assert decider.decides_like(policy)


def test_another_classifier_is_rejected_or_named_without_a_guarantee(
    classifier: Classifier, other: Classifier, labeled: Predictions, tmp_path: Path
) -> None:
    policy, _ = make_policy(classifier, make_images(1), certify(labeled, "mean", risk=0.2, delta=0.1))
    assert policy.certified
    cases: list[tuple[Policy, dict[str, Any]]] = [(policy, {"classifier": other}), (policy.bind(other), {})]
    for given, options in cases:
        with pytest.raises(DecisionError, match=r"other\.onnx"):
            export_onnx(given, tmp_path / "decide.onnx", **options)
    own = onnx.load(export_onnx(policy, tmp_path / "own.onnx", classifier=classifier).path).doc_string
    assert "network.onnx" in own
    assert policy.guarantee_text in own
    cases = [(policy, {"classifier": other, "allow_mismatch": True}), (policy.bind(other, allow_mismatch=True), {})]
    for given, options in cases:
        summary = export_onnx(given, tmp_path / "decide.onnx", overwrite=True, **options)
        assert compile_policy(load_policy(summary.path)).mismatch
        stated = onnx.load(summary.path).doc_string
        assert "prediction of other.onnx" in stated
        assert "none, since" in stated
        assert "none, since" in summary.guarantee_text
        assert policy.guarantee_text not in stated
        assert str(tmp_path) not in own + stated, "the folders of whoever exports are nobody's business"


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_file_for_1000_classes_grows_little_beside_their_names(tmp_path: Path, is_adaptive: bool) -> None:
    n_classes, generator, views = 1000, np.random.default_rng(0), ViewSet("imagenet")
    file = write_network(tmp_path / "network.onnx", side=224, n_classes=n_classes)
    classifier = load_classifier(f"onnx:{file}?resize=256&crop=224&mean=.485,.456,.406&std=.229,.224,.225")
    logits = generator.normal(0, 2, (100, len(views), n_classes)).astype(np.float32)
    logits[:, :, 0] += generator.uniform(4, 14, (100, 1))
    rule = fit_adaptive_rule(Predictions(logits=logits, views=views), "mean")
    rule = rule if is_adaptive else rule.model_copy(update={"schedule": None})
    names = tuple(f"class {number} of an ordinary data set" for number in range(n_classes))
    policy = attach(rule, classifier=classifier, views=order_views(rule, views.texts), class_names=names)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    without_names = summary.added - len(json.dumps(names))
    assert 0 < without_names < (40_000 if is_adaptive else 25_000)


def test_classifier_that_standardizes_each_image_is_exported(tmp_path: Path) -> None:
    """A black image has no standard deviation, so that the outputs for it are not numbers."""
    network = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        network (float[batch, 3, 16, 16] images) => (float[batch, 2] logits)
        <int64[1] axis = {1}, int64[1] start = {100}, int64[1] end = {102}> {
            pixels = Flatten (images)
            mean = ReduceMean (pixels, axis)
            centered = Sub (pixels, mean)
            deviation = ReduceL2 (centered, axis)
            standardized = Div (centered, deviation)
            logits = Slice (standardized, start, end, axis)
        }""")
    onnx.save(network, tmp_path / "network.onnx")
    classifier = load_classifier(f"onnx:{tmp_path / 'network.onnx'}", output="logits")
    images = np.random.default_rng(0).integers(0, 256, (10, 16, 16, 3), dtype=np.uint8)
    policy, preds = make_policy(classifier, images, MEAN, "identity hflip")
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    np.testing.assert_array_equal(run_file(summary.path, images)["label"], preds.predicted())


def test_failing_or_invalid_model_is_not_written(
    policy: Policy, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ExportedFile, images: Array) -> Any:
        assert len(images) > 1, "a batch is tried"
        raise DecisionError(f"decider {str(self.path)!r} failed; pass other images.")

    monkeypatch.setattr(ExportedFile, "_run", fail)
    with pytest.raises(ExportError, match=r"decide\.onnx") as caught:
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert tempfile.gettempdir() not in str(caught.value).replace(str(tmp_path), "")
    assert not (tmp_path / "decide.onnx").exists()

    def fail_check(_model: object, **_options: object) -> None:
        raise onnx.checker.ValidationError("a fault\nwith details")

    made = networks.make_networks([classifier], (16, 16, 3))
    monkeypatch.setattr(networks, "make_networks", lambda *_: made)
    monkeypatch.setattr(onnx.checker, "check_model", fail_check)
    with pytest.raises(ExportError, match="a fault") as refused:
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kept", ["network.onnx", "link.onnx", "weights.onnx", "policy.onnx"])
def test_inputs_of_the_export_are_not_overwritten(network_file: Path, tmp_path: Path, kept: str) -> None:
    onnx.save(
        onnx.load(network_file), network_file, save_as_external_data=True, location="weights.onnx", size_threshold=0
    )
    (tmp_path / "link.onnx").symlink_to(network_file)
    classifier = load_classifier(f"onnx:{network_file}?mean=.5&std=.25")
    policy, _ = make_policy(classifier, make_images(), MEAN)
    export_onnx(policy, tmp_path / "policy.onnx", classifier=classifier)
    before = (tmp_path / kept).read_bytes()
    with pytest.raises(ExportError, match=kept):
        export_onnx(tmp_path / "policy.onnx", tmp_path / kept, classifier=classifier, overwrite=True)
    assert (tmp_path / kept).read_bytes() == before


def test_unsupported_policy_is_rejected(classifier: Classifier, labeled: Predictions, tmp_path: Path) -> None:
    of_arrays = MEAN.model_copy(update={"views": labeled.views.texts})
    uncertified = certify(labeled.select(images=np.arange(5)), "mean", risk=0.01, delta=0.001)
    by_label = certify(labeled, "mean", risk=0.2, delta=0.1, groups=np.array(["a", "b"]).repeat(300))
    for policy, told in ((of_arrays, "arrays"), (uncertified, "inf"), (by_label, "groups")):
        with pytest.raises(DecisionError, match=told):
            export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    assert not (tmp_path / "decide.onnx").exists()


def test_unknown_size_must_be_given(tmp_path: Path) -> None:
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'any.onnx', side=None)}?mean=.5&std=.25")
    policy, _ = make_policy(classifier, make_images(side=20), MEAN)
    with pytest.raises(ExportError, match="image_shape"):
        export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    summary = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier, image_shape=(20, 20, 3))
    assert summary.image_shape == (20, 20, 3)


def test_unwritable_paths_are_rejected_before_the_conversion(
    policy: Policy, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "make_networks", lambda *_: pytest.fail("a network is converted"))
    (tmp_path / "decide.onnx").write_text("precious")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("decide.onnx", {}, r"decide\.onnx"),
        ("decide.bin", {}, r"decide\.bin"),
        ("absent/decide.onnx", {}, "absent"),
        ("other.onnx", {"pixels": "float64"}, "float64"),
    ]
    for name, options, told in cases:
        with pytest.raises(ExportError, match=told):
            export_onnx(policy, tmp_path / name, classifier=classifier, **options)
    assert (tmp_path / "decide.onnx").read_text() == "precious"


def test_export_without_onnx_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"'onnx'.*secondlook\[export\]"):
        export_onnx(MEAN, tmp_path / "decide.onnx")
