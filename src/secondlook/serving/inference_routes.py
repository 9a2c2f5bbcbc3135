"""Routes of the Open Inference Protocol (KServe V2), for clients of Triton, KServe or MLServer.

Requests and responses are JSON, or JSON followed by binary tensors. For any request, `parse_inference_request` returns
an `InferenceRequest` or raises a `RequestError`, which becomes {"error": "..."}.
"""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, ValidationError

from secondlook import __version__
from secondlook.extension import Array, SourceError, describe_invalid, validate_pixels
from secondlook.serving.access import require
from secondlook.serving.decide_routes import assign_key, read_key
from secondlook.serving.decision_worker import make_image_count_error
from secondlook.serving.request_images import SubmittedImage
from secondlook.serving.responses import ErrorBody, RequestError
from secondlook.serving.service import CurrentService, Service
from secondlook.serving.store import StoredDecision
from secondlook.serving.watch_routes import check_ready

MAX_JSON_VALUES = 2**20
"""Limits memory: a parsed value takes up to 25 times the size of its text."""
HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON before the binary tensors."""
MODEL_NAME = "secondlook"
PIXEL_TYPES = {"UINT8": "<u1", "FP32": "<f4"}
NUMBER_TYPES = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?"}
TRITON_TYPES = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "FP64": "TYPE_FP64", "BOOL": "TYPE_BOOL"}
"""Names of datatypes in model configurations."""
LENGTH_BYTES = 4
"""In a binary BYTES tensor, each element is preceded by its length, a little-endian uint32."""
OUTPUT_TENSORS = {
    "label": "INT64",
    "class": "BYTES",
    "confidence": "FP64",
    "accept": "BOOL",
    "rejection": "BYTES",
    "familiarity": "FP64",
    "low": "FP64",
    "high": "FP64",
    "looks": "INT64",
    "id": "BYTES",
}
"""Datatypes of the model outputs, which have one value per image."""
BINARY = {"type": "string", "format": "binary", "description": f"JSON of {HEADER_LENGTH} bytes, then tensors."}
INFER_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["inputs"]}},
        "application/octet-stream": {"schema": BINARY},
    },
}

UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "The model or its version is unknown."}
}
INFER_RESPONSES = UNKNOWN_MODEL | {
    409: {"model": ErrorBody, "description": "An id was used for another image."},
    415: {"model": ErrorBody, "description": "The body is compressed."},
}

router = APIRouter(tags=["Open Inference Protocol"])
may_watch, may_decide = [Depends(require("watch"))], [Depends(require("decide"))]


@router.get("/v2", dependencies=may_watch)
def describe_server() -> dict[str, Any]:
    """Describe the server and its extensions."""
    return {"name": MODEL_NAME, "version": __version__, "extensions": ["binary_tensor_data", "model_configuration"]}


@router.get("/v2/health/live")
def is_live() -> dict[str, bool]:
    """Check liveness."""
    return {"live": True}


@router.get("/v2/health/ready")
def is_ready(service: CurrentService) -> dict[str, bool]:
    """Check whether the service accepts requests."""
    check_ready(service)
    return {"ready": True}


@router.get("/v2/models/{name}", dependencies=may_watch, responses=UNKNOWN_MODEL)
@router.get("/v2/models/{name}/versions/{version}", dependencies=may_watch, include_in_schema=False)
def describe_model(service: CurrentService, name: str, version: str | None = None) -> dict[str, Any]:
    """Describe the inputs and outputs."""
    return {
        "name": MODEL_NAME,
        "versions": [check_model(service, name, version)],
        "platform": MODEL_NAME,
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": each, "datatype": datatype, "shape": [-1]} for each, datatype in OUTPUT_TENSORS.items()],
    }


@router.get("/v2/models/{name}/config", dependencies=may_watch, responses=UNKNOWN_MODEL)
@router.get("/v2/models/{name}/versions/{version}/config", dependencies=may_watch, include_in_schema=False)
def describe_configuration(service: CurrentService, name: str, version: str | None = None) -> dict[str, Any]:
    """Describe the inputs and outputs as a model configuration of Triton."""
    about = describe_model(service, name, version)
    tensors = {
        kind: [
            {"name": each["name"], "data_type": TRITON_TYPES[each["datatype"]], "dims": each["shape"]}
            for each in about[f"{kind}s"]
        ]
        for kind in ("input", "output")
    }
    # Batches are a dimension of the tensors: shapes include the number of images.
    return {"name": MODEL_NAME, "platform": MODEL_NAME, "backend": "", "max_batch_size": 0, **tensors}


@router.get("/v2/models/{name}/ready", responses=UNKNOWN_MODEL)
@router.get("/v2/models/{name}/versions/{version}/ready", include_in_schema=False)
def is_model_ready(service: CurrentService, name: str, version: str | None = None) -> dict[str, Any]:
    """Check whether the model accepts requests."""
    check_model(service, name, version)
    check_ready(service)
    return {"name": MODEL_NAME, "ready": True}


@router.post(
    "/v2/models/{name}/infer",
    dependencies=may_decide,
    responses=INFER_RESPONSES,
    openapi_extra={"requestBody": INFER_BODY},
)
@router.post("/v2/models/{name}/versions/{version}/infer", dependencies=may_decide, include_in_schema=False)
async def infer(request: Request, service: CurrentService, name: str, version: str | None = None) -> Response:
    """Decide about images.

    Input `image`: BYTES [n] image files (base64 in JSON), or pixels UINT8 or FP32 in [0, 1] [n, H, W, 1 or 3].
    `parameters.ids`: a list of n unique ids, which make the request safe to retry; for one image, also the header
    `Idempotency-Key`. Outputs have one value per image; `low` and `high` are null, or NaN in binary data, after a
    single look.
    """
    check_model(service, name, version)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(415, "content_encoding", f"the body has encoding {encoding[:20]!r}; send it uncompressed.")
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
    headers, body = format_inference_response(decisions, parsed)
    return Response(body, headers=headers)


def check_model(service: Service, name: str, version: str | None) -> str:
    """Return the current version, the number of the deployment; raise an error if the request names another."""
    live = str(service.live.deployment.number)
    if name != MODEL_NAME or version not in (None, live):
        wanted = f"model {name[:50]!r}" + ("" if version is None else f" of version {version[:20]!r}")
        raise RequestError(404, "unknown_model", f"{wanted} is unknown; expected {MODEL_NAME!r} of version {live!r}.")
    return live


class _Strict(BaseModel, strict=True):
    """A part of a request; unknown fields are ignored, as the protocol requires."""


class _InputTensor(_Strict):
    name: Literal["image"]
    datatype: Literal["BYTES", "UINT8", "FP32"]
    shape: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class _RequestedOutput(_Strict):
    name: Literal["label", "class", "confidence", "accept", "rejection", "familiarity", "low", "high", "looks", "id"]
    parameters: dict[str, Any] | None = None


class _RequestParameters(_Strict):
    ids: list[str] | None = None
    binary_data_output: Any = None


class _RequestDocument(_Strict):
    id: str | None = None
    inputs: Annotated[list[_InputTensor], Field(min_length=1, max_length=1)]
    outputs: list[_RequestedOutput] | None = None
    parameters: _RequestParameters | None = None


class InferenceRequest(NamedTuple):
    """A validated request."""

    images: Sequence[bytes | Array]
    """Encoded files, or pixels, uint8 or float32 in [0, 1], [H, W, 1 or 3]."""
    ids: Sequence[str | None]
    """One per image; None to generate an id."""
    id: str | None
    """Id of the request, repeated in the response."""
    outputs: Mapping[str, bool]
    """The requested outputs, and whether each is sent as binary data."""


def parse_inference_request(
    body: bytes, header_length: str | None = None, *, max_images: int, max_pixels: int
) -> InferenceRequest:
    """Parse the body of an inference request; `header_length` is the length of its JSON if binary tensors follow."""
    end = len(body)
    if header_length is not None:
        end = int(header_length) if re.fullmatch("[0-9]{1,12}", header_length) else len(body) + 1
    if end > len(body):
        _fail(f"{HEADER_LENGTH} is {str(header_length)[:60]!r}; expected the length of the JSON in {len(body)} bytes")
    document = _parse_document(body[:end])
    (tensor,), parameters = document.inputs, document.parameters or _RequestParameters()
    content, n_images = _take_content(tensor, body[end:]), tensor.shape[0]
    if n_images > max_images:
        raise make_image_count_error(max_images)
    is_pixels = tensor.datatype != "BYTES"
    images = list(_parse_pixels(tensor, content, max_pixels) if is_pixels else _parse_files(tensor, content))
    ids: Sequence[str | None] = [None] * n_images if parameters.ids is None else parameters.ids
    if len(ids) != n_images:
        _fail(f"the parameter ids has {len(ids)} ids; expected {n_images}, one per image")
    outputs = _choose_outputs(document.outputs or (), is_binary=parameters.binary_data_output is True)
    return InferenceRequest(images, ids, document.id, outputs)


def _parse_document(content: bytes) -> _RequestDocument:
    """Parse JSON with a limited number of values, bounded by its number of commas."""
    if content.count(b",") >= MAX_JSON_VALUES:
        _fail(f"the JSON has more than {MAX_JSON_VALUES:,} values; send tensors as binary data")
    try:
        return _RequestDocument.model_validate_json(content)
    except ValidationError as error:
        _fail(f"the JSON is not an inference request, {' '.join(describe_invalid(error).split())[:200]}")


def _take_content(tensor: _InputTensor, rest: bytes) -> bytes | None:
    """Return the bytes of the input that follow the JSON; None if its values are in the JSON."""
    size = (tensor.parameters or {}).get("binary_data_size")
    if len(rest) != (size or 0):
        _fail(f"{len(rest)} bytes follow the JSON; expected the binary_data_size of the input")
    if (size is None) == (tensor.data is None):
        _fail("the input needs either 'data' or the parameter binary_data_size")
    return None if size is None else rest


def _parse_files(tensor: _InputTensor, content: bytes | None) -> list[bytes]:
    """Return the elements of a BYTES tensor; in JSON, files are base64."""
    if content is not None:
        files = _split_elements(content, tensor.shape[0])
    else:
        try:
            files = [base64.b64decode(text, validate=True) for text in tensor.data or ()]
        except (ValueError, TypeError):
            _fail("the data of datatype BYTES are not a list of base64 strings")
    if [len(files)] != tensor.shape:
        _fail(f"the input has {len(files)} files, but its shape is {str(tensor.shape)[:60]}")
    return files


def _split_elements(content: bytes, expected: int) -> list[bytes]:
    """Return the elements of a tensor; stops at one more than expected, which the caller rejects."""
    elements: list[bytes] = []
    place = 0
    while place < len(content) and len(elements) <= expected:
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(content[place:start], "little")
        if start > len(content) or place > len(content):
            _fail(f"element {len(elements)} of the input is longer than the bytes that follow")
        elements.append(content[start:place])
    return elements


def _parse_pixels(tensor: _InputTensor, content: bytes | None, max_pixels: int) -> Array:
    """Return pixels. -> uint8, or float32 in [0, 1], [N, H, W, 1 or 3]"""
    shape, datatype = tensor.shape, tensor.datatype
    if len(shape) != 4 or shape[3] not in (1, 3):
        _fail(f"the input of datatype {datatype} has shape {str(shape)[:60]}; expected [N, H, W, 1 or 3]")
    if shape[1] * shape[2] > max_pixels:
        raise RequestError(413, "image_too_large", f"the images have more than {max_pixels} pixels; send smaller ones.")
    dtype = np.dtype(PIXEL_TYPES[datatype])
    if content is None:
        values = _convert_numbers(tensor.data, datatype)
    elif len(content) == math.prod(shape) * dtype.itemsize:
        values = np.frombuffer(content, dtype)
    else:
        _fail(f"the input has {len(content)} bytes, but its shape is {shape} of {datatype}")
    if values.size != math.prod(shape):
        _fail(f"the input has {values.size} values, but its shape is {shape}")
    try:
        return validate_pixels(values.reshape(shape), "the pixels", SourceError)
    except SourceError as error:
        raise RequestError(422, "unreadable_image", str(error)) from error


def _convert_numbers(data: list[Any] | None, datatype: str) -> Array:
    """Convert a flat or nested list of numbers to an array."""
    try:
        values = np.asarray(data)
    except ValueError:
        _fail("the data of the input are nested lists of different lengths")
    is_valid = values.dtype.kind in ("iu" if datatype == "UINT8" else "iuf")
    if not is_valid or (datatype == "UINT8" and not (values.min() >= 0 and values.max() <= 255)):
        _fail(f"the data of the input are not numbers of datatype {datatype}")
    with np.errstate(over="ignore"):  # `validate_pixels` rejects infinity
        return values.astype(PIXEL_TYPES[datatype])


def _choose_outputs(requested: Sequence[_RequestedOutput], *, is_binary: bool) -> dict[str, bool]:
    """Return the requested outputs, by default all, and whether each is sent as binary data."""
    if not requested:
        return dict.fromkeys(OUTPUT_TENSORS, is_binary)
    outputs: dict[str, bool] = {}
    for each in requested:
        settings = each.parameters or {}
        if each.name in outputs:
            _fail(f"output {each.name!r} is given twice")
        if settings.get("classification") or "shared_memory_region" in settings:
            _fail(f"output {each.name!r} is requested as a classification or in shared memory, which is not supported")
        outputs[each.name] = settings.get("binary_data", is_binary) is True
    return outputs


def format_inference_response(
    decisions: Sequence[StoredDecision], request: InferenceRequest
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a response with the requested outputs."""
    tensors, contents = [], []
    for name, is_binary in request.outputs.items():
        values = [getattr(one, "class_name" if name == "class" else name) for one in decisions]
        if OUTPUT_TENSORS[name] == "BYTES":
            values = [text or "" for text in values]
        tensor: dict[str, Any] = {"name": name, "datatype": OUTPUT_TENSORS[name], "shape": [len(values)]}
        if is_binary:
            contents.append(_encode_values(values, OUTPUT_TENSORS[name]))
            tensor["parameters"] = {"binary_data_size": len(contents[-1])}
        else:
            tensor["data"] = values
        tensors.append(tensor)
    version = str(max(decision.deployment for decision in decisions))
    named = {} if request.id is None else {"id": request.id}
    head = json.dumps({"model_name": MODEL_NAME, "model_version": version, **named, "outputs": tensors}).encode()
    if not contents:
        return {"Content-Type": "application/json"}, head
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}, b"".join([head, *contents])


def _encode_values(values: Sequence[Any], datatype: str) -> bytes:
    """Return the values of an output as binary data; unknown numbers become NaN."""
    if datatype == "BYTES":
        texts = [text.encode() for text in values]
        return b"".join(len(text).to_bytes(LENGTH_BYTES, "little") + text for text in texts)
    return np.array(values, NUMBER_TYPES[datatype]).tobytes()


def _fail(reason: str) -> NoReturn:
    raise RequestError(400, "invalid_request", f"{reason}.")
