"""Routes that decide: one image as the body of a request, or several as a form."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from secondlook.extension import name_label
from secondlook.serving.access import require
from secondlook.serving.decision_worker import make_image_count_error
from secondlook.serving.request_images import LONGEST_ID, LONGEST_NAME, SubmittedImage, check_id
from secondlook.serving.responses import DecisionsBody, ErrorBody, RequestError, ServedDecision
from secondlook.serving.service import CurrentService, Service
from secondlook.serving.store import StoredDecision, get_interval

FORM = "multipart/form-data"
RAW_TYPES = ("application/octet-stream", "application/x-www-form-urlencoded", "binary/octet-stream")
"""Content types of a single image, besides image/*; curl sends data as a form by default."""
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "`no_image`, `id`: the request has no image, or an invalid id."},
    408: {"description": "`slow_body`: the body did not arrive in time."},
    409: {"description": "`id_conflict`: the id was used for another image."},
    413: {"description": "`body_too_large`, `image_too_large`, `too_many_images`: above a limit."},
    415: {"description": "`content_type`: neither an image nor a form."},
    422: {"description": "`unreadable_image`, `image_size`: the image cannot be decoded or classified."},
    429: {"description": "`busy`: too many images are waiting; retry after `Retry-After` seconds."},
    503: {"description": "`stopping`, `storage_unavailable`: retry after `Retry-After` seconds."},
    507: {"description": "`storage_failed`: the decision cannot be stored, for example because the disk is full."},
}
PARAMETERS = [
    {"name": name, "in": place, "schema": {"type": "string", "maxLength": longest}, "description": description}
    for name, place, longest, description in (
        ("id", "query", LONGEST_ID, "Unique id of the image, never reused; a repeated request gets the same decision."),
        ("Idempotency-Key", "header", LONGEST_ID, "The same as `id`, for a single image."),
        ("name", "query", LONGEST_NAME, "File name of the image, for reviewers."),
    )
]
FILE = {"type": "string", "format": "binary", "description": "The bytes of an image file."}
IDS = {
    "type": "array",
    "items": {"type": "string", "maxLength": LONGEST_ID},
    "description": "One id per image, in the same order; or none.",
}
FORM_FIELDS = {"image": {"type": "array", "items": FILE}, "id": IDS}
REQUEST_BODY = {
    "required": True,
    "content": {
        "image/*": {"schema": FILE},
        FORM: {"schema": {"type": "object", "required": ["image"], "properties": FORM_FIELDS}},
    },
}

router = APIRouter(tags=["decide"])
check_access = require("decide")


@router.post(
    "/v1/decide",
    response_model=ServedDecision | DecisionsBody,
    responses=RESPONSES,
    openapi_extra={"parameters": PARAMETERS, "requestBody": REQUEST_BODY},
)
async def decide(request: Request) -> Response:
    """Decide about one image or several."""
    await check_access(request)  # called here, since a FastAPI dependency takes longer than the check
    service: Service = request.app.state.service
    is_form = read_media_type(request) == FORM
    images = await (read_form(request, service.options.max_request_images) if is_form else read_body(request))
    outcomes = await service.worker.decide(images)
    found = [ServedDecision(**describe_decision(outcome.decision, service)) for outcome in outcomes]
    body = DecisionsBody(decisions=found) if is_form else found[0]
    replay = {"Idempotent-Replay": "true"} if all(outcome.replayed for outcome in outcomes) else None
    return Response(body.model_dump_json(by_alias=True), media_type="application/json", headers=replay)


@router.get(
    "/v1/decisions/{id_:path}",
    dependencies=[Depends(check_access)],
    responses={404: {"model": ErrorBody, "description": "`unknown_id`: there is no image with the id."}},
)
def find_decision(id_: str, service: CurrentService) -> ServedDecision:
    """Return the decision about an image sent before."""
    check_id(id_)
    stored = service.decisions.find([id_]).get(id_)
    if stored is None:
        raise RequestError(404, "unknown_id", f"there is no image with the id {id_[:LONGEST_ID]!r}; check the id.")
    return ServedDecision(**describe_decision(stored, service))


def describe_decision(stored: StoredDecision, service: Service) -> dict[str, Any]:
    """Return the fields of `ServedDecision`; the policy may be an earlier one."""
    deployment = service.decisions.find_deployment(stored.deployment)
    guarantee = deployment.policy.guarantee
    names, label = deployment.policy.class_names, stored.reviewed_label
    return stored._asdict() | {
        "interval": get_interval(stored),
        "review": "waiting" if stored.state == "expired" else stored.state,
        "reviewed_class": None if label is None or (names is None and label >= 0) else name_label(label, names),
        "guarantee": None if guarantee is None else guarantee.model_dump() | {"text": str(guarantee)},
        "policy": deployment.checksum,
    }


async def read_body(request: Request) -> list[SubmittedImage]:
    """Read a request body that is one image."""
    kind = read_media_type(request)
    if kind not in RAW_TYPES and not kind.startswith("image/"):
        raise RequestError(415, "content_type", f"the content type is {kind[:100]!r}; expected image/* or {FORM}.")
    content = await request.body()
    if not content:
        raise RequestError(400, "no_image", "the body is empty; send the bytes of an image file.")
    return [SubmittedImage(content, read_key(request), check_name(request.query_params.get("name")))]


async def read_form(request: Request, max_images: int) -> list[SubmittedImage]:
    """Read the images of a form, under any part names, and their ids."""
    try:
        async with request.form(max_files=max_images, max_fields=max_images + 1) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            ids = [value for value in form.getlist("id") if isinstance(value, str)]
            if not files:
                raise RequestError(400, "no_image", "the form has no file; send image files as parts named 'image'.")
            if ids and len(ids) != len(files):
                raise RequestError(400, "id", f"{len(files)} images have {len(ids)} ids; send one per image, or none.")
            given = assign_key([*ids] or [None] * len(files), read_key(request))
            return [
                SubmittedImage(await file.read(), id_, check_name(file.filename))
                for file, id_ in zip(files, given, strict=True)
            ]
    except HTTPException as error:
        if error.detail.startswith("Too many"):  # Starlette has no other way to distinguish these errors
            raise make_image_count_error(max_images) from None
        raise


def read_media_type(request: Request) -> str:
    """Return the media type of a body, without parameters."""
    return request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()


def read_key(request: Request) -> str | None:
    """Return the id from the query or the header Idempotency-Key; None if there is none."""
    key = request.headers.get("idempotency-key")
    if "id" in request.query_params or key is None:
        return request.query_params.get("id")
    try:
        return key.encode("latin-1").decode()  # as Starlette decodes headers
    except UnicodeDecodeError:
        raise RequestError(400, "id", "the header Idempotency-Key is not UTF-8; send another id.") from None


def assign_key(ids: Sequence[str | None], key: str | None) -> list[str | None]:
    """Return the ids of images; without ids, the key is the id of the only image."""
    if key is None or any(id_ is not None for id_ in ids):
        return list(ids)
    if len(ids) > 1:
        raise RequestError(400, "id", f"the request has {len(ids)} images and one id; send one per image, or none.")
    return [key]


def check_name(name: str | None) -> str | None:
    """Return a file name without unprintable characters, truncated to the longest allowed."""
    return "".join(one for one in name if one.isprintable())[:LONGEST_NAME] or None if name else None
