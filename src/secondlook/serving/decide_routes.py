"""Routes that decide: one image as the body of a request, or several as a form."""

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from secondlook.serving.decision_store import FoundReview, StoredDecision, StoredOutcome
from secondlook.serving.decision_worker import too_many_images
from secondlook.serving.request_images import LONGEST_ID, LONGEST_NAME, SubmittedImage, check_id
from secondlook.serving.responses import DecisionBody, DecisionsBody, RequestError, ServedDecision

if TYPE_CHECKING:
    from secondlook.serving.service import Service

FORM = "multipart/form-data"
RAW_TYPES = ("application/octet-stream", "application/x-www-form-urlencoded", "binary/octet-stream")
"""Types of a body that is one image, beside image/*; curl says that data are a form if nobody says otherwise."""
RESPONSES: dict[int | str, dict[str, str]] = {
    400: {"description": "`no_image`, `id`: the request has no image, or an id that is not valid."},
    408: {"description": "`slow_body`: the body did not arrive in time."},
    409: {"description": "`id_conflict`: the id was sent before with another image."},
    413: {"description": "`body_too_large`, `image_too_large`, `too_many_images`: above a limit."},
    415: {"description": "`content_type`: neither an image nor a form."},
    422: {"description": "`unreadable_image`, `image_size`: the image cannot be decoded or classified."},
    429: {"description": "`busy`: too many images are waiting; try again after `Retry-After` seconds."},
    503: {"description": "`stopping`, `storage_unavailable`: try again after `Retry-After` seconds."},
    507: {"description": "`storage_failed`: the decision cannot be stored, for example because the disk is full."},
}
PARAMETERS = [
    {
        "name": name,
        "in": place,
        "required": False,
        "schema": {"type": "string", "maxLength": longest},
        "description": description,
    }
    for name, place, longest, description in (
        ("id", "query", LONGEST_ID, "Id of the image, unique for ever; a repeated request gets the same decision."),
        ("Idempotency-Key", "header", LONGEST_ID, "The same as `id`. A form of several images has ids of its own."),
        ("name", "query", LONGEST_NAME, "File name of the image, for reviewers."),
    )
]
FILE = {"type": "string", "format": "binary", "description": "The bytes of an image file."}
IDS = {
    "type": "array",
    "items": {"type": "string", "maxLength": LONGEST_ID},
    "description": "As many ids as images, in the same order; or none.",
}
FORM_FIELDS = {"image": {"type": "array", "items": FILE}, "id": IDS}
REQUEST_BODY = {
    "required": True,
    "content": {
        "image/*": {"schema": FILE},
        FORM: {"schema": {"type": "object", "required": ["image"], "properties": FORM_FIELDS}},
    },
}


def make_decide_router(service: "Service") -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["decide"])
    check_access = service.access.require("decide")

    @router.post(
        "/v1/decide",
        summary="Decide about one image, or about several",
        response_model=DecisionBody | DecisionsBody,
        responses=RESPONSES,
        openapi_extra={"parameters": PARAMETERS, "requestBody": REQUEST_BODY},
    )
    async def decide(request: Request) -> Response:
        await check_access(request)  # called here, since dependencies of FastAPI take longer than the check
        is_form = read_media_type(request) == FORM
        images = await (read_form(request, service.options.max_request_images) if is_form else read_body(request))
        outcomes = await service.worker.decide(images)
        bodies = await describe_outcomes(outcomes, service)
        body = DecisionsBody(decisions=bodies) if is_form else bodies[0]
        replay = {"Idempotent-Replay": "true"} if all(outcome.replayed for outcome in outcomes) else None
        return Response(body.model_dump_json(by_alias=True), media_type="application/json", headers=replay)

    @router.get(
        "/v1/decisions/{id_:path}",
        summary="The decision about an image that was sent before",
        dependencies=[Depends(check_access)],
    )
    def find_decision(id_: str) -> ServedDecision:
        return find_reviewed(id_, service)

    return router


async def read_body(request: Request) -> list[SubmittedImage]:
    """Read the image that is the body of a request."""
    kind = read_media_type(request)
    if kind not in RAW_TYPES and not kind.startswith("image/"):
        raise RequestError(
            415, "content_type", f"the content type is {kind[:100]!r}; expected image/*, or multipart/form-data."
        )
    content = await request.body()
    if not content:
        raise RequestError(400, "no_image", "the body is empty; send the bytes of an image file.")
    return [SubmittedImage(content, read_key(request), check_name(request.query_params.get("name")))]


async def read_form(request: Request, max_images: int) -> list[SubmittedImage]:
    """Read the images of a form, whatever their parts are named, and their ids."""
    try:
        async with request.form(max_files=max_images, max_fields=max_images + 1) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            ids = [value for value in form.getlist("id") if isinstance(value, str)]
            if not files:
                raise RequestError(400, "no_image", "the form has no file; send image files as parts named 'image'.")
            if ids and len(ids) != len(files):
                counts = f"{len(files)} images and {len(ids)} ids"
                raise RequestError(400, "id", f"the form has {counts}; expected as many ids as images, or none.")
            given = assign_key([*ids] or [None] * len(files), read_key(request))
            return [
                SubmittedImage(await file.read(), id_, check_name(file.filename))
                for file, id_ in zip(files, given, strict=True)
            ]
    except HTTPException as error:
        if error.detail.startswith("Too many"):  # only the text tells what is wrong
            raise too_many_images(max_images) from None
        raise


def read_media_type(request: Request) -> str:
    """Return the media type of a body, without parameters."""
    return request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()


def read_key(request: Request) -> str | None:
    """Return the id in the address or in the header Idempotency-Key of a request; None if there is none."""
    key = request.headers.get("idempotency-key")
    if "id" in request.query_params or key is None:
        return request.query_params.get("id")
    try:
        return key.encode("latin-1").decode()  # as Starlette decodes headers
    except UnicodeDecodeError:
        raise RequestError(400, "id", "the header Idempotency-Key is not UTF-8; send another id.") from None


def assign_key(ids: Sequence[str | None], key: str | None) -> list[str | None]:
    """Return the ids of images; the key of a request is that of its only image if it has no other."""
    if key is None or any(id_ is not None for id_ in ids):
        return list(ids)
    if len(ids) > 1:
        raise RequestError(400, "id", f"the request has {len(ids)} images and one id; send an id for each, or none.")
    return [key]


def check_name(name: str | None) -> str | None:
    """Return a file name that can be stored: without what cannot be printed, and not too long."""
    return "".join(one for one in name if one.isprintable())[:LONGEST_NAME] or None if name else None


async def describe_outcomes(outcomes: Sequence[StoredOutcome], service: "Service") -> list[DecisionBody]:
    """Return the decisions of a request; those that were made before may have been reviewed."""
    if not any(outcome.replayed for outcome in outcomes):
        return [describe_decision(outcome.decision, service) for outcome in outcomes]
    return await run_in_threadpool(
        lambda: [
            describe_decision(one.decision, service, service.decisions.find_review(one.decision.number))
            for one in outcomes
        ]
    )


def describe_decision(stored: StoredDecision, service: "Service", review: FoundReview | None = None) -> DecisionBody:
    """Return a decision as it is sent; its policy may be an earlier one."""
    deployment = service.decisions.find_deployment(stored.deployment)
    is_done = review is not None and review.label is not None
    shared = {name: value for name, value in vars(stored).items() if name in DecisionBody.model_fields}
    about = {
        "interval": stored.interval,
        "review": "none" if not stored.to_review else "done" if is_done else "waiting",
        "guarantee": deployment.guarantee,
        "policy": deployment.checksum,
        "decided_at": as_time(stored.decided_at),
    }
    return DecisionBody(**shared | about)


def find_reviewed(id_: str, service: "Service") -> ServedDecision:
    """Return a stored decision with its review, or raise an error for an id that was never sent."""
    check_id(id_)
    stored = service.decisions.find([id_]).get(id_)
    if stored is None:
        raise RequestError(404, "unknown_id", f"there is no image with the id {id_[:LONGEST_ID]!r}; check the id.")
    review = service.decisions.find_review(stored.number)
    decision = describe_decision(stored, service, review).model_dump()
    if review is None or review.label is None:  # a label that was taken back leaves the time of that
        return ServedDecision(**decision)
    names = service.decisions.find_deployment(stored.deployment).policy.class_names
    return ServedDecision(
        **decision,
        reviewed_label=review.label,
        reviewed_class=None if names is None else names[review.label],
        reviewer=review.reviewer,
        reviewed_at=as_time(review.reviewed_at or 0),
    )


def as_time(seconds: float) -> datetime.datetime:
    """Return a time of the database."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
