"""The example for MLServer: a real server, without secondlook, decides as the library does."""

import json
import shutil
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.decisions import Decision
from tests.classifiers.conftest import free_port
from tests.serving.running import Digits, make_digits, send

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "mlserver"
VERSIONS = ROOT / "tests" / "classifiers" / "mlserver-requirements.txt"
POLICIES = {"decide": "policy.json", "adaptive": "adaptive.json"}
"""Policy files by the names of the models on the server."""
N_IMAGES = 50

pytestmark = pytest.mark.outside


@dataclass(frozen=True)
class Expected:
    """Decisions of the library about images uint8 [N, 16, 16, 1]."""

    images: Array
    decisions: list[Decision]

    def check(self, outputs: dict[str, Array]) -> None:
        """Compare with the outputs of a server."""
        assert outputs["label"].tolist() == [one.label for one in self.decisions]
        assert outputs["accept"].tolist() == [one.accept for one in self.decisions]
        np.testing.assert_allclose(outputs["confidence"], [one.confidence for one in self.decisions], atol=1e-5)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def server_python(python_with: Callable[..., Path]) -> Path:
    """Return the Python interpreter of an environment with MLServer, the same one as for remote classifiers."""
    return python_with("mlserver", VERSIONS)


@pytest.fixture(scope="module")
def server(server_python: Path, digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of MLServer with two copies of the example: one policy is adaptive, the other one is not."""
    folder = tmp_path_factory.mktemp("server")
    for name, policy in POLICIES.items():
        shutil.copytree(EXAMPLE, folder / name)
        sl.export_onnx(digits.policy.with_name(policy), folder / name / "decide.onnx")
        change_settings(folder / name / "model-settings.json", name=name)
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    shutil.move(folder / "decide" / "settings.json", folder)
    change_settings(folder / "settings.json", **ports)
    url = f"http://127.0.0.1:{ports['http_port']}"
    with (folder / "log.txt").open("wb") as log:
        command = [str(server_python.with_name("mlserver")), "start", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until_ready(process, url, folder / "log.txt")
        yield url
    finally:
        process.kill()
        process.wait()


def change_settings(path: Path, **settings: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            if send(f"{url}/v2/health/ready").status == 200:
                return
        except urllib.error.URLError:  # it does not listen yet
            pass
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.fixture(params=POLICIES)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def expected(digits: Digits, model: str) -> Expected:
    policy = sl.load_policy(digits.policy.with_name(POLICIES[model]))
    images = np.stack([read_gray(file) for file in digits.files[:N_IMAGES]])
    decisions = [policy.decide(image) for image in images]
    assert len({one.accept for one in decisions}) == 2, "some are accepted, and some are not"
    return Expected(images, decisions)


def read_gray(file: bytes) -> Array:
    """Decode a PNG file. -> uint8 [16, 16, 1]"""
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(file)))[..., None]


def test_decisions_by_json(server: str, model: str, expected: Expected) -> None:
    images = expected.images
    tensor = {"name": "images", "datatype": "UINT8", "shape": images.shape, "data": images.ravel().tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    reply = send(f"{server}/v2/models/{model}/infer", body, Content_Type="application/json")
    assert reply.status == 200, reply.body
    outputs = {one["name"]: read_tensor(one) for one in reply.json["outputs"]}
    expected.check(outputs)
    assert outputs["looks"].tolist() == [one.looks for one in expected.decisions]
    taken = (~np.isnan(outputs["view_outputs"])).all(axis=2).sum(axis=1)
    assert taken.tolist() == outputs["looks"].tolist(), "NaN for looks that were not taken"


def read_tensor(tensor: dict[str, Any]) -> Array:
    dtypes = {"INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_}
    return np.array(tensor["data"], dtype=dtypes[tensor["datatype"]]).reshape(tensor["shape"])


def test_decisions_by_tritonclient(server: str, model: str, expected: Expected) -> None:
    from tritonclient import http

    with http.InferenceServerClient(server.removeprefix("http://")) as client:
        (described,) = client.get_model_metadata(model)["inputs"]
        assert described == {"name": "images", "datatype": "UINT8", "shape": [-1, 16, 16, 1]}
        tensor = http.InferInput("images", list(expected.images.shape), "UINT8")
        tensor.set_data_from_numpy(expected.images, binary_data=False)
        names = ("label", "confidence", "accept")
        wanted = [http.InferRequestedOutput(name, binary_data=False) for name in names]
        result = client.infer(model, [tensor], outputs=wanted)
    assert [one["name"] for one in result.get_response()["outputs"]] == list(names), "only what was requested"
    expected.check({name: result.as_numpy(name) for name in names})


MALFORMED: dict[str, dict[str, Any]] = {
    "another size": {"shape": [1, 8, 16, 1], "data": [0] * 128},
    "too few values": {"data": [0] * 100},
    "texts as pixels": {"data": ["a"] * 256},
    "bytes": {"datatype": "BYTES", "data": ["a"]},
    "another name": {"name": "pictures"},
}


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED)
def test_malformed_tensors_are_the_mistake_of_the_client(server: str, changes: dict[str, Any]) -> None:
    tensor = {"name": "images", "datatype": "UINT8", "shape": [1, 16, 16, 1], "data": [0] * 256, **changes}
    body = json.dumps({"inputs": [tensor]}).encode()
    reply = send(f"{server}/v2/models/decide/infer", body, Content_Type="application/json")
    assert 400 <= reply.status < 500, reply.body
    if "shape" in changes:
        assert (reply.status, "Got: 8 Expected: 16" in reply.json["error"]) == (400, True)


def test_requirements_are_those_of_the_tests() -> None:
    required, installed = ((path.read_text().splitlines()[1:]) for path in (EXAMPLE / "requirements.txt", VERSIONS))
    assert set(required) <= set(installed)


def test_secondlook_is_not_installed(server_python: Path) -> None:
    found = subprocess.run([server_python, "-c", "import secondlook"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in found.stderr
