"""Requests and responses of the Open Inference Protocol, from bytes to images and from decisions to bytes."""

import base64
import json
import math
import struct
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from secondlook.arrays import Array
from secondlook.serving.inference_routes import (
    OUTPUT_TENSORS,
    InferenceRequest,
    format_inference_response,
    parse_inference_request,
)
from secondlook.serving.responses import RequestError

MAX_IMAGES, MAX_PIXELS = 8, 1000
UINT8 = {"name": "image", "datatype": "UINT8", "shape": [1, 2, 2, 1], "data": [0, 1, 2, 255]}
FILES = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["AAEC"]}


def parse(document: object, content: bytes = b"", header_length: object = None) -> InferenceRequest:
    head = document if isinstance(document, bytes) else json.dumps(document).encode()
    length = len(head) if content and header_length is None else header_length
    return parse_inference_request(
        head + content, None if length is None else str(length), max_images=MAX_IMAGES, max_pixels=MAX_PIXELS
    )


def parse_binary(tensor: dict[str, Any], content: bytes, size: object = None) -> InferenceRequest:
    named = {**tensor, "parameters": {"binary_data_size": len(content) if size is None else size}}
    del named["data"]
    return parse({"inputs": [named]}, content)


def serialize(files: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(file)) + file for file in files)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=MAX_IMAGES))
def test_files_come_back_from_json_and_from_bytes(files: list[bytes]) -> None:
    tensor = {**FILES, "shape": [len(files)], "data": [base64.b64encode(file).decode() for file in files]}
    assert parse({"inputs": [tensor]}).images == files
    assert parse_binary(tensor, serialize(files)).images == files


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]))


@given(
    st.one_of(
        arrays.arrays(np.uint8, SHAPES),
        arrays.arrays(np.float32, SHAPES, elements=st.floats(0, 1, width=32)),
    )
)
def test_pixels_come_back_from_lists_and_from_bytes(pixels: Array) -> None:
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


HOSTILE_REQUESTS: dict[str, Any] = {
    "empty": b"",
    "not json": b"\xff\xd8\xff",
    "not utf-8": b'{"inputs": "\xff"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"inputs":' * 100_000,
    "a list": [],
    "no inputs": {},
    "inputs are a text": {"inputs": "image"},
    "no input": {"inputs": []},
    "an input is null": {"inputs": [None]},
    "unknown input": {"inputs": [{**UINT8, "name": "pixels"}]},
    "name is a list": {"inputs": [{**UINT8, "name": ["image"]}]},
    "input twice": {"inputs": [UINT8, UINT8]},
    "no data": {"inputs": [{key: UINT8[key] for key in ("name", "datatype", "shape")}]},
    "no shape": {"inputs": [{key: UINT8[key] for key in ("name", "datatype", "data")}]},
    "shape is a number": {"inputs": [{**UINT8, "shape": 4}]},
    "shape of texts": {"inputs": [{**UINT8, "shape": ["1", "2", "2", "1"]}]},
    "shape of floats": {"inputs": [{**UINT8, "shape": [1.0, 2, 2, 1]}]},
    "shape of booleans": {"inputs": [{**UINT8, "shape": [True, 2, 2, True]}]},
    "negative sizes": {"inputs": [{**UINT8, "shape": [1, -2, -2, 1]}]},
    "unknown sizes": {"inputs": [{**UINT8, "shape": [-1, 2, 2, 1]}]},
    "no images": {"inputs": [{**UINT8, "shape": [0, 2, 2, 1], "data": []}]},
    "no pixels": {"inputs": [{**UINT8, "shape": [1, 0, 2, 1], "data": []}]},
    "too few axes": {"inputs": [{**UINT8, "shape": [2, 2, 1]}]},
    "no axes": {"inputs": [{**UINT8, "shape": []}]},
    "channels first": {"inputs": [{**UINT8, "shape": [1, 1, 2, 2]}]},
    "shape needs more": {"inputs": [{**UINT8, "shape": [1, 2, 3, 1]}]},
    "shape needs less": {"inputs": [{**UINT8, "shape": [1, 1, 2, 1]}]},
    "too many images": {"inputs": [{**UINT8, "shape": [MAX_IMAGES + 1, 1, 1, 1]}]},
    "too many pixels": {"inputs": [{**UINT8, "shape": [1, MAX_PIXELS + 1, 1, 1], "data": [0] * (MAX_PIXELS + 1)}]},
    "huge shape": {"inputs": [{**UINT8, "shape": [1, 2**62, 2**62, 3]}]},
    "huge number of images": {"inputs": [{**UINT8, "shape": [10**4000, 2, 2, 1]}]},
    "a number beyond all limits": b'{"inputs": [{"name": "image", "shape": [1' + b"0" * 10_000 + b"]}]}",
    "unknown datatype": {"inputs": [{**UINT8, "datatype": "UINT7"}]},
    "unsupported datatype": {"inputs": [{**UINT8, "datatype": "INT64"}]},
    "datatype is a list": {"inputs": [{**UINT8, "datatype": ["UINT8"]}]},
    "no datatype": {"inputs": [{**UINT8, "datatype": None}]},
    "pixel above 255": {"inputs": [{**UINT8, "data": [0, 1, 2, 256]}]},
    "pixel below 0": {"inputs": [{**UINT8, "data": [0, 1, 2, -1]}]},
    "pixel of any size": {"inputs": [{**UINT8, "data": [0, 1, 2, 10**30]}]},
    "fractions": {"inputs": [{**UINT8, "data": [0, 1, 2, 0.5]}]},
    "texts": {"inputs": [{**UINT8, "data": ["0", "1", "2", "3"]}]},
    "nulls": {"inputs": [{**UINT8, "data": [None] * 4}]},
    "ragged": {"inputs": [{**UINT8, "data": [[0, 1], [2]]}]},
    "data are an object": {"inputs": [{**UINT8, "data": {"0": 1}}]},
    "data are deep": b'{"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": %b}]}'
    % (b"[" * 200 + b"]" * 200),
    "NaN": b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 1, 1], "data": [NaN]}]}',
    "Infinity": b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 1, 1], "data": [1e999]}]}',
    "beyond float32": {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 1, 1], "data": [1e300]}]},
    "above 1": {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 1, 1], "data": [1.5]}]},
    "normalized": {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 1, 1], "data": [-0.5]}]},
    "no base64": {"inputs": [{**FILES, "data": ["%%%"]}]},
    "not ASCII": {"inputs": [{**FILES, "data": ["é"]}]},
    "file is a number": {"inputs": [{**FILES, "data": [3]}]},
    "files are a text": {"inputs": [{**FILES, "data": "AAEC"}]},
    "more files than the shape": {"inputs": [{**FILES, "data": ["AAEC", "AAEC"]}]},
    "files of two axes": {"inputs": [{**FILES, "shape": [1, 1]}]},
    "binary size without bytes": {"inputs": [{**UINT8, "parameters": {"binary_data_size": 4}}]},
    "parameters of the input": {"inputs": [{**UINT8, "parameters": [1]}]},
    "shared memory": {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 2, 2, 1],
                                  "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]},
    "parameters": {"inputs": [UINT8], "parameters": "ids"},
    "too few ids": {"inputs": [UINT8], "parameters": {"ids": []}},
    "ids are a text": {"inputs": [UINT8], "parameters": {"ids": "a"}},
    "ids are numbers": {"inputs": [UINT8], "parameters": {"ids": [1]}},
    "request id": {"inputs": [UINT8], "id": 3},
    "outputs are a text": {"inputs": [UINT8], "outputs": "label"},
    "outputs are texts": {"inputs": [UINT8], "outputs": ["label"]},
    "unknown output": {"inputs": [UINT8], "outputs": [{"name": "logits"}]},
    "output without a name": {"inputs": [UINT8], "outputs": [{}]},
    "output twice": {"inputs": [UINT8], "outputs": [{"name": "label"}, {"name": "label"}]},
    "output as a classification": {
        "inputs": [UINT8], "outputs": [{"name": "label", "parameters": {"classification": 3}}]
    },
    "parameters of an output": {"inputs": [UINT8], "outputs": [{"name": "label", "parameters": 3}]},
}  # fmt: skip


@pytest.mark.parametrize("document", HOSTILE_REQUESTS.values(), ids=HOSTILE_REQUESTS)
def test_a_request_that_cannot_be_served_is_an_error_of_the_client(document: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse(document)
    assert caught.value.status in (400, 413, 422)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "content", "size"),
    [
        (UINT8, b"\0\1\2", None),
        (UINT8, b"\0\1\2\3\4", None),
        (UINT8, b"\0\1\2\3", 3),
        (UINT8, b"\0\1\2\3", 2**40),
        (UINT8, b"\0\1\2\3", -4),
        (UINT8, b"\0\1\2\3", "4"),
        (UINT8, b"\0\1\2\3", True),
        ({**UINT8, "datatype": "FP32"}, b"\0" * 15, None),
        ({**UINT8, "datatype": "FP32"}, np.array([0, 1, np.nan, 0], "<f4").tobytes(), None),
        ({**UINT8, "datatype": "FP32"}, np.array([0, 1, np.inf, 0], "<f4").tobytes(), None),
        (FILES, b"\4\0\0\0abc", None),
        (FILES, b"\xff\xff\xff\xffabc", None),
        (FILES, b"\3\0", None),
        (FILES, b"\3\0\0\0abc\0", None),
        (FILES, serialize([b"a", b"b"]), None),
    ],
)
def test_binary_data_that_do_not_fit_are_an_error(tensor: dict[str, Any], content: bytes, size: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse_binary(tensor, content, size)
    assert caught.value.status in (400, 422)


@pytest.mark.parametrize("length", ["-1", "1e3", "", "9" * 5000, "١", "100000", "0x10", " 3"])
def test_header_length_must_be_a_length_within_the_body(length: str) -> None:
    with pytest.raises(RequestError, match="Inference-Header-Content-Length"):
        parse({"inputs": [UINT8]}, b"\0", length)


def test_bytes_that_belong_to_no_tensor_are_an_error() -> None:
    with pytest.raises(RequestError, match="binary_data_size"):
        parse({"inputs": [UINT8]}, b"\0")


def test_json_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RequestError, match="binary data"):
        parse(b"[" + b"0," * 2**20)


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


def test_all_outputs_are_json_by_default_and_requested_ones_are_honored() -> None:
    assert parse({"inputs": [UINT8]}).outputs == dict.fromkeys(OUTPUT_TENSORS, False)
    assert parse({"inputs": [UINT8], "parameters": {"binary_data_output": True}}).outputs == dict.fromkeys(
        OUTPUT_TENSORS, True
    )
    outputs = [{"name": "looks"}, {"name": "label", "parameters": {"binary_data": True}}]
    assert parse({"inputs": [UINT8], "outputs": outputs}).outputs == {"looks": False, "label": True}


def make_decision(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "number": 1, "id": "a", "deployment": 3, "digest": "d", "name": None, "label": 2, "labels": None,
        "class_name": "kø", "confidence": 0.75, "low": 0.5, "high": 0.875, "accept": True, "looks": 13,
        "first_look": 0.5, "disagreement": 0.1, "audit": False, "audit_probability": None, "decided_at": 0.0,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def test_outputs_as_json() -> None:
    decisions = [make_decision(), make_decision(id="b", class_name=None, low=None, high=None, accept=False, looks=1)]
    request = InferenceRequest([], [], "request 1", dict.fromkeys(OUTPUT_TENSORS, False))
    headers, body = format_inference_response(decisions, request)
    assert headers == {"Content-Type": "application/json"}
    document = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (document["model_name"], document["model_version"], document["id"]) == ("secondlook", "3", "request 1")
    found = {each["name"]: (each["datatype"], each["shape"], each["data"]) for each in document["outputs"]}
    assert found == {
        "label": ("INT64", [2], [2, 2]),
        "class": ("BYTES", [2], ["kø", ""]),
        "confidence": ("FP64", [2], [0.75, 0.75]),
        "accept": ("BOOL", [2], [True, False]),
        "low": ("FP64", [2], [0.5, None]),
        "high": ("FP64", [2], [0.875, None]),
        "looks": ("INT64", [2], [13, 1]),
        "id": ("BYTES", [2], ["a", "b"]),
    }


def test_outputs_as_bytes() -> None:
    decisions = [make_decision(), make_decision(low=None)]
    request = InferenceRequest(
        [], [], None, {"label": True, "looks": False, "class": True, "low": True, "accept": True}
    )
    headers, body = format_inference_response(decisions, request)
    end = int(headers["Inference-Header-Content-Length"])
    document, rest = json.loads(body[:end]), body[end:]
    assert "id" not in document
    sizes = [each.get("parameters", {}).get("binary_data_size") for each in document["outputs"]]
    assert sizes == [16, None, 14, 16, 2]
    assert document["outputs"][1]["data"] == [13, 13]
    assert struct.unpack_from("<2q", rest) == (2, 2)
    assert rest[16:30] == b"\3\0\0\0k\xc3\xb8" * 2
    low, missing = struct.unpack_from("<2d", rest, 30)
    assert (low, math.isnan(missing)) == (0.5, True)
    assert rest[46:] == b"\1\1"


def test_elements_beyond_the_shape_are_not_counted() -> None:
    """Millions of empty ones fit into a body."""
    content = bytes(8 * 2**20)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(content)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + content
    tracemalloc.start()
    with pytest.raises(RequestError) as caught:
        parse_inference_request(body, str(len(head)), max_images=4, max_pixels=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.status == 400
    assert peak < 1.5 * len(content), "a copy of the body, and not a list of millions"
