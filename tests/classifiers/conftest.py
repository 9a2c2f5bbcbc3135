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
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent


def _load_network_class() -> Any:
    """Load the network from a separate file, which the environment of the server loads too."""
    spec = importlib.util.spec_from_file_location("tiny_network", HERE / "tiny_network.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny_network"] = module
    spec.loader.exec_module(module)
    return module.TinyNetwork


@pytest.fixture(scope="session")
def make_network() -> Callable[..., Any]:
    made: Callable[..., Any] = _load_network_class().random
    return made


@pytest.fixture(scope="session")
def network(make_network: Callable[..., Any]) -> Any:
    return make_network()


@pytest.fixture
def images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def make_onnx() -> Callable[..., Path]:
    """Return a function that writes the network as an ONNX file with a given input."""

    def write(network: Any, file: Path, *, shape: tuple[Any, ...], dtype: str = "FLOAT", extra: bool = False) -> Path:
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        steps, images = [], "images"
        if dtype != "FLOAT":
            steps.append(helper.make_node("Cast", [images], ["as_float"], to=TensorProto.FLOAT))
            images = "as_float"
        if dtype == "UINT8":
            steps.append(helper.make_node("Div", [images, "white"], ["scaled"]))
            images = "scaled"
        if shape[3] == 3:
            steps.append(helper.make_node("Transpose", [images], ["planes"], perm=[0, 3, 1, 2]))
            images = "planes"
        steps += [
            helper.make_node("Conv", [images, "kernel", "bias"], ["features"]),
            helper.make_node("Relu", ["features"], ["positive"]),
            helper.make_node("GlobalAveragePool", ["positive"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Gemm", ["flat", "matrix", "offset"], ["logits"], transB=1),
        ]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [shape[0], len(network.offset)])]
        if extra:
            steps.append(helper.make_node("Softmax", ["logits"], ["softmax"], axis=1))
            outputs.append(helper.make_tensor_value_info("softmax", TensorProto.FLOAT, [shape[0], len(network.offset)]))
        arrays = {name: getattr(network, name) for name in ("kernel", "bias", "matrix", "offset")}
        arrays["white"] = np.array(255, dtype=np.float32)
        graph = helper.make_graph(
            steps,
            "tiny",
            [helper.make_tensor_value_info("images", getattr(TensorProto, dtype), list(shape))],
            outputs,
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
        return file

    return write


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

    def __init__(self, python: Path, folder: Path, network: Any, seconds: float = 0.0) -> None:
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
        deadline = time.monotonic() + 60
        while wait and not self._is_ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the model server did not start:\n{(self._folder / 'log.txt').read_text()}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/v2/models/tiny/ready", timeout=1) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def server_python(python_with: Callable[..., Path]) -> Path:
    """Return the Python interpreter of an environment with MLServer."""
    return python_with("mlserver", HERE / "mlserver-requirements.txt")


@pytest.fixture(scope="session")
def server(server_python: Path, network: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    running = ModelServer(server_python, tmp_path_factory.mktemp("server"), network)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def mortal_server(server_python: Path, network: Any, tmp_path: Path) -> Iterator[ModelServer]:
    """A separate slow server, for tests that kill it."""
    running = ModelServer(server_python, tmp_path, network, seconds=0.05)
    running.start()
    yield running
    running.kill()
