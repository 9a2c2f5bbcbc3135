"""Models that make views on their device, run on the CPU: upload, views, normalization, several devices, memory."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, Preprocessing, TorchClassifier, load_classifier
from secondlook.errors import ClassifierError
from secondlook.views import View, ViewSet, apply_view

torch = pytest.importorskip("torch")

from secondlook.classifiers.device import (  # noqa: E402 - imports torch
    MAX_GRAPHS,
    DeviceModel,
    DeviceWorkers,
    GraphedCall,
)

VIEWS = [View.parse(text) for text in ("identity", "hflip", "shift:1,-2", "gamma:0.7")]


def make_images(count: int = 7, channels: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 9, 8, channels), dtype=np.uint8)


def make_workers(count: int = 1, **options: Any) -> DeviceWorkers:
    settings = {"run": torch.nn.Flatten(), "dtype": torch.float32, **options}
    return DeviceWorkers([DeviceModel(torch.device("cpu"), **settings) for _ in range(count)])


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
        Preprocessing(mean=(0.5,), std=(0.25,), color="BGR"),
        Preprocessing(layout="NHWC", scale=1.0),
        Preprocessing(input_dtype="uint8", color="BGR"),
        Preprocessing(input_dtype="uint8", layout="NHWC"),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "float32", "read-only", "tensor"])
def test_inputs_are_those_of_the_host(preprocessing: Preprocessing, channels_last: bool, kind: str) -> None:
    images = make_images() if kind != "float32" else (make_images() / 255).astype(np.float32)
    images.setflags(write=kind != "read-only")
    takes_pixels = preprocessing.input_dtype == "uint8"
    workers = make_workers(dtype=torch.uint8 if takes_pixels else torch.float32, channels_last=channels_last)
    placed = workers.upload(torch.from_numpy(images) if kind == "tensor" else images)
    expected = [preprocessing.normalize(apply_view(images, view)).reshape(len(images), -1) for view in VIEWS]
    found = workers.start(placed, VIEWS, preprocessing)()
    np.testing.assert_allclose(found, np.concatenate(expected), atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5, 8, 11])
def test_model_gets_its_memory_format_and_batch_size(channels_last: bool, count: int) -> None:
    formats: list[tuple[int, bool]] = []

    def run(inputs: Any) -> Any:
        formats.append((len(inputs), inputs.is_contiguous(memory_format=torch.channels_last)))
        return inputs.flatten(start_dim=1)

    images, preprocessing = make_images(count), Preprocessing()
    for batch_size in (None, 4):
        workers = make_workers(run=run, channels_last=channels_last, batch_size=batch_size)
        found = workers.start(workers.upload(images), VIEWS[:1], preprocessing)()
        np.testing.assert_allclose(found, preprocessing.normalize(images).reshape(count, -1), atol=1e-6)
    assert formats[0] == (count, channels_last)
    assert [size for size, _ in formats[1:]] == [4] * -(-count // 4)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 20),
    devices=st.integers(1, 4),
    n_views=st.integers(1, 4),
    data=st.data(),
)
def test_several_devices_give_the_outputs_of_one(count: int, devices: int, n_views: int, data: st.DataObject) -> None:
    images, preprocessing = make_images(count), Preprocessing()
    start, stop = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted)))
    one, several = make_workers(), make_workers(devices)
    for key in (slice(start, stop), positions):
        if len(images[key]):
            parts = [workers.upload(images)[key] for workers in (one, several)]
            assert [len(part) for part in parts] == [len(images[key])] * 2
            expected, found = (
                workers.start(part, VIEWS[:n_views], preprocessing)()
                for workers, part in zip((one, several), parts, strict=True)
            )
            np.testing.assert_array_equal(found, expected)
    again = several.upload(images)[positions][np.arange(len(positions))[::2]]
    np.testing.assert_array_equal(
        several.start(again, VIEWS[:1], preprocessing)(),
        one.start(one.upload(images[positions[::2]]), VIEWS[:1], preprocessing)(),
    )


def test_batch_fills_the_devices() -> None:
    sizes = [
        make_workers(count).find_batch_size(np.zeros((side, side, 3), dtype=np.uint8), Preprocessing())
        for count, side in [(1, 32), (1, 224), (2, 224), (1, 3000), (1, 9000)]
    ]
    assert sizes == [8192, 512, 1024, 2, 1]


# --- Torch classifiers ---


def put_on_gpus(module: Any, **options: Any) -> TorchClassifier:
    classifier = load_classifier(module, output="logits", **options).on_device("cuda")
    assert isinstance(classifier, TorchClassifier)
    assert classifier.is_accelerated
    return classifier


@pytest.mark.usefixtures("cpu_as_gpus")
def test_torch_classifier_on_gpus_has_the_outputs_of_the_host(torch_module: Any, images: Array) -> None:
    preprocessing = Preprocessing(mean=(0.4,), std=(0.3,))

    def classify(pixels: Array) -> Array:
        outputs: Array = torch_module(torch.from_numpy(preprocessing.normalize(pixels))).detach().numpy()
        return outputs

    accelerated = put_on_gpus(torch_module, mean=0.4, std=0.3)
    assert accelerated.digest == load_classifier(torch_module, output="logits").digest
    assert accelerated.workers is not None
    assert len(accelerated.workers.models) == 2
    np.testing.assert_allclose(accelerated(images), classify(images), atol=1e-5)
    views = ViewSet("identity hflip rotate:7").views
    outputs = accelerated.start(accelerated.upload(images), views)()
    for view, found in zip(views, np.split(outputs, 3), strict=True):
        expected = classify(apply_view(images, view))
        np.testing.assert_allclose(found, expected, atol=1e-2 if "rotate" in str(view) else 1e-5)


@pytest.mark.usefixtures("cpu_as_gpus")
def test_copies_and_ensembles_are_put_on_a_device(torch_module: Any) -> None:
    classifier = load_classifier(torch_module, output="logits")
    first, changed = classifier.on_device("cuda"), copy.copy(classifier)
    changed.preprocessing = Preprocessing(mean=(0.3,))
    second = changed.on_device("cuda")
    assert first is not second
    assert first.workers is second.workers
    assert second.preprocessing.mean == (0.3,)
    assert first.on_device("cuda") is first
    back = first.on_device("auto").on_device("cpu")
    assert isinstance(back, TorchClassifier)
    assert back.module is torch_module
    accelerated = put_on_gpus(torch_module, dtype="bfloat16")
    assert accelerated.module is not torch_module, "the module of the user is not moved"
    assert {weight.dtype for weight in torch_module.parameters()} == {torch.float32}
    assert {weight.dtype for weight in accelerated.module.parameters()} == {torch.bfloat16}
    ensemble = Ensemble([load_classifier(torch_module, output="logits") for _ in range(2)], name="pair")
    moved: Classifier = ensemble.on_device("cuda")
    assert (moved.name, moved.digest) == ("pair", ensemble.digest)
    assert all(member.is_accelerated for member in moved.members)
    for device in ("gpu", "cuda:", "cuda:x", "CUDA", "", "mps"):
        for each in (classifier, load_classifier(lambda batch: batch)):
            with pytest.raises(ClassifierError, match=rf"device='{device}' is unknown; expected 'auto', 'cpu'"):
                each.on_device(device)


@pytest.mark.usefixtures("cpu_as_gpus")
@pytest.mark.parametrize(
    ("features", "bias", "options", "offending"),
    [
        (216, float("nan"), {}, r"returned nan for image 0 .*class 2"),
        (5, 0, {}, r"failed on a GPU with 28 inputs.*resize="),
        (216, 0, {"resize": (5, 5)}, "5 x 5"),
    ],
)
def test_wrong_outputs_and_sizes_are_rejected(features: int, bias: float, options: Any, offending: str) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(features, 4))
    with torch.no_grad():
        module[1].bias[2] = bias
    classifier = put_on_gpus(module, **options)
    with pytest.raises(ClassifierError, match=offending):
        classifier.start(classifier.upload(make_images()), VIEWS)()


def test_settings_of_torch_are_restored() -> None:
    def read_settings() -> tuple[bool, ...]:
        flags = torch.backends.cudnn
        return flags.deterministic, flags.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    before, seen = read_settings(), []

    class Recorder(torch.nn.Flatten):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            seen.append(read_settings())
            return super().forward(inputs)

    for dtype in ("float32", "tf32"):
        load_classifier(Recorder(), output="logits", dtype=dtype)(make_images())
    assert seen == [(True, False, False), (True, True, True)]
    assert read_settings() == before


# --- Devices ---


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_missing_devices_are_one_sentence(torch_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = load_classifier(torch_module, output="logits")
    with pytest.raises(ClassifierError, match=r"device='cuda' is not available: torch .* sees no CUDA device; pass"):
        classifier.on_device("cuda")
    assert classifier.on_device("auto") is classifier
    assert classifier.on_device("cpu").workers is None
    function = load_classifier(lambda batch: np.ones((len(batch), 2)) / 2, name="halves")
    with pytest.raises(ClassifierError, match=r"device='cuda:0' cannot .* 'halves' .*pass device='auto'"):
        function.on_device("cuda:0")
    assert function.on_device("auto") is function
    chosen = load_classifier(torch_module, output="logits", device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen.on_device("auto") is chosen
    with pytest.raises(ClassifierError, match=r"device='cuda:7' does not exist; this machine has cuda:0, cuda:1"):
        classifier.on_device("cuda:7")


# --- CUDA graphs ---


class RecordedOnHost(GraphedCall):
    recorded: list[int]

    def _record(self, inputs: Any) -> Any:
        self.recorded.append(len(inputs))
        own, outputs = torch.zeros_like(inputs), torch.zeros_like(inputs)
        return SimpleNamespace(replay=lambda: outputs.copy_(2 * own)), own, outputs


def test_graphs_are_recorded_for_batch_sizes_that_come_again() -> None:
    calls: list[int] = []

    def double(inputs: Any) -> Any:
        calls.append(len(inputs))
        return 2 * inputs

    call = RecordedOnHost(double)
    call.recorded = []
    sizes = [3, 3, 3, *range(10, 10 + 2 * MAX_GRAPHS), *range(10, 10 + 2 * MAX_GRAPHS), 3]
    batches = [torch.full((size, 2), float(place)) for place, size in enumerate(sizes)]
    results = [call(batch) for batch in batches]
    assert call.recorded == [3, *range(10, 9 + MAX_GRAPHS)], "a size is recorded when it comes again, up to a number"
    assert calls == [3, *range(10, 10 + 2 * MAX_GRAPHS), *range(9 + MAX_GRAPHS, 10 + 2 * MAX_GRAPHS)]
    assert all(torch.equal(2 * batch, found) for batch, found in zip(batches, results, strict=True)), "no shared memory"
