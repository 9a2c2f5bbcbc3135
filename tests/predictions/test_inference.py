"""Inference on the host and on devices: batches, halving when memory runs out, and outputs that come later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import PredictionsError
from secondlook.predictions import Execution, Inference, batching, collect
from secondlook.predictions.inference import HostInference
from secondlook.views import ViewSet, apply_view

torch = pytest.importorskip("torch")


def make_host_inference(classify: Any, batch_size: int) -> HostInference:
    """Return the inference of a function, which need not return valid outputs."""
    return HostInference(cast(Classifier, classify), batch_size)


class OutOfMemoryError(RuntimeError):
    """Has the name of the error of PyTorch."""


ONNX_MESSAGE = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 1"
ERRORS = [
    *(MemoryError(), OutOfMemoryError("CUDA out of memory"), RuntimeError(ONNX_MESSAGE)),
    RuntimeError("BFCArena::AllocateRawInternal Available memory of 1 is smaller than requested bytes of 2"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[:40])
def test_batch_size_is_halved_for_good_when_memory_runs_out(error: Exception) -> None:
    sizes: list[int] = []

    def classify(batch: Array) -> Array:
        sizes.append(len(batch))
        if len(batch) > 3:
            raise error
        return batch.reshape(len(batch), -1)[:, :1].astype(np.float32)

    images = np.arange(13, dtype=np.uint8).reshape(13, 1, 1, 1)
    inference = make_host_inference(classify, 13)
    assert inference.start(images)()[:, 0].tolist() == list(range(13))
    assert sizes == [13, 6, 3, 3, 3, 3, 1]
    assert inference.start(images[:4])()[:, 0].tolist() == [0, 1, 2, 3]
    assert sizes[7:] == [3, 1]


@pytest.mark.parametrize(
    ("error", "raised", "message", "sizes"),
    [
        (MemoryError(), PredictionsError, r"single image .*MemoryError", [4, 2, 1]),
        (ValueError("something else"), ValueError, "something else", [4]),
    ],
)
def test_single_image_that_does_not_fit_is_an_error_and_others_are_not_retried(
    error: Exception, raised: type[Exception], message: str, sizes: list[int]
) -> None:
    calls: list[int] = []

    def classify(batch: Array) -> Array:
        calls.append(len(batch))
        raise error

    with pytest.raises(raised, match=message):
        make_host_inference(classify, 4).start(np.zeros((4, 1, 1, 1), dtype=np.uint8))
    assert calls == sizes


# --- On devices ---


class Brightness(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Logits from the mean of each channel; fails with more inputs than fit in its memory, and counts its batches."""

    def __init__(self, largest_batch: int = 10**6) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([3.0, -2.0, 5.0]))
        self.largest_batch = largest_batch
        self.batches: list[int] = []

    def forward(self, inputs: Any) -> Any:
        self.batches.append(len(inputs))
        if len(inputs) > self.largest_batch:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return inputs.mean(dim=(2, 3)) * self.scale

    def __deepcopy__(self, memo: Any) -> "Brightness":
        return self  # the copies on both devices count together


def make_pixels(count: int) -> Array:
    return np.random.default_rng(count).integers(0, 256, (count, 12, 10, 3), dtype=np.uint8)


VIEWS = "identity hflip shift:1,0 gamma:0.8 rotate:10 contrast:1.2"


@pytest.mark.usefixtures("cpu_as_gpus")
@pytest.mark.parametrize("batch_size", [1, 3, 8, 20, 64, "auto"])
@pytest.mark.parametrize("count", [1, 7, 20])
def test_outputs_of_devices_equal_those_of_the_host(
    count: int, batch_size: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(batching, "CHUNK_ROWS", 8)
    module, pixels = Brightness(), make_pixels(count)
    expected = np.stack([load_on_host(module)(apply_view(pixels, view)) for view in ViewSet(VIEWS).texts], axis=1)
    for store in (None, tmp_path):
        execution = Execution(batch_size=batch_size, device="cuda")
        preds = collect(load_classifier(module, output="logits"), pixels, VIEWS, store=store, execution=execution)
        np.testing.assert_allclose(preds.logits, expected, atol=2e-2)
        np.testing.assert_allclose(preds.logits[:, :4], expected[:, :4], atol=1e-5)


def load_on_host(module: Brightness) -> Callable[[Array], Array]:
    def classify(images: Array) -> Array:
        inputs = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
        return cast(Array, module(inputs).detach().numpy())

    return classify


@pytest.mark.usefixtures("cpu_as_gpus")
def test_batch_on_devices_is_halved_for_good_when_memory_runs_out() -> None:
    pixels, views = make_pixels(20), ViewSet(VIEWS).views

    def classify(inference: Inference, images: Array) -> Array:
        return inference.start(inference.prepare(inference.place(images), views))()

    expected = classify(Inference.create(load_on_gpus(Brightness()), 64), pixels)
    module = Brightness(largest_batch=3)
    inference = Inference.create(load_on_gpus(module), 64)
    np.testing.assert_allclose(classify(inference, pixels), expected, atol=1e-6)
    assert inference.batch_size <= 6  # three on each of two devices
    fitting = next(place for place, size in enumerate(module.batches) if size <= 3)
    assert max(module.batches[fitting:]) <= 3, "no larger batch is tried again"
    module.batches.clear()
    classify(inference, pixels[:6])
    assert max(module.batches) <= 3


@pytest.mark.usefixtures("cpu_as_gpus")
def test_no_image_is_not_uploaded_and_one_that_does_not_fit_on_a_device_is_one_sentence() -> None:
    classifier = load_on_gpus(Brightness(largest_batch=0))
    with pytest.raises(PredictionsError, match=r"ran out of memory on a single image .*CUDA out of memory.*smaller"):
        collect(classifier, make_pixels(5), VIEWS, execution=Execution(batch_size=4))
    resized = load_classifier(Brightness(), output="logits", resize=(12, 10)).on_device("cuda")
    assert len(Inference.create(resized, 8).place(np.empty((0, 1, 1, 1), dtype=np.uint8))) == 0


def load_on_gpus(module: Brightness) -> Classifier:
    return load_classifier(module, output="logits").on_device("cuda")


@pytest.mark.usefixtures("cpu_as_gpus")
def test_outputs_of_a_device_are_fetched_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host starts further batches before it waits for the first."""
    events: list[str] = []
    classifier = load_on_gpus(Brightness())
    start = classifier.start

    def record(images: Any, views: Any) -> Any:
        events.append("start")
        fetch = start(images, views)

        def fetch_recorded() -> Any:
            events.append("fetch")
            return fetch()

        return fetch_recorded

    monkeypatch.setattr(classifier, "start", record)
    collect(classifier, make_pixels(4), VIEWS, execution=Execution(batch_size=4))
    assert events == ["start"] * 3 + ["fetch", "start"] * 3 + ["fetch"] * 3
