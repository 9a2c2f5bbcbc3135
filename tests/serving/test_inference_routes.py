"""The Open Inference Protocol of a running service, with NVIDIA's client for Triton and with plain requests."""

import base64
import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.serving.service import Service
from secondlook.sources import read_image
from tests.serving.running import Digits, send, serve

triton = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
OUTPUTS = ("label", "class", "confidence", "accept", "low", "high", "looks", "id")
Running = tuple[str, Service]


@pytest.fixture(scope="module")
def running(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service for all tests that do not mind what others sent."""
    with serve(digits.policy, tmp_path_factory.mktemp("running") / "service") as one:
        yield one


def connect(url: str) -> Any:
    return triton.InferenceServerClient(url.removeprefix("http://"))


def make_input(values: Array, *, binary: bool = True) -> Any:
    datatype = utils.np_to_triton_dtype(values.dtype)
    return triton.InferInput("image", list(values.shape), datatype).set_data_from_numpy(values, binary_data=binary)


def make_files(files: tuple[bytes, ...], *, binary: bool = True) -> Any:
    """As JSON, files are base64."""
    sent = files if binary else [base64.b64encode(file) for file in files]
    return make_input(np.array(sent, dtype=object), binary=binary)


def read_outputs(result: Any) -> dict[str, list[Any]]:
    return {name: result.as_numpy(name).tolist() for name in OUTPUTS}


def decide(url: str, files: tuple[bytes, ...], ids: list[str]) -> list[dict[str, Any]]:
    """The decisions of the service's own interface."""
    return [send(f"{url}/v1/decide?id={id_}", file).json for file, id_ in zip(files, ids, strict=True)]


def test_health_and_metadata(running: Running) -> None:
    client = connect(running[0])
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("secondlook")
    assert client.is_model_ready("secondlook", "1")
    assert not client.is_model_ready("another")
    assert client.get_server_metadata() == {
        "name": "secondlook",
        "version": sl.__version__,
        "extensions": ["binary_tensor_data"],
    }
    for version in ("", "1"):
        metadata = client.get_model_metadata("secondlook", version)
        assert (metadata["name"], metadata["versions"]) == ("secondlook", ["1"])
        assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert [each["name"] for each in metadata["outputs"]] == list(OUTPUTS)


def test_a_service_that_cannot_store_is_not_ready(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running[1].watcher, "find_problem", lambda: "the disk is full")
    client = connect(running[0])
    assert client.is_server_live()
    assert not client.is_server_ready()
    assert not client.is_model_ready("secondlook")


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
def test_files_are_decided_as_by_the_other_interface(
    running: Running, digits: Digits, binary_input: bool, binary_output: bool | None
) -> None:
    url, _ = running
    files, ids = digits.files[:6], [f"{uuid.uuid4()} {number}" for number in range(6)]
    requested = [triton.InferRequestedOutput(name, binary_data=binary_output) for name in OUTPUTS]
    result = connect(url).infer(
        "secondlook",
        [make_files(files, binary=binary_input)],
        outputs=None if binary_output is None else requested,
        request_id="request 7",
        parameters={"ids": ids},
    )
    assert result.get_response()["id"] == "request 7"
    assert result.get_response()["model_name"] == "secondlook"
    assert result.get_response()["model_version"] == "1"
    found = read_outputs(result)
    expected = [send(f"{url}/v1/decisions/{id_.replace(' ', '%20')}").json for id_ in ids]
    for name, key in (("label", "label"), ("confidence", "confidence"), ("accept", "accept"), ("looks", "looks")):
        assert found[name] == [each[key] for each in expected]
    texts = [[each.decode() if isinstance(each, bytes) else each for each in found[name]] for name in ("class", "id")]
    assert texts == [[each["class"] for each in expected], ids]
    assert [list(pair) for pair in zip(found["low"], found["high"], strict=True)] == [
        each["interval"] for each in expected
    ]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pixels_are_decided_as_their_files(running: Running, digits: Digits, binary: bool, dtype: type) -> None:
    url, _ = running
    pixels = np.stack([read_image(file) for file in digits.files[:4]])
    pixels = pixels if dtype is np.uint8 else (pixels / 255).astype(np.float32)
    found = read_outputs(connect(url).infer("secondlook", [make_input(pixels, binary=binary)]))
    expected = decide(url, digits.files[:4], [uuid.uuid4().hex for _ in range(4)])
    assert found["label"] == [each["label"] for each in expected]
    assert found["confidence"] == pytest.approx([each["confidence"] for each in expected], abs=1e-5)


def test_a_single_look_has_no_interval(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.adaptive_policy, tmp_path / "service") as (url, _):
        client = connect(url)
        for binary in (True, False):
            outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("looks", "low", "high")]
            result = client.infer("secondlook", [make_files(digits.files[:40])], outputs=outputs)
            single = result.as_numpy("looks") == 1
            assert single.any()
            for name in ("low", "high"):
                np.testing.assert_array_equal(np.isnan(result.as_numpy(name)), single)


def test_ids_make_a_request_safe_to_repeat(running: Running, digits: Digits) -> None:
    url, service = running
    client = connect(url)
    results = [
        client.infer("secondlook", [make_files(digits.files[:3])], parameters={"ids": ["a", "b", "c"]})
        for _ in range(2)
    ]
    first, second = map(read_outputs, results)
    assert first == second
    assert set(service.decisions.find(["a", "b", "c"])) == {"a", "b", "c"}
    with pytest.raises(utils.InferenceServerException, match="another image") as caught:
        client.infer("secondlook", [make_files(digits.files[3:4])], parameters={"ids": ["a"]})
    assert caught.value.status() == "409"


@pytest.mark.parametrize(
    ("name", "version", "status"), [("another", "", "404"), ("secondlook", "2", "404"), ("another", "1", "404")]
)
def test_another_model_is_unknown(running: Running, digits: Digits, name: str, version: str, status: str) -> None:
    client = connect(running[0])
    with pytest.raises(utils.InferenceServerException) as caught:
        client.infer(name, [make_files(digits.files[:1])], model_version=version)
    assert caught.value.status() == status
    with pytest.raises(utils.InferenceServerException) as caught:
        client.get_model_metadata(name, version)
    assert caught.value.status() == status


def make_document(files: Sequence[bytes], **parameters: object) -> bytes:
    """Return a request in JSON."""
    data = [base64.b64encode(file).decode() for file in files]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def post(url: str, document: object, **headers: str) -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    reply = send(f"{url}/v2/models/secondlook/infer", body, Content_Type="application/json", **headers)
    return reply.status, reply.json


@pytest.mark.parametrize(
    ("document", "status"),
    [
        (b"", 400),
        ({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 2**31, 2**31, 3], "data": []}]}, 413),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}]}, 422),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [""]}]}, 400),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2], "data": ["AAAA"] * 2}],
          "parameters": {"ids": ["a", "a"]}}, 400),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}],
          "parameters": {"ids": ["\ud800"]}}, 400),
    ],
)  # fmt: skip
def test_a_bad_request_is_an_error_in_the_form_of_the_protocol_and_the_service_goes_on(
    running: Running, digits: Digits, document: object, status: int
) -> None:
    url, _ = running
    found, reply = post(url, document)
    assert found == status
    assert isinstance(reply["error"], str)
    assert connect(url).infer("secondlook", [make_files(digits.files[:1])]).as_numpy("label").shape == (1,)


def test_compressed_bodies_are_refused(running: Running, digits: Digits) -> None:
    with pytest.raises(utils.InferenceServerException, match="compressed") as caught:
        connect(running[0]).infer("secondlook", [make_files(digits.files[:1])], request_compression_algorithm="gzip")
    assert caught.value.status() == "415"


def test_a_busy_service_says_when_to_come_back(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", max_waiting=1) as (url, service):
        service.worker.waiting = 1
        reply = send(f"{url}/v2/models/secondlook/infer", make_document(digits.files[:1]))
        assert reply.status == 429
        assert isinstance(reply.json["error"], str)
        assert int(reply.headers["retry-after"]) >= 1
        service.worker.waiting = 0
        assert send(f"{url}/v2/models/secondlook/infer", make_document(digits.files[:2])).status == 413, "for ever"


def test_the_key_of_a_request_is_the_id_of_its_only_image(running: Running, digits: Digits) -> None:
    url, service = running
    infer = f"{url}/v2/models/secondlook/infer"
    for _ in range(2):
        assert send(infer, make_document(digits.files[:1]), Idempotency_Key="one key").status == 200
    assert set(service.decisions.find(["one key"])) == {"one key"}
    assert send(infer, make_document(digits.files[1:2]), Idempotency_Key="one key").status == 409
    assert send(infer, make_document(digits.files[:2]), Idempotency_Key="one key").status == 400
    named = make_document(digits.files[:2], ids=["first of two", "second of two"])
    assert send(infer, named, Idempotency_Key="one key").status == 200


def test_a_service_with_tokens_needs_one(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        tokens = {role: service.tokens.add(role, role) for role in ("client", "reviewer")}
        headers = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}
        client, image = connect(url), make_files(digits.files[:1])
        assert client.is_server_ready()
        for given, status in ((None, "401"), (headers["reviewer"], "403")):
            with pytest.raises(utils.InferenceServerException) as caught:
                client.infer("secondlook", [image], headers=given)
            assert caught.value.status() == status
        with pytest.raises(utils.InferenceServerException):
            client.get_model_metadata("secondlook")
        assert client.get_model_metadata("secondlook", headers=headers["client"])["name"] == "secondlook"
        assert client.infer("secondlook", [image], headers=headers["client"]).as_numpy("label").shape == (1,)
