"""Routes of the Open Inference Protocol (KServe V2), so that clients of Triton, KServe or MLServer can be used.

Requests and responses are JSON, or JSON followed by binary tensors. Whatever a request contains,
`parse_inference_request` returns an `InferenceRequest` or raises a `RequestError`, which becomes {"error": "..."}.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from secondlook import __version__
from secondlook.extension import Array, SourceError, check_pixels, describe_invalid
from secondlook.serving.decide_routes import assign_key, read_key
from secondlook.serving.decision_store import StoredDecision
from secondlook.serving.request_images import SubmittedImage
from secondlook.serving.responses import RequestError
from secondlook.serving.watch_routes import check_ready

if TYPE_CHECKING:
    from secondlook.serving.service import Service

MAX_JSON_VALUES = 2**20
"""A value takes up to 25 times the memory of its text."""
HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header of the protocol that holds the length of the JSON in front of binary tensors."""
MODEL_NAME = "secondlook"
MODEL_PATHS = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
INPUT_NAME = "image"
PIXEL_TYPES = {"UINT8": "<u1", "FP32": "<f4"}
NUMBER_TYPES = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?"}
FILES = TypeAdapter(list[str], config=ConfigDict(strict=True))
LENGTH_BYTES = 4
"""Each element of a binary BYTES tensor follows its length, a little-endian uint32."""


OUTPUT_TENSORS = {
    "label": "INT64",
    "class": "BYTES",
    "confidence": "FP64",
    "accept": "BOOL",
    "low": "FP64",
    "high": "FP64",
    "looks": "INT64",
    "id": "BYTES",
}
"""Datatypes of the outputs of the model, which have a value per image."""
INFER_DESCRIPTION = (
    "Input `image`: BYTES [n] image files (base64 in JSON), or pixels UINT8 or FP32 in [0, 1] [n, H, W, 1 or 3]. "
    "`parameters.ids`: a list of n unique ids, which make the request safe to repeat; for one image, also the header "
    "`Idempotency-Key`. Outputs: "
    + ", ".join(f"`{name}` {datatype}" for name, datatype in OUTPUT_TENSORS.items())
    + ", each [n]. `low` and `high` are null, or NaN as binary data, after a single look."
)
BINARY = {"type": "string", "format": "binary", "description": f"JSON of {HEADER_LENGTH} bytes, then tensors."}
INFER_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["inputs"]}},
        "application/octet-stream": {"schema": BINARY},
    },
}


def make_inference_router(service: "Service") -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["Open Inference Protocol"])
    may_watch, may_decide = [[Depends(service.access.require(each))] for each in ("watch", "decide")]

    @router.get("/v2", summary="The server and its extensions", dependencies=may_watch)
    def describe_server() -> dict[str, Any]:
        return {"name": MODEL_NAME, "version": __version__, "extensions": ["binary_tensor_data"]}

    @router.get("/v2/health/live", summary="Whether the process lives")
    def is_live() -> dict[str, bool]:
        return {"live": True}

    @router.get("/v2/health/ready", summary="Whether requests are served")
    def is_ready() -> dict[str, bool]:
        check_ready(service)
        return {"ready": True}

    def describe_model(name: str, version: str | None = None) -> dict[str, Any]:
        return {
            "name": MODEL_NAME,
            "versions": [check_model(service, name, version)],
            "platform": MODEL_NAME,
            "inputs": [{"name": INPUT_NAME, "datatype": "BYTES", "shape": [-1]}],
            "outputs": [
                {"name": each, "datatype": datatype, "shape": [-1]} for each, datatype in OUTPUT_TENSORS.items()
            ],
        }

    def is_model_ready(name: str, version: str | None = None) -> dict[str, Any]:
        check_model(service, name, version)
        check_ready(service)
        return {"name": MODEL_NAME, "ready": True}

    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        check_model(service, name, version)
        encoding = request.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise RequestError(
                415, "content_encoding", f"the body is compressed ({encoding[:20]!r}); send it as it is."
            )
        parsed = await run_in_threadpool(
            parse_inference_request,
            await request.body(),
            request.headers.get(HEADER_LENGTH),
            max_images=service.options.max_request_images,
            max_pixels=service.options.max_pixels,
        )
        ids = assign_key(parsed.ids, read_key(request))
        images = [SubmittedImage(image, id_) for image, id_ in zip(parsed.images, ids, strict=True)]
        decisions = [outcome.decision for outcome in await service.worker.decide(images)]
        latest = str(max(decision.deployment for decision in decisions))
        headers, body = format_inference_response(decisions, parsed, model=MODEL_NAME, version=latest)
        return Response(body, headers=headers)

    for path in MODEL_PATHS:
        options: dict[str, Any] = {"include_in_schema": path == MODEL_PATHS[0]}  # those of a version are the same
        router.get(path, summary="The inputs and outputs", dependencies=may_watch, **options)(describe_model)
        router.get(f"{path}/ready", summary="Whether the model is served", **options)(is_model_ready)
        router.post(
            f"{path}/infer",
            summary="Decide about images",
            description=INFER_DESCRIPTION,
            dependencies=may_decide,
            openapi_extra={"requestBody": INFER_BODY},
            **options,
        )(infer)
    return router


def check_model(service: "Service", name: str, version: str | None) -> str:
    """Return the version in force, the number of the policy's deployment; raise an error if another one is wanted."""
    live = str(service.live.deployment.number)
    if name != MODEL_NAME or version not in (None, live):
        wanted = f"model {name[:50]!r}" + ("" if version is None else f" of version {version[:20]!r}")
        raise RequestError(404, "unknown_model", f"{wanted} is unknown; expected {MODEL_NAME!r} of version {live!r}.")
    return live


class _Strict(BaseModel):
    """A part of a request; what it does not know is ignored, as the protocol demands."""

    model_config = ConfigDict(strict=True)


class _InputParameters(_Strict):
    binary_data_size: int | None = None


class _InputTensor(_Strict):
    name: Literal["image"]
    datatype: Literal["BYTES", "UINT8", "FP32"]
    shape: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    data: Any = None
    parameters: _InputParameters | None = None


class _RequestedOutput(_Strict):
    name: str
    parameters: dict[str, Any] | None = None


class _RequestParameters(_Strict):
    ids: list[str] | None = None
    binary_data_output: Any = None


class _RequestDocument(_Strict):
    id: str | None = None
    inputs: Annotated[list[_InputTensor], Field(min_length=1, max_length=1)]
    outputs: list[_RequestedOutput] | None = None
    parameters: _RequestParameters | None = None


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
    document = _parse_document(body[:end])
    (tensor,), parameters = document.inputs, document.parameters or _RequestParameters()
    content = _take_content(tensor, body[end:])
    n_images = tensor.shape[0]
    if n_images > max_images:
        raise RequestError(413, "too_many_images", f"the request has more images than the {max_images} that fit.")
    images: Sequence[bytes | Array]
    if tensor.datatype == "BYTES":
        images = _parse_files(tensor, content)
    else:
        images = list(_parse_pixels(tensor, content, max_pixels))
    ids: Sequence[str | None] = [None] * n_images if parameters.ids is None else parameters.ids
    if len(ids) != n_images:
        _fail(f"the parameter ids has {len(ids)} texts; expected {n_images}, one per image")
    outputs = _choose_outputs(document.outputs or (), is_binary=parameters.binary_data_output is True)
    return InferenceRequest(images, ids, document.id, outputs)


def _parse_length(text: str | None, n_bytes: int) -> int:
    """Return the length of the JSON at the start of a body."""
    if text is None:
        return n_bytes
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(n_bytes)) and int(text) <= n_bytes):
        _fail(f"{HEADER_LENGTH} is {text[:60]!r}; expected the length of the JSON in a body of {n_bytes} bytes")
    return int(text)


def _parse_document(content: bytes) -> _RequestDocument:
    """Parse JSON of a limited number of values; each but the first of a list or an object follows a comma."""
    if content.count(b",") >= MAX_JSON_VALUES:
        _fail(f"the JSON has more than {MAX_JSON_VALUES:,} values; send tensors as binary data")
    try:
        return _RequestDocument.model_validate_json(content)
    except ValidationError as error:
        _fail(f"the JSON is not an inference request, {' '.join(describe_invalid(error).split())[:200]}")


def _take_content(tensor: _InputTensor, rest: bytes) -> bytes | None:
    """Return the bytes of the input that follow the JSON; None if its values are in the JSON."""
    size = None if tensor.parameters is None else tensor.parameters.binary_data_size
    if size is None and rest:
        _fail(f"{len(rest)} bytes follow the JSON, but input {INPUT_NAME!r} has no binary_data_size")
    if size is not None and size != len(rest):
        _fail(f"{len(rest)} bytes follow the JSON, which is not the binary_data_size of input {INPUT_NAME!r}")
    if (size is None) == (tensor.data is None):
        _fail(f"input {INPUT_NAME!r} needs either 'data' or the parameter binary_data_size")
    return None if size is None else rest


def _parse_files(tensor: _InputTensor, content: bytes | None) -> list[bytes]:
    """Return the elements of a BYTES tensor; as JSON, files are base64."""
    if len(tensor.shape) != 1:
        _fail(f"input {INPUT_NAME!r} of datatype BYTES has {len(tensor.shape)} axes; expected [number of files]")
    files = _decode_texts(tensor.data) if content is None else _split_elements(content, tensor.shape[0])
    if len(files) != tensor.shape[0]:
        _fail(f"input {INPUT_NAME!r} has {len(files)} elements, but its shape is {tensor.shape}")
    return files


def _decode_texts(texts: object) -> list[bytes]:
    try:
        return [base64.b64decode(text, validate=True) for text in FILES.validate_python(texts)]
    except ValueError:  # pydantic.ValidationError is one
        _fail(f"the data of input {INPUT_NAME!r} of datatype BYTES are not a list of image files as base64")


def _split_elements(content: bytes, expected: int) -> list[bytes]:
    """Return the elements of a tensor; one more than expected is enough to tell that there are too many."""
    elements: list[bytes] = []
    place = 0
    while place < len(content) and len(elements) <= expected:
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(content[place:start], "little")
        if start > len(content) or place > len(content):
            _fail(f"element {len(elements)} of input {INPUT_NAME!r} is longer than the bytes that follow")
        elements.append(content[start:place])
    return elements


def _parse_pixels(tensor: _InputTensor, content: bytes | None, max_pixels: int) -> Array:
    """Return pixels. -> uint8, or float32 in [0, 1], [N, H, W, 1 or 3]"""
    shape, datatype = tensor.shape, tensor.datatype
    if len(shape) != 4 or shape[3] not in (1, 3):
        _fail(f"input {INPUT_NAME!r} of datatype {datatype} has shape {str(shape)[:60]}; expected [N, H, W, 1 or 3]")
    if shape[1] * shape[2] > max_pixels:
        raise RequestError(413, "image_too_large", f"the images have more than {max_pixels} pixels; send smaller ones.")
    dtype = np.dtype(PIXEL_TYPES[datatype])
    if content is None:
        values = _convert_numbers(tensor.data, datatype)
    elif len(content) % dtype.itemsize:
        _fail(f"input {INPUT_NAME!r} has {len(content)} bytes, not a multiple of {dtype.itemsize} ({datatype})")
    else:
        values = np.frombuffer(content, dtype)
    if values.size != math.prod(shape):
        _fail(f"input {INPUT_NAME!r} has {values.size} values, but its shape is {shape}")
    pixels = values.reshape(shape)
    try:
        check_pixels(pixels, "the pixels", SourceError)
    except SourceError as error:
        raise RequestError(422, "unreadable_image", str(error)) from error
    return pixels


def _convert_numbers(data: object, datatype: str) -> Array:
    """Return the numbers of a list, nested or not."""
    try:
        values = np.asarray(data) if isinstance(data, list) else None
    except ValueError:  # lists of several lengths
        values = None
    if values is None or values.dtype.kind not in ("iu" if datatype == "UINT8" else "iuf"):
        _fail(f"the data of input {INPUT_NAME!r} are not a list of numbers of datatype {datatype}")
    if datatype == "UINT8" and values.size and (values.min() < 0 or values.max() > 255):
        _fail(f"the data of input {INPUT_NAME!r} of datatype UINT8 run beyond 0 to 255")
    with np.errstate(over="ignore"):  # Infinity is no pixel, and found with all values that are none
        return values.astype(PIXEL_TYPES[datatype])


def _choose_outputs(requested: Sequence[_RequestedOutput], *, is_binary: bool) -> dict[str, bool]:
    """Return the requested outputs, all by default, and whether each is sent as bytes."""
    if not requested:
        return dict.fromkeys(OUTPUT_TENSORS, is_binary)
    outputs: dict[str, bool] = {}
    for each in requested:
        if each.name not in OUTPUT_TENSORS or each.name in outputs:
            known = ", ".join(OUTPUT_TENSORS)
            _fail(f"output {each.name[:60]!r} is unknown or given twice; known outputs: {known}")
        settings = each.parameters or {}
        if settings.get("classification") or "shared_memory_region" in settings:
            _fail(f"output {each.name!r} is requested as a classification or in shared memory, which is not supported")
        outputs[each.name] = settings.get("binary_data", is_binary) is True
    return outputs


def format_inference_response(
    decisions: Sequence[StoredDecision], request: InferenceRequest, *, model: str, version: str
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a response with the requested outputs."""
    tensors, contents = [], []
    for name, is_binary in request.outputs.items():
        values = [one.class_name or "" if name == "class" else getattr(one, name) for one in decisions]
        tensor: dict[str, Any] = {"name": name, "datatype": OUTPUT_TENSORS[name], "shape": [len(values)]}
        if is_binary:
            contents.append(_encode_values(values, OUTPUT_TENSORS[name]))
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


def _fail(reason: str) -> NoReturn:
    raise RequestError(400, "invalid_request", f"{reason}.")
