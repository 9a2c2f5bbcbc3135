"""The Open Inference Protocol: requests from bytes, responses to bytes, and a running service with its clients."""

import base64
import json
import math
import struct
import tracemalloc
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import secondlook as sl
from secondlook.arrays import Array
from secondlook.serving.inference_routes import (
    OUTPUT_TENSORS,
    InferenceRequest,
    format_inference_response,
    parse_inference_request,
)
from secondlook.serving.responses import RequestError
from secondlook.sources import read_image
from tests.serving.running import Digits, Reply, Server, send, serve

triton = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
MAX_IMAGES, MAX_PIXELS = 8, 1000
UINT8 = {"name": "image", "datatype": "UINT8", "shape": [1, 2, 2, 1], "data": [0, 1, 2, 255]}
FLOATS = {**UINT8, "datatype": "FP32"}
FILES = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["AAEC"]}


def parse(document: object, content: bytes = b"", header_length: object = None) -> InferenceRequest:
    head = document if isinstance(document, bytes) else json.dumps(document).encode()
    length = len(head) if content and header_length is None else header_length
    return parse_inference_request(
        head + content, None if length is None else str(length), max_images=MAX_IMAGES, max_pixels=MAX_PIXELS
    )


def infer(**changes: Any) -> dict[str, Any]:
    """Return a request with an input of pixels that can be served, but for some changes."""
    return {"inputs": [{**UINT8, **changes}]}


def parse_binary(tensor: dict[str, Any], content: bytes, size: object = None) -> InferenceRequest:
    named = {**tensor, "parameters": {"binary_data_size": len(content) if size is None else size}}
    del named["data"]
    return parse({"inputs": [named]}, content)


def serialize(files: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(file)) + file for file in files)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=MAX_IMAGES))
def test_files_are_parsed_from_json_and_from_binary_data(files: list[bytes]) -> None:
    tensor = {**FILES, "shape": [len(files)], "data": [base64.b64encode(file).decode() for file in files]}
    assert parse({"inputs": [tensor]}).images == files
    assert parse_binary(tensor, serialize(files)).images == files


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]))


@given(
    st.one_of(arrays.arrays(np.uint8, SHAPES), arrays.arrays(np.float32, SHAPES, elements=st.floats(0, 1, width=32)))
)
def test_pixels_are_parsed_from_lists_and_from_binary_data(pixels: Array) -> None:
    datatype = {"uint8": "UINT8", "float32": "FP32"}[pixels.dtype.name]
    tensor = {"name": "image", "datatype": datatype, "shape": list(pixels.shape)}
    requests = [
        parse({"inputs": [{**tensor, "data": pixels.ravel().tolist()}]}),
        parse({"inputs": [{**tensor, "data": pixels.tolist()}]}),
        parse_binary({**tensor, "data": None}, pixels.tobytes()),
    ]
    for request in requests:
        for image, expected in zip(request.images, pixels, strict=True):
            assert isinstance(image, np.ndarray)
            assert image.dtype == pixels.dtype
            np.testing.assert_array_equal(image, expected)


HOSTILE_FIELDS: dict[str, list[Any]] = {
    "name": ["pixels", ["image"]],
    "shape": [
        4, ["1", "2", "2", "1"], [1.0, 2, 2, 1], [True, 2, 2, True], [1, -2, -2, 1], [-1, 2, 2, 1], [2, 2, 1], [],
        [1, 1, 2, 2], [1, 2, 3, 1], [1, 1, 2, 1], [MAX_IMAGES + 1, 1, 1, 1], [1, 2**62, 2**62, 3], [10**4000, 2, 2, 1],
    ],
    "datatype": ["UINT7", "INT64", ["UINT8"], None],
    "data": [
        [0, 1, 2, 256], [0, 1, 2, -1], [0, 1, 2, 10**30], [0, 1, 2, 0.5], ["0", "1", "2", "3"], [None] * 4,
        [[0, 1], [2]], {"0": 1},
    ],
    "parameters": [{"binary_data_size": 4}, [1]],
}  # fmt: skip
"""Values that cannot be served of each field of the input."""
HOSTILE_FILES: list[dict[str, Any]] = [
    {"data": ["%%%"]}, {"data": ["é"]}, {"data": [3]}, {"data": "AAEC"}, {"data": ["AAEC", "AAEC"]}, {"shape": [1, 1]}
]  # fmt: skip
HOSTILE_DOCUMENTS: list[dict[str, Any]] = [
    {"parameters": "ids"}, {"parameters": {"ids": []}}, {"parameters": {"ids": "a"}}, {"parameters": {"ids": [1]}},
    {"id": 3}, {"outputs": "label"}, {"outputs": ["label"]}, {"outputs": [{"name": "logits"}]}, {"outputs": [{}]},
    {"outputs": [{"name": "label"}, {"name": "label"}]},
    {"outputs": [{"name": "label", "parameters": {"classification": 3}}]},
    {"outputs": [{"name": "label", "parameters": 3}]},
]  # fmt: skip
ONE_PIXEL = b'{"inputs": [{"name": "image", "datatype": "%b", "shape": [1, 1, 1, 1], "data": %b}]}'
HOSTILE_REQUESTS: dict[str, Any] = {
    **{f"{field} {place}": infer(**{field: value}) for field, values in HOSTILE_FIELDS.items()
       for place, value in enumerate(values)},
    **{f"file {place}": {"inputs": [{**FILES, **changes}]} for place, changes in enumerate(HOSTILE_FILES)},
    **{f"FP32 {text.decode()}": ONE_PIXEL % (b"FP32", b"[%b]" % text)
       for text in (b"NaN", b"1e999", b"1e300", b"1.5", b"-0.5")},
    "data are deep": ONE_PIXEL % (b"UINT8", b"[" * 200 + b"]" * 200),
    "no images": infer(shape=[0, 2, 2, 1], data=[]),
    "no pixels": infer(shape=[1, 0, 2, 1], data=[]),
    "too many pixels": infer(shape=[1, MAX_PIXELS + 1, 1, 1], data=[0] * (MAX_PIXELS + 1)),
    "no data": {"inputs": [{key: UINT8[key] for key in ("name", "datatype", "shape")}]},
    "no shape": {"inputs": [{key: UINT8[key] for key in ("name", "datatype", "data")}]},
    "shared memory": {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 2, 2, 1],
                                  "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]},
    "a number beyond all limits": b'{"inputs": [{"name": "image", "shape": [1' + b"0" * 10_000 + b"]}]}",
    "empty": b"",
    "not json": b"\xff\xd8\xff",
    "not utf-8": b'{"inputs": "\xff"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"inputs":' * 100_000,
    "a list": [],
    "no inputs": {},
    **{f"inputs {place}": {"inputs": value} for place, value in enumerate(["image", [], [None], [UINT8, UINT8]])},
    **{f"document {place}": infer() | changes for place, changes in enumerate(HOSTILE_DOCUMENTS)},
}  # fmt: skip


@pytest.mark.parametrize("document", HOSTILE_REQUESTS.values(), ids=HOSTILE_REQUESTS)
def test_invalid_request_is_a_client_error(document: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse(document)
    assert caught.value.status in (400, 413, 422)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "content", "size"),
    [
        *((UINT8, content, None) for content in (b"\0\1\2", b"\0\1\2\3\4")),
        *((UINT8, b"\0\1\2\3", size) for size in (3, 2**40, -4, "4", True)),
        (FLOATS, b"\0" * 15, None),
        *((FLOATS, np.array([0, 1, number, 0], "<f4").tobytes(), None) for number in (np.nan, np.inf)),
        *((FILES, content, None) for content in (b"\4\0\0\0abc", b"\xff\xff\xff\xffabc", b"\3\0", b"\3\0\0\0abc\0")),
        (FILES, serialize([b"a", b"b"]), None),
    ],
)
def test_binary_data_of_the_wrong_size_are_an_error(tensor: dict[str, Any], content: bytes, size: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse_binary(tensor, content, size)
    assert caught.value.status in (400, 422)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from([UINT8, FILES]),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(["inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data", "ids"]),
                each,
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_parsed_or_refused(document: object) -> None:
    try:
        request = parse(document)
    except RequestError:
        return
    assert len(request.images) == len(request.ids) > 0


def test_outputs_are_json_by_default_or_bytes() -> None:
    first = {"id": "a", "deployment": 3, "label": 2, "class_name": "kø", "confidence": 0.75, "low": 0.5, "high": 0.875}
    first |= {"accept": True, "looks": 13, "rejection": None, "familiarity": 0.25}
    second = first | {"id": "b", "class_name": None, "low": None, "high": None, "accept": False, "looks": 1}
    second |= {"rejection": "unsure", "familiarity": None}
    decisions: Any = [SimpleNamespace(**values) for values in (first, second)]
    headers, body = format_inference_response(
        decisions, InferenceRequest([], [], "request 1", dict.fromkeys(OUTPUT_TENSORS, False))
    )
    assert headers == {"Content-Type": "application/json"}
    document = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (document["model_name"], document["model_version"], document["id"]) == ("secondlook", "3", "request 1")
    found = {each["name"]: (each["datatype"], each["shape"], each["data"]) for each in document["outputs"]}
    assert found == {
        "label": ("INT64", [2], [2, 2]),
        "class": ("BYTES", [2], ["kø", ""]),
        "confidence": ("FP64", [2], [0.75, 0.75]),
        "accept": ("BOOL", [2], [True, False]),
        "rejection": ("BYTES", [2], ["", "unsure"]),
        "familiarity": ("FP64", [2], [0.25, None]),
        "low": ("FP64", [2], [0.5, None]),
        "high": ("FP64", [2], [0.875, None]),
        "looks": ("INT64", [2], [13, 1]),
        "id": ("BYTES", [2], ["a", "b"]),
    }
    outputs = {"label": True, "looks": False, "class": True, "low": True, "accept": True}
    headers, body = format_inference_response(decisions, InferenceRequest([], [], None, outputs))
    end = int(headers["Inference-Header-Content-Length"])
    document, rest = json.loads(body[:end]), body[end:]
    assert "id" not in document
    sizes = [each.get("parameters", {}).get("binary_data_size") for each in document["outputs"]]
    assert sizes == [16, None, 11, 16, 2]
    assert document["outputs"][1]["data"] == [13, 1]
    assert rest[:27] == struct.pack("<2q", 2, 2) + b"\3\0\0\0k\xc3\xb8" + b"\0\0\0\0"
    low, missing = struct.unpack_from("<2d", rest, 27)
    assert (low, math.isnan(missing), rest[43:]) == (0.5, True, b"\1\0")
    assert parse(infer()).outputs == dict.fromkeys(OUTPUT_TENSORS, False)
    as_bytes = parse({**infer(), "parameters": {"binary_data_output": True}})
    assert as_bytes.outputs == dict.fromkeys(OUTPUT_TENSORS, True)
    requested = [{"name": "looks"}, {"name": "label", "parameters": {"binary_data": True}}]
    assert parse({"inputs": [UINT8], "outputs": requested}).outputs == {"looks": False, "label": True}


def test_invalid_lengths_are_errors_without_large_allocations() -> None:
    """Millions of empty ones fit into a body."""
    content = bytes(8 * 2**20)
    tracemalloc.start()
    with pytest.raises(RequestError) as caught:
        parse_binary(FILES, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.status == 400
    assert peak < 2.5 * len(content), "the body and a copy of it, and not a list of millions"
    for length in ("-1", "1e3", "", "9" * 5000, "١", "100000", "0x10", " 3"):
        with pytest.raises(RequestError, match="Inference-Header-Content-Length"):
            parse(infer(), b"\0", length)
    for told, document, content in (("binary_data_size", infer(), b"\0"), ("binary data", b"[" + b"0," * 2**20, b"")):
        with pytest.raises(RequestError, match=told):
            parse(document, content)


OUTPUTS = ("label", "class", "confidence", "accept", "rejection", "familiarity", "low", "high", "looks", "id")


def connect(url: str) -> Any:
    return triton.InferenceServerClient(url.removeprefix("http://"), connection_timeout=240, network_timeout=240)


def make_input(values: Array, *, binary: bool = True) -> Any:
    datatype = utils.np_to_triton_dtype(values.dtype)
    return triton.InferInput("image", list(values.shape), datatype).set_data_from_numpy(values, binary_data=binary)


def make_files(files: tuple[bytes, ...], *, binary: bool = True) -> Any:
    """As JSON, files are base64."""
    sent = files if binary else [base64.b64encode(file) for file in files]
    return make_input(np.array(sent, dtype=object), binary=binary)


def find_status(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(utils.InferenceServerException) as caught:
        call(*arguments, **named)
    return str(caught.value.status())


def read_outputs(result: Any) -> dict[str, list[Any]]:
    return {name: result.as_numpy(name).tolist() for name in OUTPUTS}


def test_health_and_metadata_of_the_model(running: Server, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(running[0])
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("secondlook")
    assert client.is_model_ready("secondlook", "1")
    assert not client.is_model_ready("another")
    extensions = ["binary_tensor_data", "model_configuration"]
    server = {"name": "secondlook", "version": sl.__version__, "extensions": extensions}
    assert client.get_server_metadata() == server
    for version in ("", "1"):
        metadata = client.get_model_metadata("secondlook", version)
        assert (metadata["name"], metadata["versions"]) == ("secondlook", ["1"])
        assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert [each["name"] for each in metadata["outputs"]] == list(OUTPUTS)
    image = make_files(digits.files[:1])
    for name, version in (("another", ""), ("secondlook", "2"), ("another", "1")):
        assert find_status(client.infer, name, [image], model_version=version) == "404"
        assert find_status(client.get_model_metadata, name, version) == "404"
    assert find_status(client.infer, "secondlook", [image], request_compression_algorithm="gzip") == "415"
    monkeypatch.setattr(running[1].watcher, "find_problem", lambda: "the disk is full")
    assert client.is_server_live()
    assert not client.is_server_ready()
    assert not client.is_model_ready("secondlook")


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
def test_outputs_equal_the_stored_decisions(
    running: Server, digits: Digits, binary_input: bool, binary_output: bool | None
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
    shown = {name: result.get_response()[name] for name in ("id", "model_name", "model_version")}
    assert shown == {"id": "request 7", "model_name": "secondlook", "model_version": "1"}
    found = read_outputs(result)
    expected = [send(f"{url}/v1/decisions/{id_.replace(' ', '%20')}").json for id_ in ids]
    for name in ("label", "confidence", "accept", "looks"):
        assert found[name] == [each[name] for each in expected]
    assert np.isnan(found["familiarity"]).all()
    for name in ("class", "id", "rejection"):
        texts = [each.decode() if isinstance(each, bytes) else each for each in found[name]]
        assert texts == [each[name] or "" for each in expected]
    assert [list(pair) for pair in zip(found["low"], found["high"], strict=True)] == [
        each["interval"] for each in expected
    ]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_decisions_on_pixels_equal_those_on_files(running: Server, digits: Digits, binary: bool, dtype: type) -> None:
    url, _ = running
    pixels = np.stack([read_image(file) for file in digits.files[:4]])
    pixels = pixels if dtype is np.uint8 else (pixels / 255).astype(np.float32)
    found = read_outputs(connect(url).infer("secondlook", [make_input(pixels, binary=binary)]))
    expected = [send(f"{url}/v1/decide", file).json for file in digits.files[:4]]
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


def test_requests_with_ids_or_a_key_are_safe_to_repeat(running: Server, digits: Digits) -> None:
    url, service = running
    client = connect(url)
    files, ids = [make_files(digits.files[:3])], {"ids": ["a", "b", "c"]}
    first, second = (read_outputs(client.infer("secondlook", files, parameters=ids)) for _ in range(2))
    np.testing.assert_equal(first, second)  # NaN is NaN
    assert set(service.decisions.find(["a", "b", "c"])) == {"a", "b", "c"}
    other = [make_files(digits.files[3:4])]
    assert find_status(client.infer, "secondlook", other, parameters={"ids": ["a"]}) == "409"
    for _ in range(2):
        assert post(url, make_document(digits.files[:1]), Idempotency_Key="one key").status == 200
    assert set(service.decisions.find(["one key"])) == {"one key"}
    assert post(url, make_document(digits.files[1:2]), Idempotency_Key="one key").status == 409
    assert post(url, make_document(digits.files[:2]), Idempotency_Key="one key").status == 400
    named = make_document(digits.files[:2], ids=["first of two", "second of two"])
    assert post(url, named, Idempotency_Key="one key").status == 200


def make_document(files: Sequence[bytes], **parameters: object) -> bytes:
    data = [base64.b64encode(file).decode() for file in files]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def post(url: str, document: object, **headers: str) -> Reply:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return send(f"{url}/v2/models/secondlook/infer", body, Content_Type="application/json", **headers)


@pytest.mark.parametrize(
    ("document", "status"),
    [
        (b"", 400),
        (infer(shape=[1, 2**31, 2**31, 3], data=[]), 413),
        ({"inputs": [FILES]}, 422),
        ({"inputs": [{**FILES, "data": [""]}]}, 400),
        ({"inputs": [{**FILES, "shape": [2], "data": ["AAAA"] * 2}], "parameters": {"ids": ["a", "a"]}}, 400),
        ({"inputs": [FILES], "parameters": {"ids": ["\ud800"]}}, 400),
    ],
)
def test_bad_requests_are_errors_of_the_protocol(
    running: Server, digits: Digits, document: object, status: int
) -> None:
    url, _ = running
    reply = post(url, document)
    assert reply.status == status
    assert isinstance(reply.json["error"], str)
    assert connect(url).infer("secondlook", [make_files(digits.files[:1])]).as_numpy("label").shape == (1,)


def test_busy_service_sends_a_retry_time_and_tokens_are_required(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", max_waiting=1) as (url, service):
        service.worker.waiting = 1
        reply = post(url, make_document(digits.files[:1]))
        assert reply.status == 429
        assert isinstance(reply.json["error"], str)
        assert int(reply.headers["retry-after"]) >= 1
        service.worker.waiting = 0
        assert post(url, make_document(digits.files[:2])).status == 413, "for ever"
        tokens = {role: service.tokens.add(role, role) for role in ("client", "reviewer")}
        headers = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}
        client, image = connect(url), make_files(digits.files[:1])
        assert client.is_server_ready()
        for given, status in ((None, "401"), (headers["reviewer"], "403")):
            assert find_status(client.infer, "secondlook", [image], headers=given) == status
        assert find_status(client.get_model_metadata, "secondlook") == "401"
        assert client.get_model_metadata("secondlook", headers=headers["client"])["name"] == "secondlook"
        assert client.infer("secondlook", [image], headers=headers["client"]).as_numpy("label").shape == (1,)
