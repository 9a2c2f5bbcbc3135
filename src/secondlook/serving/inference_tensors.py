"""Requests to the service and its responses in the Open Inference Protocol (KServe V2), as JSON or binary tensors.

Whatever a request contains, the parsing functions return an `InferenceRequest` or raise a `RequestError`.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from secondlook.arrays import Array, describe_image_fault
from secondlook.classifiers import HEADER_LENGTH
from secondlook.serving.decision_store import StoredDecision
from secondlook.serving.faults import RequestError

MAX_JSON_VALUES = 2**20
"""A value takes up to 25 times the memory of its text; more can be sent as bytes."""

INPUT_NAME = "image"
PIXEL_TYPES = {"UINT8": "<u1", "FP32": "<f4"}
LENGTH_BYTES = 4
"""Each element of a binary BYTES tensor follows its length, a little-endian uint32."""
BASE64_REPAIR = "in JSON, expected image files as base64"
NUMBER_TYPES = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?"}


@dataclass(frozen=True)
class OutputTensor:
    """One output of the model: a value per image."""

    datatype: str
    read: Callable[[StoredDecision], str | float | bool | None]
    """Returns the value of one decision; None for a number that is unknown."""


OUTPUT_TENSORS: Mapping[str, OutputTensor] = {
    "label": OutputTensor("INT64", lambda decision: decision.label),
    "class": OutputTensor("BYTES", lambda decision: decision.class_name or ""),
    "confidence": OutputTensor("FP64", lambda decision: decision.confidence),
    "accept": OutputTensor("BOOL", lambda decision: decision.accept),
    "low": OutputTensor("FP64", lambda decision: decision.low),
    "high": OutputTensor("FP64", lambda decision: decision.high),
    "looks": OutputTensor("INT64", lambda decision: decision.looks),
    "id": OutputTensor("BYTES", lambda decision: decision.id),
}


@dataclass(frozen=True, eq=False)
class InferenceRequest:
    """A request that was checked."""

    images: Sequence[bytes | Array]
    """Encoded files, or pixels, uint8 or float32 in [0, 1], [H, W, 1 or 3]."""
    ids: Sequence[str | None]
    """One per image; None for an id that the service makes."""
    id: str | None
    """Name of the request, which is repeated in the response."""
    outputs: Mapping[str, bool]
    """The requested outputs, and whether each is sent as bytes."""


def parse_inference_request(
    body: bytes, header_length: str | None = None, *, max_images: int, max_pixels: int
) -> InferenceRequest:
    """Parse the body of an inference request; `header_length` is the length of its JSON if tensors follow as bytes."""
    end = _parse_length(header_length, len(body))
    document = _load_object(body[:end])
    tensor = _find_input(document)
    content = _take_content(tensor, body[end:])
    shape = _parse_shape(tensor, max_images)
    if tensor.get("datatype") == "BYTES":
        images: Sequence[bytes | Array] = _parse_files(tensor, content, shape)
    else:
        images = list(_parse_pixels(tensor, content, shape, max_pixels))
    parameters = _get_object(document, "parameters", "the request")
    return InferenceRequest(
        images, _parse_ids(parameters, len(images)), _parse_name(document), _parse_outputs(document, parameters)
    )


def format_inference_response(
    decisions: Sequence[StoredDecision], request: InferenceRequest, *, model: str, version: str
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a response with the requested outputs."""
    tensors, contents = [], []
    for name, is_binary in request.outputs.items():
        output = OUTPUT_TENSORS[name]
        values = [output.read(decision) for decision in decisions]
        tensor: dict[str, Any] = {"name": name, "datatype": output.datatype, "shape": [len(values)]}
        if is_binary:
            contents.append(_encode_values(values, output.datatype))
            tensor["parameters"] = {"binary_data_size": len(contents[-1])}
        else:
            tensor["data"] = values
        tensors.append(tensor)
    named = {} if request.id is None else {"id": request.id}
    head = json.dumps({"model_name": model, "model_version": version, **named, "outputs": tensors}).encode()
    if not contents:
        return {"Content-Type": "application/json"}, head
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}, b"".join([head, *contents])


def _encode_values(values: Sequence[Any], datatype: str) -> bytes:
    """Return the values of an output as bytes; a number that is unknown is NaN."""
    if datatype == "BYTES":
        texts = [text.encode() for text in values]
        return b"".join(len(text).to_bytes(LENGTH_BYTES, "little") + text for text in texts)
    return np.array(values, NUMBER_TYPES[datatype]).tobytes()


def _parse_length(text: str | None, n_bytes: int) -> int:
    """Return the length of the JSON at the start of a body."""
    if text is None:
        return n_bytes
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(n_bytes)) and int(text) <= n_bytes):
        raise _fail(f"{HEADER_LENGTH} is {_show(text)}; expected the length of the JSON in a body of {n_bytes} bytes")
    return int(text)


def _load_object(content: bytes) -> dict[str, Any]:
    """Parse JSON of a limited number of values; each but the first of a list or an object follows a comma."""
    if content.count(b",") >= MAX_JSON_VALUES:
        raise _fail(f"the JSON has more than {MAX_JSON_VALUES:,} values; send tensors as binary data")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _fail(f"the body is not JSON ({_show(str(error), 80)}); expected an object with 'inputs'") from None
    if not isinstance(document, dict):
        raise _fail(f"the body is a JSON {type(document).__name__}; expected an object with 'inputs'")
    return document


def _find_input(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only input of a request."""
    tensors = document.get("inputs")
    names = (
        [each.get("name") if isinstance(each, dict) else None for each in tensors or ()] if _is_list(tensors) else []
    )
    if names != [INPUT_NAME]:
        raise _fail(f"the inputs are {_show(names)}; expected one input, {INPUT_NAME!r}")
    tensor: dict[str, Any] = document["inputs"][0]
    return tensor


def _take_content(tensor: Mapping[str, Any], rest: bytes) -> bytes | None:
    """Return the bytes of the input that follow the JSON; None if its values are in the JSON."""
    size = _get_object(tensor, "parameters", f"input {INPUT_NAME!r}").get("binary_data_size")
    if size is None and rest:
        raise _fail(f"{len(rest)} bytes follow the JSON, but input {INPUT_NAME!r} has no binary_data_size")
    if size is not None and (type(size) is not int or size != len(rest)):
        raise _fail(f"input {INPUT_NAME!r} has binary_data_size {_show(size)}, but {len(rest)} bytes follow the JSON")
    if (size is None) == ("data" not in tensor):
        raise _fail(f"input {INPUT_NAME!r} needs either 'data' or the parameter binary_data_size")
    return None if size is None else rest


def _parse_shape(tensor: Mapping[str, Any], max_images: int) -> list[int]:
    shape = tensor.get("shape")
    if not _is_list(shape) or not all(type(size) is int and size > 0 for size in shape):
        raise _fail(f"input {INPUT_NAME!r} has shape {_show(shape)}; expected a list of sizes of at least 1")
    if shape and shape[0] > max_images:
        raise RequestError(
            413, "too_many_images", f"the request has {_show(shape[0])} images, at most {max_images} fit."
        )
    return list(shape)


def _parse_files(tensor: Mapping[str, Any], content: bytes | None, shape: Sequence[int]) -> list[bytes]:
    """Return the elements of a BYTES tensor; as JSON, files are base64."""
    if len(shape) != 1:
        raise _fail(f"input {INPUT_NAME!r} of datatype BYTES has shape {_show(shape)}; expected [number of files]")
    files = _decode_texts(tensor["data"]) if content is None else _split_elements(content, shape[0])
    if len(files) != shape[0]:
        raise _fail(f"input {INPUT_NAME!r} has {len(files)} elements, but its shape is {_show(shape)}")
    return files


def _decode_texts(texts: object) -> list[bytes]:
    if not _is_list(texts) or not all(isinstance(text, str) for text in texts):
        raise _fail(f"the data of input {INPUT_NAME!r} of datatype BYTES are not a list of texts; {BASE64_REPAIR}")
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except ValueError:
        raise _fail(f"the data of input {INPUT_NAME!r} are not base64; {BASE64_REPAIR}") from None


def _split_elements(content: bytes, expected: int) -> list[bytes]:
    """Return the elements of a tensor; one more than expected is enough to tell that there are too many."""
    elements: list[bytes] = []
    place = 0
    while place < len(content) and len(elements) <= expected:
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(content[place:start], "little")
        if start > len(content) or place > len(content):
            raise _fail(f"element {len(elements)} of input {INPUT_NAME!r} is longer than the bytes that follow")
        elements.append(content[start:place])
    return elements


def _parse_pixels(tensor: Mapping[str, Any], content: bytes | None, shape: list[int], max_pixels: int) -> Array:
    """Return pixels. -> uint8, or float32 in [0, 1], [N, H, W, 1 or 3]"""
    datatype = tensor.get("datatype")
    if not isinstance(datatype, str) or datatype not in PIXEL_TYPES:
        expected = f"BYTES (image files), {' or '.join(PIXEL_TYPES)} (pixels)"
        raise _fail(f"input {INPUT_NAME!r} has datatype {_show(datatype)}; expected {expected}")
    if len(shape) != 4 or shape[3] not in (1, 3):
        raise _fail(f"input {INPUT_NAME!r} of datatype {datatype} has shape {_show(shape)}; expected [N, H, W, 1 or 3]")
    if shape[1] * shape[2] > max_pixels:
        size = f"{_show(shape[1])} x {_show(shape[2])}"
        raise RequestError(413, "image_too_large", f"the images have {size} pixels, above the limit of {max_pixels}.")
    values = _convert_numbers(tensor["data"], datatype) if content is None else _read_numbers(content, datatype)
    if values.size != math.prod(shape):
        raise _fail(f"input {INPUT_NAME!r} has {values.size} values, but its shape is {_show(shape)}")
    pixels = values.reshape(shape)
    fault = describe_image_fault(pixels)
    if fault is not None:
        raise RequestError(422, "unreadable_image", f"the pixels {fault}.")
    return pixels


def _read_numbers(content: bytes, datatype: str) -> Array:
    dtype = np.dtype(PIXEL_TYPES[datatype])
    if len(content) % dtype.itemsize:
        raise _fail(f"input {INPUT_NAME!r} has {len(content)} bytes, not a multiple of {dtype.itemsize} ({datatype})")
    return np.frombuffer(content, dtype)


def _convert_numbers(data: object, datatype: str) -> Array:
    """Return the numbers of a list, nested or not."""
    try:
        values = np.asarray(data) if _is_list(data) else None
    except ValueError:  # lists of several lengths
        values = None
    if values is None or values.dtype.kind not in ("iu" if datatype == "UINT8" else "iuf"):
        raise _fail(f"the data of input {INPUT_NAME!r} are not a list of numbers of datatype {datatype}")
    if datatype == "UINT8" and values.size and (values.min() < 0 or values.max() > 255):
        raise _fail(f"the data of input {INPUT_NAME!r} of datatype UINT8 run beyond 0 to 255")
    with np.errstate(over="ignore"):  # Infinity is no pixel, and found with all values that are none
        return values.astype(PIXEL_TYPES[datatype])


def _parse_ids(parameters: Mapping[str, Any], n_images: int) -> list[str | None]:
    ids = parameters.get("ids")
    if ids is None:
        return [None] * n_images
    if not _is_list(ids) or not all(isinstance(each, str) for each in ids) or len(ids) != n_images:
        raise _fail(f"the parameter ids is {_show(ids)}; expected a list of {n_images} texts, one per image")
    return list(ids)


def _parse_name(document: Mapping[str, Any]) -> str | None:
    name = document.get("id")
    if name is not None and not isinstance(name, str):
        raise _fail(f"the id of the request is {_show(name)}; expected a text")
    return name


def _parse_outputs(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, bool]:
    """Return the requested outputs, all by default, and whether each is sent as bytes."""
    by_default = parameters.get("binary_data_output") is True
    requested = document.get("outputs")
    if requested is None or requested == []:
        return dict.fromkeys(OUTPUT_TENSORS, by_default)
    if not _is_list(requested) or not all(isinstance(each, dict) for each in requested):
        raise _fail("the outputs of the request are not a list of objects with a 'name'")
    outputs: dict[str, bool] = {}
    for each in requested:
        name = each.get("name")
        if not isinstance(name, str) or name not in OUTPUT_TENSORS or name in outputs:
            raise _fail(f"output {_show(name)} is unknown or given twice; known outputs: {', '.join(OUTPUT_TENSORS)}")
        settings = _get_object(each, "parameters", f"output {name!r}")
        if settings.get("classification") or "shared_memory_region" in settings:
            raise _fail(f"output {name!r} is requested as a classification or in shared memory, which is not supported")
        outputs[name] = settings.get("binary_data", by_default) is True
    return outputs


def _get_object(document: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = document.get(key)
    if found is not None and not isinstance(found, dict):
        raise _fail(f"the {key} of {where} are {_show(found)}; expected an object")
    return found or {}


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _show(value: object, longest: int = 60) -> str:
    """Return a value of a request for a message, cut to a readable length."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        text = type(value).__name__
    text = text if len(text) <= longest else f"{text[:longest]}..."
    return repr(text) if isinstance(value, str) else text


def _fail(reason: str) -> RequestError:
    return RequestError(400, "invalid_request", f"{reason}.")
