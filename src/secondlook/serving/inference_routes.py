"""Routes of the Open Inference Protocol (KServe V2), so that clients of Triton, KServe or MLServer can be used.

The application gives failures the form of the protocol, {"error": "..."}.
"""

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool

from secondlook import __version__
from secondlook.classifiers import HEADER_LENGTH
from secondlook.serving.decide_routes import assign_key, read_key
from secondlook.serving.faults import RequestError
from secondlook.serving.inference_tensors import (
    INPUT_NAME,
    OUTPUT_TENSORS,
    format_inference_response,
    parse_inference_request,
)
from secondlook.serving.request_images import SubmittedImage
from secondlook.serving.watch_routes import check_ready

if TYPE_CHECKING:
    from secondlook.serving.service import Service

MODEL_NAME = "secondlook"
MODEL_PATHS = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")


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
                {"name": each, "datatype": output.datatype, "shape": [-1]} for each, output in OUTPUT_TENSORS.items()
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
        is_first = path == MODEL_PATHS[0]  # those of a version are the same
        options: dict[str, Any] = {"include_in_schema": is_first}
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


INFER_DESCRIPTION = (
    "Input `image`: BYTES [n] image files (base64 in JSON), or pixels UINT8 or FP32 in [0, 1] [n, H, W, 1 or 3]. "
    "`parameters.ids`: a list of n unique ids, which make the request safe to repeat; for one image, also the header "
    "`Idempotency-Key`. Outputs: "
    + ", ".join(f"`{name}` {output.datatype}" for name, output in OUTPUT_TENSORS.items())
    + ", each [n]. `low` and `high` are null, or NaN as binary data, after a single look."
)
INFER_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["inputs"]}},
        "application/octet-stream": {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": f"JSON of {HEADER_LENGTH} bytes, then tensors.",
            }
        },
    },
}


def check_model(service: "Service", name: str, version: str | None) -> str:
    """Return the version in force, the number of the policy's deployment; raise an error if another one is wanted."""
    live = str(service.live.deployment.number)
    if name != MODEL_NAME or version not in (None, live):
        wanted = f"model {name[:50]!r}" + ("" if version is None else f" of version {version[:20]!r}")
        raise RequestError(404, "unknown_model", f"{wanted} is unknown; expected {MODEL_NAME!r} of version {live!r}.")
    return live
