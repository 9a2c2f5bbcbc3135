"""The Open Inference Protocol (KServe V2): inference requests, and responses that are checked before they are used.

Any exception of the parsing functions means that the response is invalid; the client turns it into a `ClassifierError`.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import shorten_reason
from secondlook.classifiers.http_client import HttpResponse
from secondlook.classifiers.preprocessing import InputType

INPUT_TYPES: dict[str, InputType] = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}
DATATYPES: dict[str, str] = {dtype: datatype for datatype, dtype in INPUT_TYPES.items()}
OUTPUT_TYPES = {
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
}
"""NumPy types of the numbers that a server may send; NumPy has no bfloat16, which is the upper half of a float32."""

MAX_JSON_VALUES = 2**20
"""Enough for 32 images x 21,843 classes; a value takes up to 25 times the memory of its text."""

LONGEST_NAME = 256
HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header that holds the length of the JSON in front of binary tensors."""


def format_request(inputs: Array, input_name: str, output_name: str, is_binary: bool) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an inference request, with the inputs as bytes or as JSON."""
    tensor: dict[str, Any] = {
        "name": input_name,
        "shape": list(inputs.shape),
        "datatype": DATATYPES[inputs.dtype.name],
    }
    content = b""
    if is_binary:
        content = np.ascontiguousarray(inputs, inputs.dtype.newbyteorder("<")).tobytes()
        tensor["parameters"] = {"binary_data_size": len(content)}
    else:
        tensor["data"] = inputs.ravel().tolist()
    outputs = [{"name": output_name, "parameters": {"binary_data": is_binary}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    if not is_binary:
        return {"Content-Type": "application/json"}, head
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}, head + content


def parse_output(response: HttpResponse, output_name: str, n_images: int) -> Array:
    """Return the named output of an inference response, an array [n_images, ...]."""
    _check_encoding(response)
    body, length = response.body, response.headers.get(HEADER_LENGTH)
    end = len(body) if length is None else int(length)
    if not 0 <= end <= len(body):
        raise ValueError(f"{HEADER_LENGTH} is {end}, but the body has {len(body)} bytes")
    for output in _load_json(body[:end])["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        content = None if size is None else body[end : end + _check_count(size)]
        if output["name"] == output_name:
            if content is not None and len(content) != size:
                raise ValueError(f"output {output_name!r} has binary_data_size {size}, but {len(content)} bytes follow")
            return _parse_tensor(output, content, n_images)
        end += size or 0
    raise ValueError(f"it lacks the output {output_name!r}")


def _parse_tensor(tensor: Mapping[str, Any], content: bytes | None, n_images: int) -> Array:
    """Return the values of a tensor, which are in its description or, if not None, in `content`."""
    datatype, shape = tensor["datatype"], [_check_count(size) for size in tensor["shape"]]
    if datatype not in OUTPUT_TYPES or (datatype == "BF16" and content is None):
        raise ValueError(f"its output has datatype {datatype!r}; expected one of {', '.join(OUTPUT_TYPES)}")
    if not shape or shape[0] != n_images:
        raise ValueError(f"its output has shape {shape} for {n_images} images")
    if content is None:
        values = np.asarray(tensor["data"])
        if values.dtype.kind not in "fiu":
            raise ValueError("its data are not numbers")
        with np.errstate(over="ignore"):  # Infinity is rejected with all outputs.
            values = values.astype(OUTPUT_TYPES[datatype], casting="same_kind")
    else:
        values = np.frombuffer(content, OUTPUT_TYPES[datatype])
        if datatype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(shape)


def _check_count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{shorten_reason(ValueError(repr(value)))} is not a size")
    return value


def _check_encoding(response: HttpResponse) -> None:
    """Raise for a compressed response: none was requested, and a small one can decompress to any size."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"it is compressed ({encoding})")


def parse_model(response: HttpResponse) -> dict[str, Any]:
    """Return the inputs, outputs and versions of a model."""
    document = _parse_object(response)
    tensors = {key: [_parse_description(each) for each in document.get(key) or []] for key in ("inputs", "outputs")}
    return {**tensors, "versions": [_check_name(each) for each in document.get("versions") or []]}


def _parse_description(tensor: Any) -> dict[str, Any]:
    shape = [] if tensor.get("shape") is None else list(tensor["shape"])
    if not all(type(size) is int for size in shape):
        raise ValueError("the shape of a tensor does not consist of integers")
    return {"name": _check_name(tensor["name"]), "datatype": _check_name(tensor["datatype"]), "shape": shape}


def _check_name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise ValueError(f"a name, datatype or version is not a string of at most {LONGEST_NAME} characters")
    return value


def parse_binary_support(response: HttpResponse) -> bool:
    """Return whether a server lists the binary tensor extension."""
    return "binary_tensor_data" in list(_parse_object(response).get("extensions") or [])


def _load_json(content: bytes) -> Any:
    """Parse JSON of a limited number of values; each but the first of a list or an object follows a comma."""
    if content.count(b",") >= MAX_JSON_VALUES:
        raise ValueError(f"it has more than {MAX_JSON_VALUES:,} values as JSON; lower rows_per_request=")
    return json.loads(content)


def _parse_object(response: HttpResponse) -> dict[str, Any]:
    _check_encoding(response)
    document = _load_json(response.body)
    if not isinstance(document, dict):
        raise ValueError(f"it is a JSON {type(document).__name__}, not an object")
    return document


def describe_status(response: HttpResponse) -> str:
    """Return the server's message for a failed request, or what else it sent."""
    if 300 <= response.status < 400:
        target = response.headers.get("Location", "")[:LONGEST_NAME]
        return f"redirects to {target!r}, which is not followed"
    try:
        reason = _load_json(response.body)["error"]
    except (ValueError, TypeError, LookupError, RecursionError):
        reason = None
    return " ".join(reason.split()) if isinstance(reason, str) else describe_body(response)


def describe_body(response: HttpResponse) -> str:
    """Return status, content type, size and first bytes of a response."""
    kind = response.headers.get("Content-Type", "no content type")[:LONGEST_NAME]
    return f"status {response.status}, {kind}, {len(response.body)} bytes, starting with {response.body[:60]!r}"
