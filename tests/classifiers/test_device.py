"""Models that make views on their device, run on the CPU: upload, views, normalization, several devices, memory."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.classifiers import Classifier, Ensemble, Preprocessing, TorchClassifier, load_classifier
from secondlook.errors import ClassifierError
from secondlook.views import View, ViewSet, apply_view

torch = pytest.importorskip("torch")

from secondlook.classifiers.device import DeviceModel, DeviceWorkers, list_gpus  # noqa: E402 - imports torch

Array = np.ndarray[Any, Any]
VIEWS = [View.parse(text) for text in ("identity", "hflip", "shift:1,-2", "gamma:0.7")]


def make_images(count: int = 7, channels: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 9, 8, channels), dtype=np.uint8)


def return_inputs(inputs: Any) -> Any:
    """Be a model whose output is its input."""
    return inputs.flatten(start_dim=1)


def make_workers(count: int = 1, **options: Any) -> DeviceWorkers:
    settings = {"dtype": torch.float32, **options}
    return DeviceWorkers([DeviceModel(torch.device("cpu"), return_inputs, **settings) for _ in range(count)])


PREPROCESSINGS = [
    Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
    Preprocessing(mean=(0.5,), std=(0.25,), color="BGR"),
    Preprocessing(layout="NHWC", scale=1.0),
    Preprocessing(input_dtype="uint8", color="BGR"),
    Preprocessing(input_dtype="uint8", layout="NHWC"),
]


@pytest.mark.parametrize("preprocessing", PREPROCESSINGS, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_inputs_are_those_of_the_host(preprocessing: Preprocessing, channels_last: bool, kind: str) -> None:
    images = make_images() if kind == "uint8" else (make_images() / 255).astype(np.float32)
    takes_pixels = preprocessing.input_dtype == "uint8"
    workers = make_workers(dtype=torch.uint8 if takes_pixels else torch.float32, channels_last=channels_last)
    found = workers.start(workers.upload(images), VIEWS, preprocessing)()
    expected = [preprocessing.normalize(apply_view(images, view)).reshape(len(images), -1) for view in VIEWS]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_format_is_the_one_of_the_model(channels_last: bool) -> None:
    formats: list[bool] = []

    def run(inputs: Any) -> Any:
        formats.append(inputs.is_contiguous(memory_format=torch.channels_last))
        assert inputs.shape == (8, 3, 9, 8)
        return inputs.flatten(start_dim=1)

    model = DeviceModel(torch.device("cpu"), run, torch.bfloat16, channels_last)
    workers = DeviceWorkers([model])
    workers.start(workers.upload(make_images(4)), VIEWS[:2], Preprocessing())()
    assert formats == [channels_last]


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


@pytest.mark.parametrize("count", [1, 4, 5, 8, 11])
def test_fixed_batch_size_is_filled_up(count: int) -> None:
    sizes: list[int] = []

    def run(inputs: Any) -> Any:
        sizes.append(len(inputs))
        return inputs.flatten(start_dim=1)

    images, preprocessing = make_images(count), Preprocessing()
    workers = DeviceWorkers([DeviceModel(torch.device("cpu"), run, torch.float32, batch_size=4)])
    found = workers.start(workers.upload(images), VIEWS[:1], preprocessing)()
    np.testing.assert_allclose(found, preprocessing.normalize(images).reshape(count, -1), atol=1e-6)
    assert set(sizes) == {4}
    assert len(sizes) == -(-count // 4)


def test_images_may_be_tensors_and_read_only_arrays() -> None:
    images, preprocessing, workers = make_images(), Preprocessing(), make_workers()
    expected = workers.start(workers.upload(images), VIEWS, preprocessing)()
    images.setflags(write=False)
    np.testing.assert_array_equal(workers.start(workers.upload(images), VIEWS, preprocessing)(), expected)
    tensor = torch.from_numpy(images.copy())
    np.testing.assert_array_equal(workers.start(workers.upload(tensor), VIEWS, preprocessing)(), expected)


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


def make_host_classifier(module: Any, **options: Any) -> TorchClassifier:
    """Return a classifier whose module is where it is; the fixture takes it for a GPU."""
    classifier = load_classifier(module, output="logits", **options)
    assert isinstance(classifier, TorchClassifier)
    classifier._placed.workers = None
    return classifier


@pytest.mark.usefixtures("cpu_as_gpus")
def test_torch_classifier_on_gpus_has_the_outputs_of_the_host(torch_module: Any, images: Array) -> None:
    accelerated = put_on_gpus(torch_module, mean=0.4, std=0.3)
    views = ViewSet("identity hflip rotate:7").views
    host = make_host_classifier(torch_module, mean=0.4, std=0.3)
    assert accelerated.digest == host.digest
    assert accelerated.workers is not None
    assert len(accelerated.workers.models) == 2
    np.testing.assert_allclose(accelerated(images), host(images), atol=1e-5)
    outputs = accelerated.start(accelerated.upload(images), views)()
    for view, found in zip(views, np.split(outputs, 3), strict=True):
        np.testing.assert_allclose(found, host(apply_view(images, view)), atol=1e-2 if "rotate" in str(view) else 1e-5)


@pytest.mark.usefixtures("cpu_as_gpus")
def test_copies_of_a_classifier_share_its_modules(torch_module: Any) -> None:
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


@pytest.mark.usefixtures("cpu_as_gpus")
def test_module_of_the_user_is_not_moved(torch_module: Any) -> None:
    accelerated = put_on_gpus(torch_module, dtype="bfloat16")
    assert accelerated.module is not torch_module
    assert {weight.dtype for weight in torch_module.parameters()} == {torch.float32}
    assert {weight.dtype for weight in accelerated.module.parameters()} == {torch.bfloat16}


@pytest.mark.usefixtures("cpu_as_gpus")
def test_output_of_a_gpu_is_validated() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9 * 8 * 3, 4))
    with torch.no_grad():
        module[1].bias[2] = float("nan")
    classifier = put_on_gpus(module)
    with pytest.raises(ClassifierError, match=r"returned nan for image 0 .*class 2"):
        classifier.start(classifier.upload(make_images()), VIEWS)()


@pytest.mark.usefixtures("cpu_as_gpus")
def test_failure_on_a_gpu_is_one_sentence() -> None:
    classifier = put_on_gpus(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 4)))
    with pytest.raises(ClassifierError, match=r"failed on a GPU with 28 inputs.*resize="):
        classifier.start(classifier.upload(make_images()), VIEWS)


@pytest.mark.usefixtures("cpu_as_gpus")
def test_wrong_size_is_rejected_before_it_is_uploaded() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9 * 8 * 3, 4))
    classifier = put_on_gpus(module, resize=(5, 5))
    with pytest.raises(ClassifierError, match="5 x 5"):
        classifier.upload(make_images())


def test_settings_of_torch_are_restored(torch_module: Any) -> None:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    seen = []

    class Recorder(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            flags = torch.backends.cudnn
            seen.append((flags.deterministic, flags.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
            return inputs.flatten(start_dim=1)

    for dtype in ("float32", "tf32"):
        load_classifier(Recorder(), output="logits", dtype=dtype)(make_images())
    assert seen == [(True, False, False), (True, True, True)]
    after = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    assert after == before


# --- Devices ---


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA", "", "mps"])
def test_unknown_device_is_one_sentence(device: str, torch_module: Any) -> None:
    for classifier in (load_classifier(torch_module, output="logits"), load_classifier(lambda batch: batch)):
        with pytest.raises(ClassifierError, match=rf"device='{device}' is unknown; expected 'auto', 'cpu'"):
            classifier.on_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_missing_cuda_is_one_sentence(torch_module: Any) -> None:
    classifier = load_classifier(torch_module, output="logits")
    with pytest.raises(ClassifierError, match=r"device='cuda' is not available: torch .* sees no CUDA device; pass"):
        classifier.on_device("cuda")
    assert classifier.on_device("auto") is classifier
    assert classifier.on_device("cpu").workers is None


def test_gpus_of_the_machine_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert list_gpus("cuda") == ["cuda:0", "cuda:1"]
    assert list_gpus("cuda:1") == ["cuda:1"]
    with pytest.raises(ClassifierError, match=r"device='cuda:7' does not exist; this machine has cuda:0, cuda:1"):
        list_gpus("cuda:7")


def test_function_cannot_be_put_on_a_gpu() -> None:
    classifier = load_classifier(lambda batch: np.ones((len(batch), 2)) / 2, name="halves")
    with pytest.raises(ClassifierError, match=r"device='cuda:0' cannot .* 'halves' .*pass device='auto'"):
        classifier.on_device("cuda:0")
    assert classifier.on_device("auto") is classifier


@pytest.mark.usefixtures("cpu_as_gpus")
def test_members_of_an_ensemble_are_put_on_a_device(torch_module: Any) -> None:
    ensemble = Ensemble([load_classifier(torch_module, output="logits") for _ in range(2)], name="pair")
    moved: Classifier = ensemble.on_device("cuda")
    assert moved.name == "pair"
    assert all(member.is_accelerated for member in moved.members)
    assert moved.digest == ensemble.digest


def test_auto_keeps_a_device_that_was_chosen(torch_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = load_classifier(torch_module, output="logits", device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen.on_device("auto") is chosen


# --- CUDA graphs ---


def test_graphs_are_recorded_for_batch_sizes_that_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from secondlook.classifiers.device import MAX_GRAPHS, GraphedCall

    calls: list[int] = []
    recorded: list[int] = []

    def double(inputs: Any) -> Any:
        calls.append(len(inputs))
        return 2 * inputs

    class Graph:
        def __init__(self, inputs: Any, outputs: Any) -> None:
            self.inputs, self.outputs = inputs, outputs

        def replay(self) -> None:
            self.outputs.copy_(2 * self.inputs)

    def record(_: Any, inputs: Any) -> Any:
        recorded.append(len(inputs))
        own, outputs = torch.zeros_like(inputs), torch.zeros_like(inputs)
        return Graph(own, outputs), own, outputs

    monkeypatch.setattr(GraphedCall, "_record", record)
    call = GraphedCall(double)
    sizes = [3, 3, 3, *range(10, 10 + 2 * MAX_GRAPHS), *range(10, 10 + 2 * MAX_GRAPHS), 3]
    results = []
    for place, size in enumerate(sizes):
        inputs = torch.full((size, 2), float(place))
        results.append((2 * inputs, call(inputs)))
    assert recorded == [3, *range(10, 9 + MAX_GRAPHS)], "a size is recorded when it comes again, up to a number of them"
    assert calls == [3, *range(10, 10 + 2 * MAX_GRAPHS), *range(9 + MAX_GRAPHS, 10 + 2 * MAX_GRAPHS)]
    assert all(torch.equal(expected, found) for expected, found in results), "results do not share memory"
