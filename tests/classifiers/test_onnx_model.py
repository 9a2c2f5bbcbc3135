"""ONNX models: the input is read from the model, batches are split among threads, and sessions are put on GPUs."""

import gc
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import OnnxClassifier, load_classifier
from secondlook.classifiers.onnx_model import SessionRun
from secondlook.errors import ClassifierError
from secondlook.views import ViewSet, apply_view
from tests.classifiers.conftest import CUDA, write_graph

SHARED = Path(__file__).resolve().parents[3] / "shared"
Write = Callable[..., Path]


def load_onnx(file: Path | str, **options: Any) -> OnnxClassifier:
    classifier = load_classifier(f"onnx:{file}", **{"output": "logits", **options})
    assert isinstance(classifier, OnnxClassifier)
    return classifier


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (("n", 3, 8, 8), "float"),
        (("n", 3, "h", "w"), "float"),
        (("n", 8, 8, 3), "float"),
        ((4, 3, 8, 8), "float"),
        ((1, 3, 8, 8), "float"),
        ((7, 3, 8, 8), "float"),
        (("n", 8, 8, 3), "uint8"),
        (("n", 3, 8, 8), "float16"),
    ],
)
def test_the_input_is_read_from_the_model(
    shape: tuple[object, ...], dtype: str, make_onnx: Write, images: Array, logits: Array
) -> None:
    classifier = load_onnx(make_onnx(*shape, dtype=dtype))
    assert classifier.n_classes == 5
    np.testing.assert_allclose(classifier(images), logits, atol=2e-2 if dtype == "float16" else 1e-4)


# --- Batches that are split among threads ---


class RecordingSession:
    """A session that records the size and the thread of each batch, and waits until `n_parts` run at once."""

    def __init__(self, session: Any, n_parts: int) -> None:
        self._session, self.barrier = session, threading.Barrier(n_parts)
        self.calls: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: Any, inputs: dict[str, Array], options: Any) -> Any:
        (batch,) = inputs.values()
        self.calls.append((len(batch), threading.get_ident()))
        self.barrier.wait(300)
        return self._session.run(names, inputs, options)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_split_batches_have_the_outputs_of_whole_ones(make_onnx: Write, set_threads: Any, n_threads: int) -> None:
    whole, ensemble = load_onnx(make_onnx()), load_classifier([f"onnx:{make_onnx()}"] * 2)
    set_threads(n_threads)
    images = np.random.default_rng(0).integers(0, 256, (9 * n_threads, 8, 8, 3), dtype=np.uint8)
    split = whole.split_batches()
    for count in range(1, len(images) + 1):  # parts have at least eight images
        np.testing.assert_array_equal(split(images[:count]), whole(images[:count]))
    assert (split is whole) == (n_threads == 1)
    assert split.digest == whole.digest
    assert split.on_device("auto") is split
    several = ensemble.split_batches()
    assert (several.digest, several.name) == (ensemble.digest, ensemble.name)
    for one, other in zip(several.members, ensemble.members, strict=True):
        assert (one is other) == (n_threads == 1)
    np.testing.assert_array_equal(several(images), ensemble(images))


def test_each_part_has_a_thread(make_onnx: Write, set_threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    sessions: list[RecordingSession] = []
    create = onnxruntime.InferenceSession

    def record(*arguments: Any, **settings: Any) -> RecordingSession:
        # The first session runs whole batches, the second one the three parts of a batch.
        sessions.append(RecordingSession(create(*arguments, **settings), 3 if sessions else 1))
        return sessions[-1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", record)
    set_threads(3)
    split = load_onnx(make_onnx()).split_batches()
    split(np.zeros((25, 8, 8, 3), np.uint8))
    split(np.zeros((23, 8, 8, 3), np.uint8))  # too few for three parts of eight
    assert [sorted(size for size, _ in session.calls) for session in sessions] == [[23], [8, 8, 9]]
    assert len({thread for _, thread in sessions[1].calls}) == 3


def test_chosen_threads_and_fixed_sizes_are_kept(make_onnx: Write, set_threads: Any) -> None:
    set_threads(2)
    for model in (
        load_onnx(make_onnx(), threads=2),
        load_onnx(make_onnx(), threads=1, providers=CUDA[1]),
        load_onnx(make_onnx(4, 3, 8, 8)),
    ):
        assert model.split_batches() is model


# --- Inputs, outputs and options ---


def test_an_output_is_selected_by_name_and_may_declare_its_kind(make_onnx: Write, images: Array) -> None:
    file = make_onnx(extra=True)
    with pytest.raises(ClassifierError, match="'logits', 'softmax'"):
        load_onnx(file)
    logits = load_onnx(file, output_name="logits")
    softmax = load_onnx(file, output="probabilities", output_name="softmax")
    np.testing.assert_allclose(softmax(images), logits.probabilities(images), atol=1e-5)
    assert softmax.digest != logits.digest
    with pytest.raises(ClassifierError, match=re.escape(str(file))):
        load_onnx(file, output=None, output_name="softmax")
    assert load_onnx(make_onnx(), output=None).output == "logits"
    assert load_onnx(make_onnx(), output="probabilities").output == "probabilities"


@pytest.mark.parametrize(
    ("shape", "image", "offending"),
    [
        ((), (9, 9, 3), "9 x 9.* 8 x 8"),
        ((), (8, 8, 1), "gray='repeat'"),
        (("n", 3, "h", "w"), (1, 1, 3), r"\[1, 3, 1, 1\]"),
    ],
)
def test_images_of_another_shape_are_rejected(
    shape: tuple[Any, ...], image: tuple[int, ...], offending: str, make_onnx: Write, accelerate: Any
) -> None:
    classifier, images = load_onnx(make_onnx(*shape)), np.zeros((1, *image), np.uint8)
    with pytest.raises(ClassifierError, match=offending):
        classifier(images)
    if shape:
        moved = accelerate(classifier)
        with pytest.raises(ClassifierError, match=r"failed on an input of shape \[1, 3, 1, 1\]"):
            moved.start(moved.upload(images), COPIES[:1])()


def test_layouts_threads_providers_and_sizes_are_applied(make_onnx: Write, images: Array, logits: Array) -> None:
    file, free = make_onnx(), make_onnx("n", "c", "h", "w")
    one = load_onnx(file, threads=1, providers="CPUExecutionProvider")
    assert one.providers == ["CPUExecutionProvider"]
    for classifier in (one, load_onnx(free, layout="NCHW")):
        np.testing.assert_allclose(classifier(images), logits, atol=1e-4)
    for path, options, found in (
        (free, {}, r"'images'.*\[\?, \?, \?, \?\]"),
        (file, {"layout": "NHWC"}, r"8 channels.*'NHWC'"),
        (file, {"providers": ["CPUExecutionProvidr"]}, r"'CPUExecutionProvidr'.* Did you mean 'CPUExecutionProvider'"),
        (file, {"crop": 9}, r"8 x 8.* 9 x 9"),
    ):
        with pytest.raises(ClassifierError, match=found):
            load_onnx(path, **options)


@pytest.mark.parametrize(
    ("inputs", "step", "offending"),
    [
        ("float[n, 3, 8, 8] a, float[n, 3, 8, 8] b", "Add(a, b)", r"2 inputs \('a', 'b'\)"),
        ("float[n, 64] a", "Relu(a)", r"'a'.*\[\?, 64\]"),
        ("int64[n, 3, 8, 8] a", "Neg(a)", r"'a'.*tensor\(int64\).*tensor\(float\)"),
    ],
)
def test_inputs_that_do_not_take_images_are_rejected(inputs: str, step: str, offending: str, tmp_path: Path) -> None:
    graph = f"({inputs}) => ({inputs.partition('[')[0]} scores) {{ scores = {step} }}"
    with pytest.raises(ClassifierError, match=offending):
        load_onnx(write_graph(tmp_path / "m.onnx", graph))


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_resnet20_reaches_its_accuracy_on_cifar10() -> None:
    with np.load(SHARED / "cifar10" / "test.npz") as data:
        images, labels = data["images"][:1000], data["labels"][:1000]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    classifier = load_onnx(SHARED / "cifar10" / "resnet20.onnx", mean=mean, std=std)
    predicted = classifier(classifier.preprocessing.fit(images)).argmax(axis=1)
    assert abs((predicted == labels).mean() - 0.917) < 0.015


# --- Devices ---

COPIES = ViewSet("identity hflip shift:1,-2 hflip+shift:0,1").views


@pytest.mark.parametrize("dtype", ["float", "float16", "uint8"])
@pytest.mark.parametrize(
    "shape", [("n", 3, 8, 8), ("n", 8, 8, 3), ("n", 3, "h", "w"), (4, 3, 8, 8), (64, 8, 8, 3), ("n", 1, 8, 8)]
)
@pytest.mark.parametrize("models", [1, 2])
def test_inputs_from_torch_give_the_outputs_of_the_host(
    shape: tuple[Any, ...], dtype: str, models: int, make_onnx: Write, make_network: Any, accelerate: Any
) -> None:
    channels = 1 if shape[1] == 1 else 3
    images = np.random.default_rng(1).integers(0, 256, (7, 8, 8, channels), dtype=np.uint8)
    settings = {} if dtype == "uint8" else {"mean": (0.3, 0.4, 0.5)[:channels], "std": (0.2, 0.3, 0.25)[:channels]}
    if channels == 1:
        classifier = load_onnx(make_onnx(*shape, dtype=dtype, network=make_network(channels=1)), **settings)
    else:
        classifier = load_onnx(make_onnx(*shape, dtype=dtype), color="BGR", **settings)
    expected = np.concatenate([classifier(apply_view(images, view)) for view in COPIES])
    moved = accelerate(classifier, models)
    found = moved.start(moved.upload(images), COPIES)()
    np.testing.assert_allclose(found, expected, atol=1e-2 if dtype == "float16" else 1e-5)
    assert abs(expected).max() > 0.1


def test_input_stays_in_memory_while_the_session_runs(make_onnx: Write, images: Array, logits: Array) -> None:
    """The session gets an address only; a tensor that is not contiguous is copied to one nobody else holds."""
    torch = pytest.importorskip("torch")
    overwritten: list[Any] = []

    class Session:
        def io_binding(self) -> Any:
            return classifier.session.io_binding()

        def run_with_iobinding(self, *arguments: Any) -> None:
            gc.collect()
            overwritten.extend(torch.full((7, 3, 8, 8), 1e6) for _ in range(64))
            classifier.session.run_with_iobinding(*arguments)

    classifier = load_onnx(make_onnx())
    run = SessionRun(Session(), classifier.model_input, classifier.output_name, "m", timeout=600)
    pixels_last = torch.from_numpy(images.astype(np.float32) / 255)
    outputs = run.run_tensor(pixels_last.permute(0, 3, 1, 2))
    assert overwritten
    np.testing.assert_allclose(outputs.numpy(), logits, atol=1e-4)


class CudaSessions:
    """Sessions on the CPU that ONNX Runtime would have on GPUs; `made` are the providers of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, finds_libraries: bool = True, gpus: int = 1) -> None:
        import onnxruntime

        self.made: list[Any] = []
        self._create, self._finds_libraries, self._gpus = onnxruntime.InferenceSession, finds_libraries, gpus
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: CUDA)
        monkeypatch.setattr(onnxruntime, "InferenceSession", self)

    def __call__(self, file: str, options: Any, *, providers: list[Any], **settings: Any) -> Any:
        self.made.append(providers)
        session = self._create(file, options, providers=["CPUExecutionProvider"])
        if providers != ["CPUExecutionProvider"]:
            assert settings == {"enable_fallback": 0}  # which would print, and hide the error
            if int(providers[0][1]["device_id"]) >= self._gpus:
                raise RuntimeError("CUDA failure 101: invalid device ordinal ; GPU=7\nsecond line")
            session.get_providers = lambda: CUDA if self._finds_libraries else CUDA[1:]
        return session


@pytest.fixture
def torch_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let torch see a number of GPUs; none by default."""
    torch = pytest.importorskip("torch")

    def see(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    see(0)
    return see


def test_cuda_needs_its_provider(make_onnx: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: CUDA[1:])
    classifier = load_onnx(make_onnx())
    for device in ("cuda", "cuda:3"):
        with pytest.raises(ClassifierError, match=f"device='{device}'.*install onnxruntime-gpu, or pass device='cpu'"):
            classifier.on_device(device)
    with pytest.raises(ClassifierError, match="device='gpu' is unknown"):
        classifier.on_device("gpu")
    assert classifier.on_device("auto") is classifier
    assert classifier.workers is None
    assert classifier.on_device("cpu").providers == CUDA[1:]


@pytest.mark.usefixtures("torch_gpus")
def test_cuda_without_torch_is_reached_from_the_host(
    make_onnx: Write, images: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = load_onnx(make_onnx())(images)
    sessions = CudaSessions(monkeypatch, gpus=2)
    classifier = load_onnx(make_onnx())
    for device, number in (("cuda", "0"), ("cuda:1", "1")):
        moved = classifier.on_device(device)
        assert moved.providers == CUDA
        assert not moved.is_accelerated
        assert moved.digest == classifier.digest
        (name, options), other = sessions.made[-1]
        assert [name, other] == CUDA
        assert (options["device_id"], options["use_tf32"]) == (number, "0")
        np.testing.assert_array_equal(moved(images), outputs)
        assert moved.on_device(device) is moved
        assert moved.on_device("auto") is moved
    made = len(sessions.made)
    assert classifier.on_device("cpu").providers == CUDA[1:]
    assert classifier.on_device("cuda").providers == CUDA
    assert len(sessions.made) == made


@pytest.mark.usefixtures("torch_gpus")
def test_auto_uses_cuda_where_it_is_available(
    make_onnx: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = CudaSessions(monkeypatch)
    on_cpu = load_onnx(make_onnx()).on_device("cpu")
    assert on_cpu.on_device("auto").providers == CUDA[1:]
    assert sessions.made == [["CPUExecutionProvider"]], "none on a GPU"
    assert load_onnx(make_onnx()).on_device("auto").providers == CUDA
    chosen = load_onnx(make_onnx(), providers="CPUExecutionProvider")
    assert chosen.on_device("auto").providers == CUDA[1:]
    assert chosen.on_device("cuda").providers == CUDA
    assert chosen.on_device("cuda").on_device("auto").providers == CUDA
    CudaSessions(monkeypatch, finds_libraries=False)
    with pytest.raises(ClassifierError, match=r"device='cuda' .*CUDA libraries.*device='cpu'"):
        load_onnx(make_onnx()).on_device("cuda")
    classifier = load_onnx(make_onnx()).on_device("auto")
    assert classifier.providers == CUDA[1:]
    assert not classifier.is_accelerated
    assert capsys.readouterr().out == ""


def test_each_gpu_has_a_session(make_onnx: Write, monkeypatch: pytest.MonkeyPatch, torch_gpus: Any) -> None:
    sessions = CudaSessions(monkeypatch, gpus=2)
    classifier = load_onnx(make_onnx())
    with pytest.raises(ClassifierError, match=r"device='cuda:7' .*invalid device ordinal.*device='cpu'") as caught:
        classifier.on_device("cuda:7")
    assert "\n" not in str(caught.value)
    torch_gpus(2)
    with pytest.raises(ClassifierError, match=r"device='cuda:7' does not exist; this machine has cuda:0, cuda:1"):
        classifier.on_device("cuda:7")
    sessions.made.clear()
    for device, devices in (("cuda", ("cuda:0", "cuda:1")), ("cuda:1", ("cuda:1",)), ("auto", ("cuda:0", "cuda:1"))):
        workers = classifier.on_device(device).workers
        assert workers is not None
        assert workers.devices == devices
    assert [made[0][1]["device_id"] for made in sessions.made] == ["0", "1", "1"]
