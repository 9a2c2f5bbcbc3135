"""`check_setup`: wrong setups are named with their repair, and right ones are left alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing
from secondlook.diagnosis.setup_check import SetupCheck
from secondlook.errors import ClassifierError, PredictionsError
from secondlook.sources import ArraySource
from tests.classifiers.loopback_server import METADATA, Chunks, as_json, http, serve
from tests.diagnosis.conftest import N_CLASSES, LinearModel, Photos

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CIFAR10: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616)}
SHARED = Path(__file__).resolve().parents[3] / "shared"


def check(model: object, photos: Photos, labels: Array | None = None, **options: Any) -> SetupCheck:
    chosen = photos.labels if labels is None else labels
    return sl.check_setup(sl.load_classifier(model, **options), photos.images, labels=chosen)


def apply(result: SetupCheck, model: object, photos: Photos, **options: Any) -> float:
    """Return the accuracy with the settings and class order of the better reading, on all images."""
    assert result.better is not None
    classifier = sl.load_classifier(model, **{**options, **result.better.settings})
    labels = photos.labels
    if result.better.class_order is not None:
        labels = np.array(result.better.class_order)[labels]
    outputs = sl.collect(classifier, photos.images, "identity", labels=labels, execution=sl.Execution(progress=False))
    return float(outputs.correct().mean())


@pytest.mark.parametrize(
    ("trained", "given"),
    [
        (IMAGENET, {}),
        (CIFAR10, {}),
        ({}, IMAGENET),
        ({"mean": 0.5, "std": 0.5}, {}),
        ({"scale": 1.0}, {}),
        ({"scale": 16 / 255}, {}),
        ({"scale": 1.0, "color": "BGR", "mean": (103.939, 116.779, 123.68)}, {}),
        ({"color": "BGR"}, {}),
        ({"color": "BGR", "mean": (0.406, 0.456, 0.485), "std": (0.225, 0.224, 0.229)}, {}),
        ({"layout": "NCHW"}, {}),
    ],
)
def test_wrong_preprocessing_is_found_and_its_repair_works(
    photos: Photos, trained: dict[str, Any], given: dict[str, Any]
) -> None:
    model = photos.train(**trained)
    right = check(model, photos, **trained)
    assert right.looks_right
    wrong = check(model, photos, **given)
    assert not wrong.looks_right
    assert (wrong.readings[0].accuracy or 1.0) < (right.readings[0].accuracy or 0.0) - 0.05
    assert apply(wrong, model, photos, **given) == pytest.approx(right.readings[0].accuracy, abs=0.05)
    assert all(f"{name}=" in wrong.verdict for name in (wrong.better or right.readings[0]).settings)


def test_scikit_learn_pipeline_of_digits_with_16_gray_levels() -> None:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    digits = load_digits()
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(
        digits.data[:900], digits.target[:900]
    )
    images = np.rint(digits.images[900:, :, :, None] * 255 / 16).astype(np.uint8)
    result = sl.check_setup(sl.load_classifier(pipeline), images, labels=digits.target[900:])
    assert result.better is not None
    assert result.better.settings == {"scale": 16 / 255}
    assert (result.readings[0].accuracy or 1) < 0.5
    assert (result.better.accuracy or 0) > 0.85
    repaired = sl.load_classifier(pipeline, scale=16 / 255)
    assert sl.check_setup(repaired, images, labels=digits.target[900:]).looks_right


def test_verdict_shows_how_a_function_should_normalize(photos: Photos) -> None:
    model = photos.train(**IMAGENET)

    def classify(batch: Array) -> Array:
        return model.predict_proba(batch.reshape(len(batch), -1))

    result = check(classify, photos)
    assert result.better is not None
    assert "function" in result.verdict
    assert result.better.settings["scale"] == pytest.approx(1 / 255)

    normalized = Preprocessing(layout="NHWC", **result.better.settings)

    def normalize_and_classify(batch: Array) -> Array:
        return classify(normalized.normalize(batch))

    assert check(normalize_and_classify, photos).looks_right


def test_torch_module_without_its_normalization(photos: Photos) -> None:
    torch = pytest.importorskip("torch")
    model = photos.train(**IMAGENET, layout="NCHW")
    linear = torch.nn.Linear(192, N_CLASSES)
    with torch.no_grad():
        linear.weight[:] = torch.from_numpy(model.sharpness * model.weights.T)
        linear.bias[:] = torch.from_numpy(-0.5 * model.sharpness * (model.weights**2).sum(axis=0))
    module = torch.nn.Sequential(torch.nn.Flatten(), linear)
    result = check(module, photos, output="logits")
    assert apply(result, module, photos, output="logits") > 0.85
    assert check(module, photos, output="logits", **IMAGENET).looks_right


def test_ways_to_crop_are_tried() -> None:
    rng = np.random.default_rng(0)
    prototypes = np.full((N_CLASSES, 8, 24, 3), 128, dtype=np.uint8)
    prototypes[:, :, :8] = rng.integers(60, 200, (N_CLASSES, 8, 8, 3))  # what tells the classes apart is at the side
    labels = rng.integers(N_CLASSES, size=300)
    images = np.clip(prototypes[labels] + rng.normal(0, 40, (300, 8, 24, 3)), 0, 255).astype(np.uint8)
    model = LinearModel(prototypes, Preprocessing(layout="NHWC", resize=(8, 8), size=(8, 8)))
    cropped = sl.load_classifier(model, resize=8, crop=8, size=8)
    result = sl.check_setup(cropped, images, labels=labels)
    assert result.better is not None
    assert result.better.settings == {"resize": (8, 8)}
    repaired = sl.load_classifier(model, resize=(8, 8), crop=8, size=8)
    assert sl.check_setup(repaired, images, labels=labels).looks_right


@pytest.mark.parametrize(("trained", "settings"), [({}, set()), (IMAGENET, {"mean", "std"})])
def test_shuffled_classes_are_listed_also_if_the_preprocessing_is_wrong(
    photos: Photos, trained: dict[str, Any], settings: set[str]
) -> None:
    order = np.random.default_rng(1).permutation(N_CLASSES)
    result = check(photos.train(**trained), photos, labels=np.argsort(order)[photos.labels])
    assert result.better is not None
    assert result.better.class_order == tuple(order)
    assert set(result.better.settings) == settings
    assert str(order.tolist()) in result.verdict


def test_exchanged_classes_are_named(photos: Photos) -> None:
    exchanged = np.arange(N_CLASSES)
    exchanged[[2, 5]] = 5, 2
    source = ArraySource(photos.images, labels=exchanged[photos.labels], class_names=[f"kind-{n}" for n in range(10)])
    (found,) = sl.check_setup(sl.load_classifier(photos.train()), source, quick=True).warnings
    assert "'kind-2' and 'kind-5'" in found


def test_classes_sorted_as_text_are_found_with_few_images_of_each() -> None:
    names = sorted(str(number) for number in range(200))
    rng = np.random.default_rng(0)
    labels = rng.integers(200, size=250)
    images = np.zeros((250, 2, 2, 1), dtype=np.uint8)
    images[:, 0, 0, 0] = [int(names[label]) for label in labels]  # the classifier has the classes in numerical order
    source = ArraySource(images, labels=labels, class_names=names)

    def classify(batch: Array) -> Array:
        certain: Array = np.eye(200)[np.rint(batch[:, 0, 0, 0]).astype(int)]
        return certain * 0.9 + 0.1 / 200

    result = sl.check_setup(classify, source)
    assert result.better is not None
    assert result.better.accuracy == 1.0
    assert [int(name) for name in names] == list(result.better.class_order or ())


@pytest.mark.parametrize(("order", "is_right"), [(np.arange(300), True), (np.arange(300)[::-1], False)])
def test_more_classes_than_images_in_another_order_are_suspected(order: Array, is_right: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (300, 10, 10, 3), dtype=np.uint8)
    pixels = images.reshape(300, -1) / 255
    weights = (pixels - pixels.mean()).T
    model = sl.load_classifier(lambda batch: (batch / 255).reshape(len(batch), -1) @ weights, output="logits")
    result = sl.check_setup(model, images[::2], labels=order[::2])
    assert result.looks_right == is_right
    assert ("1,200 labeled images" in result.verdict) == (not is_right)


def test_weak_but_right_classifier_is_left_alone() -> None:
    weak = Photos(contrast=18)
    result = check(weak.train(), weak)
    assert 0.2 < (result.readings[0].accuracy or 0) < 0.6
    assert result.looks_right


class UntrainedModel(LinearModel):
    """A linear model with random weights, whose outputs depend on the image and so on its class."""

    def __init__(self, photos: Photos, seed: int) -> None:
        super().__init__(photos.prototypes, Preprocessing(layout="NHWC"))
        self.weights = np.random.default_rng(seed).normal(size=self.weights.shape)
        self.center = (photos.images.reshape(len(photos.images), -1) / 255).mean(axis=0)

    def predict_proba(self, features: Array) -> Array:
        outputs: Array = np.exp((features - self.center) @ self.weights / 100)
        outputs /= outputs.sum(axis=1, keepdims=True)
        return outputs


@pytest.mark.parametrize("seed", range(8))
def test_random_networks_raise_no_alarm(seed: int) -> None:
    clear = Photos(contrast=150)
    model = UntrainedModel(clear, seed)
    skewed = np.where(np.random.default_rng(seed).random(len(clear.labels)) < 0.4 * (seed % 2), 3, clear.labels)
    assert check(model, clear, labels=skewed).looks_right


def test_random_and_constant_outputs_raise_no_alarm(photos: Photos) -> None:
    rng = np.random.default_rng(0)
    assert check(lambda batch: rng.dirichlet(np.ones(N_CLASSES), len(batch)), photos).looks_right
    labels = np.where(np.arange(len(photos.labels)) % 4, 3, photos.labels)
    assert check(lambda batch: np.tile(np.eye(N_CLASSES)[7], (len(batch), 1)), photos, labels=labels).looks_right


def test_without_labels_only_a_hint_is_given(photos: Photos) -> None:
    model = photos.train(**IMAGENET)
    unlabeled = sl.check_setup(sl.load_classifier(model, mean=0.2, std=2.0), photos.images)
    assert unlabeled.looks_right
    assert unlabeled.better is None
    assert unlabeled.readings[0].accuracy is None
    assert "mean=" in unlabeled.verdict
    assert "labeled" in unlabeled.verdict
    right = sl.check_setup(sl.load_classifier(model, **IMAGENET), photos.images)
    assert "mean=" not in right.verdict


def test_members_of_an_ensemble_are_checked_one_by_one(photos: Photos) -> None:
    model = photos.train(**IMAGENET)
    right, wrong = sl.load_classifier(model, **IMAGENET), sl.load_classifier(model)
    result = sl.check_setup([right, wrong], photos.images, labels=photos.labels)
    assert [member.looks_right for member in result.members] == [True, False]
    assert result.warnings == result.members[1].warnings
    assert result.classified == sum(member.classified for member in result.members)
    assert str(result.members[0].verdict) in str(result)


def test_sigmoid_outputs_are_distinguished_from_logits(photos: Photos) -> None:
    model = photos.train()

    def sigmoids(batch: Array) -> Array:
        centered = model.predict_proba(batch.reshape(len(batch), -1) / 255) - 0.5
        outputs: Array = 1 / (1 + np.exp(-8 * centered))
        return outputs

    result = check(sigmoids, photos, output="logits")
    assert not result.looks_right
    assert "multi-label" in result.verdict
    with pytest.raises(ClassifierError, match="multi-label"):
        check(sigmoids, photos, output="probabilities")


def test_images_are_spread_over_a_source_in_any_order() -> None:
    images = np.zeros((2560, 1, 1, 1), dtype=np.uint8)
    for labels in (np.arange(2560) // 256, np.arange(2560) % 10):
        chosen = ArraySource(images, labels=labels).spread(256)
        assert len(chosen) == 256
        assert chosen.labels is not None
        assert np.bincount(chosen.labels).min() >= 10
        again = ArraySource(images, labels=labels).spread(256)
        assert list(again.ids) == list(chosen.ids)
    assert sorted(ArraySource(images).spread(5000).ids) == sorted(ArraySource(images).ids)


def test_cost_is_bounded_and_small_where_nothing_is_suspicious(photos: Photos) -> None:
    calls: list[int] = []
    model = photos.train(**IMAGENET)

    class Counting(LinearModel):
        def predict_proba(self, features: Array) -> Array:
            calls.append(len(features))
            return super().predict_proba(features)

    counting = Counting(photos.prototypes, Preprocessing(layout="NHWC", **IMAGENET))
    source = ArraySource(photos.images, labels=photos.labels)
    assert sl.check_setup(sl.load_classifier(counting, **IMAGENET), source, quick=True).warnings == ()
    assert sum(calls) == 256
    calls.clear()
    assert sl.check_setup(sl.load_classifier(counting), source, quick=True).warnings
    assert 256 < sum(calls) < 3000
    result = check(model, photos)
    assert result.classified == sum(calls)


def test_remote_model_is_asked_in_few_requests(photos: Photos) -> None:
    model = photos.train(**IMAGENET, layout="NCHW")
    described = {"name": "scores", "datatype": "FP32", "shape": [-1, N_CLASSES]}

    def respond(path: str, request: bytes) -> Chunks:
        if not path.endswith("/infer"):
            return [http(as_json({**METADATA, "outputs": [described]}))]
        tensor = json.loads(request.partition(b"\r\n\r\n")[2])["inputs"][0]
        outputs = model.predict_proba(np.array(tensor["data"]).reshape(tensor["shape"][0], -1))
        output = {**described, "shape": list(outputs.shape), "data": outputs.ravel().tolist()}
        return [http(as_json({"outputs": [output]}))]

    source = ArraySource(photos.images, labels=photos.labels)
    with serve(respond) as server:
        spec = f"http://{server.host}/v2/models/m?output=probabilities"
        right = sl.load_classifier(spec, **IMAGENET)
        before = len(server.requests)
        assert sl.check_setup(right, source, quick=True).warnings == ()
        assert len(server.requests) - before == 9  # the first asks what the server supports
        found = sl.check_setup(sl.load_classifier(spec), source, quick=True).warnings
        assert "mean=(0.485, 0.456, 0.406)" in found[0]
        assert len(server.requests) < 100


def test_result_prints_a_table_and_becomes_json(photos: Photos) -> None:
    result = check(photos.train(**IMAGENET), photos)
    lines = str(result).splitlines()
    assert lines[0].split() == ["reading", "images", "accuracy", "confidence", "p"]
    assert lines[1].startswith("as given")
    assert lines[-1] == result.verdict
    assert result.to_dict()["looks_right"] is False
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.verdict = ""  # type: ignore[misc]


def test_labels_that_the_classifier_does_not_have_are_rejected(photos: Photos) -> None:
    """Those of a sample: the error names the image, whose position in the sample means nothing to the user."""
    labels = photos.labels.copy()
    labels[7] = 10
    with pytest.raises(PredictionsError, match=r"'000007' is 10"):
        sl.check_setup(photos.train(), photos.images, labels=labels, n_images=len(labels))
    with pytest.raises(ClassifierError, match="images"):
        sl.check_setup(photos.train(), photos.images, n_images=0)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the CIFAR-10 classifiers")
def test_real_classifier_without_its_normalization() -> None:
    given: dict[str, Any] = {"output": "logits"}
    model, data = f"onnx:{SHARED}/cifar10/resnet20.onnx", f"npz:{SHARED}/cifar10/test.npz?limit=2000"
    wrong = sl.check_setup(sl.load_classifier(model, **given), data)
    assert wrong.better is not None
    assert (wrong.better.accuracy or 0) > 0.85 > 0.6 > (wrong.readings[0].accuracy or 1)
    assert {"mean", "std"} == set(wrong.better.settings)
    assert sl.check_setup(sl.load_classifier(model, **given, **IMAGENET), data).looks_right


def test_setup_is_checked_on_the_device(cuda_1_only: sl.Classifier, photos: Photos) -> None:
    labels = np.arange(len(photos.images)) % 2
    options: dict[str, Any] = {"labels": labels, "n_images": 40}
    execution = sl.Execution(device="cuda:1")
    given, *others = sl.check_setup(cuda_1_only, photos.images, execution=execution, **options).readings
    assert others, "readings that fail are left out"
    assert given.images == 40
    with pytest.raises(AssertionError):
        sl.check_setup(cuda_1_only, photos.images, **options)
