"""The tiny network as an ONNX file, a torch module and a model on a real server."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.threads import limit_threads

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def make_network() -> Callable[..., Any]:
    """Load the network from a separate file, which the environment of the server loads too."""
    spec = importlib.util.spec_from_file_location("tiny_network", HERE / "tiny_network.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny_network"] = module
    spec.loader.exec_module(module)
    made: Callable[..., Any] = module.TinyNetwork.random
    return made


@pytest.fixture(scope="session")
def network(make_network: Callable[..., Any]) -> Any:
    return make_network()


@pytest.fixture
def images() -> Array:
    return np.random.default_rng(1).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def logits(network: Any, images: Array) -> Array:
    """The logits of the network for the images, which are divided by 255."""
    found: Array = network.logits(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    return found


def write_graph(file: Path, graph: str, **arrays: Array) -> Path:
    """Write a graph in the text format of ONNX, with arrays as its initializers."""
    import onnx.parser

    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> model {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, file)
    return file


@pytest.fixture(scope="session")
def make_onnx(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a network as an ONNX file with a given input, once; tests change copies only."""

    @cache
    def write(*shape: Any, dtype: str = "float", extra: bool = False, network: Any = network) -> Path:
        shape = shape or ("n", 3, 8, 8)
        classes = f"[{shape[0]}, {len(network.offset)}]"
        graph = f"""({dtype}[{", ".join(map(str, shape))}] images) => (float{classes} logits
          {f", float{classes} softmax" if extra else ""}) {{
            as_float = Cast <to = 1> (images)
            scaled = Div(as_float, white)
            planes = Transpose <perm = {[0, 3, 1, 2] if shape[3] == 3 else [0, 1, 2, 3]}> (scaled)
            features = Conv(planes, kernel, bias)
            positive = Relu(features)
            pooled = GlobalAveragePool(positive)
            flat = Flatten(pooled)
            logits = Gemm <transB = 1> (flat, matrix, offset)
            {"softmax = Softmax <axis = 1> (logits)" if extra else ""}
        }}"""
        arrays = {name: getattr(network, name) for name in ("kernel", "bias", "matrix", "offset")}
        white = np.array(255 if dtype == "uint8" else 1, np.float32)
        return write_graph(tmp_path_factory.mktemp("onnx") / "m.onnx", graph, white=white, **arrays)

    return write


CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Put an ONNX classifier on GPUs, for which the CPU stands: sessions get their inputs from torch."""
    torch = pytest.importorskip("torch")
    from secondlook.classifiers import device

    def put_on_gpus(classifier: Classifier, count: int = 1) -> Classifier:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: CUDA)
        monkeypatch.setattr(device, "list_gpus", lambda _: ["cpu"] * count)
        moved = classifier.on_device("cuda")
        assert moved.workers is not None
        assert len(moved.workers.models) == count
        return moved

    return put_on_gpus


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Limit the threads of the process until the end of the test."""
    import cv2
    import torch

    before = cv2.getNumThreads(), torch.get_num_threads()
    yield limit_threads
    limit_threads(None)
    cv2.setNumThreads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture
def torch_module(network: Any) -> Any:
    torch = pytest.importorskip("torch")
    filters, channels = network.kernel.shape[:2]
    module = torch.nn.Sequential(
        torch.nn.Conv2d(channels, filters, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(filters, len(network.offset)),
    )
    weights = {"0.weight": network.kernel, "0.bias": network.bias, "4.weight": network.matrix, "4.bias": network.offset}
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return module


class RunsCode:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


@pytest.fixture
def load() -> Iterator[Callable[..., Any]]:
    """Load classifiers that output logits, and close the remote ones."""
    with ExitStack() as opened:

        def load_closed(spec: object, **options: Any) -> Any:
            classifier = load_classifier(spec, **{"output": "logits", **options})
            opened.callback(getattr(classifier, "close", lambda: None))
            return classifier

        yield load_closed


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let torch.compile return modules as they are, and return the list of these modules."""
    torch = pytest.importorskip("torch")
    modules: list[Any] = []

    def record(module: Any) -> Any:
        modules.append(module)
        return module

    monkeypatch.setattr(torch, "compile", record)
    return modules


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class ModelServer:
    """MLServer with the tiny network, on a free loopback port that stays the same after a restart."""

    def __init__(self, python: Path, folder: Path, network: Any, seconds: float) -> None:
        self._command = [str(python.with_name("mlserver")), "start", str(folder)]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
        self.address = f"http://127.0.0.1:{ports['http_port']}"
        network.save(folder / "weights.npz")
        settings = {"host": "127.0.0.1", "parallel_workers": 0, "load_models_at_startup": True, **ports}
        (folder / "settings.json").write_text(json.dumps(settings))
        model = {
            "name": "tiny",
            "implementation": "mlserver_runtime.TinyRuntime",
            "parameters": {"uri": str(folder / "weights.npz"), "version": "v1", "extra": {"seconds": seconds}},
            "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
            "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 5]}],
        }
        (folder / "model-settings.json").write_text(json.dumps(model))

    def start(self, *, wait: bool = True) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        while wait and not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the model server did not start:\n{(self._folder / 'log.txt').read_text()}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/v2/models/tiny/ready", timeout=120) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @property
    def was_used(self) -> bool:
        """Whether the server has begun to classify something."""
        return (self._folder / "weights.used").exists()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def run_server(python_with: Callable[..., Path], folder: Path, network: Any, seconds: float) -> Iterator[ModelServer]:
    running = ModelServer(python_with("mlserver", HERE / "mlserver-requirements.txt"), folder, network, seconds)
    try:
        running.start()
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="session")
def server(
    python_with: Callable[..., Path], network: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelServer]:
    with run_server(python_with, tmp_path_factory.mktemp("server"), network, 0) as running:
        yield running


@pytest.fixture
def mortal_server(python_with: Callable[..., Path], network: Any, tmp_path: Path) -> Iterator[ModelServer]:
    """A separate slow server, for tests that kill it."""
    with run_server(python_with, tmp_path, network, 0.05) as running:
        yield running
