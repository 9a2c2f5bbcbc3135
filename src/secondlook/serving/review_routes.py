"""Routes of the review queue: data and images of the review page, and files for labeling tools."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StrictInt, StrictStr

from secondlook.extension import Answer, find_class
from secondlook.serving.access import require
from secondlook.serving.database import events
from secondlook.serving.decide_routes import describe_decision
from secondlook.serving.label_files import parse_label_file
from secondlook.serving.responses import ErrorBody, LabelingGoal, RequestError, ServedDecision
from secondlook.serving.review_exports import FILE_TYPES, ExportFormat, ReviewExport
from secondlook.serving.service import CurrentService, Service
from secondlook.serving.store import (
    QueueState,
    ReviewCounts,
    ReviewPace,
    StoredDecision,
    StoredEvent,
    make_unknown_error,
)
from secondlook.serving.tokens import Principal

MAX_LEASED = 50
MAX_NUMBER = 2**53
"""Larger integers are not exact in JSON, and never occur in the database."""


class ClassBody(BaseModel):
    """A candidate class."""

    label: int = Field(description="Index of the class.")
    class_name: str | None = Field(serialization_alias="class", description="Class name, if known.")
    probability: float = Field(description="Probability in one look, or the mean over all looks.")


class AnswersBody(BaseModel):
    """The possible labels of an image."""

    classes: tuple[str, ...] | None = Field(description="Names of all classes; null if unknown.")
    answers: tuple[str, ...] = Field(description="Answers other than a class.")


class LookBody(ClassBody):
    """The prediction of one look at an image."""

    view: str = Field(description="The view, e.g. `hflip`.")


class EscalationBody(BaseModel, frozen=True):
    """The question of a reviewer who wants a second opinion."""

    by: str = Field(description="Name of the reviewer.")
    comment: str | None


class BlindBody(BaseModel, frozen=True):
    """An image to label without its prediction: an audit, or an image labeled for a policy."""

    id: str = Field(description="Id of the image.")
    number: int = Field(description="Number of the image in URLs.")
    name: str | None = Field(description="File name of the image, if it was sent.")
    image: bool = Field(description="Whether the image is stored and can be displayed.")
    skips: int = Field(description="Number of times the image was skipped.")
    second: bool = Field(
        description="Whether a second opinion is wanted: others escalated or disagree about the image."
    )
    asked: EscalationBody | None = Field(description="The last escalation, if any.")


class ReviewBody(BlindBody, ServedDecision, frozen=True):
    """A rejected image to review."""

    likely: list[ClassBody] = Field(description="The likeliest classes, the predicted one first.")
    views: list[LookBody] = Field(description="The prediction of each look, in order.")


class ProgressBody(BaseModel):
    """Progress of the review."""

    counts: ReviewCounts
    pace: ReviewPace
    goal: LabelingGoal | None = Field(default=None, description="Goal of labeling for a policy; null in a service.")


class LeaseBody(ProgressBody):
    """The images leased to the reviewer, in review order."""

    items: list[ReviewBody | BlindBody]
    last: int | None = Field(description="Number of the image that this reviewer labeled last, to undo it.")
    lease_seconds: float = Field(description="Duration of the lease; request again to renew it.")


class UndoBody(ProgressBody):
    """An image leased to the reviewer again."""

    item: ReviewBody | BlindBody


RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "`unknown_number`, `no_image`, `unknown_view`, `no_class_names`: none."},
    409: {
        "model": ErrorBody,
        "description": "`lease_lost`, `already_reviewed`: another reviewer has the image. `not_labeled`: nobody has.",
    },
}

router = APIRouter(tags=["review"], responses=RESPONSES)
check_reviewer = Depends(require("review"))
Reviewer = Annotated[Principal, check_reviewer]


async def check_number(number: int) -> int:
    """Return the number of an image; raise an error for an impossible one."""
    if not 0 < number < MAX_NUMBER:
        raise make_unknown_error(number)
    return number


Number = Annotated[int, Depends(check_number)]
Label = Annotated[
    StrictInt | StrictStr, Body(embed=True, description="Index or name of the class, or an answer like `bad image`.")
]
COMMENT = {"max_length": 1000, "pattern": r"^[^\x00]*$"}
"""Databases reject null characters."""
Comment = Annotated[str | None, Body(**COMMENT)]
CommentOnly = Annotated[str | None, Body(embed=True, **COMMENT)]


@router.get("/v1/review/classes", dependencies=[check_reviewer])
def list_classes(service: CurrentService) -> AnswersBody:
    """Return all classes, and the possible answers other than a class."""
    names = find_class_names(service)
    return AnswersBody(classes=names, answers=tuple(answer.text for answer in Answer.list_offered(names or ())))


@router.post("/v1/review/lease")
def lease(
    service: CurrentService,
    reviewer: Reviewer,
    count: Annotated[int, Body(ge=0, le=MAX_LEASED, description="Number of images to lease.")] = 1,
    audits: Annotated[bool, Body(description="Whether to lease audits only.")] = False,
) -> LeaseBody:
    """Lease images to review, and renew existing leases. Audits come without their predictions."""
    items = service.reviews.lease(reviewer, count, only_audits=audits)
    return LeaseBody(
        items=describe_items(items, service),
        last=service.reviews.find_last(reviewer.session, only_audits=audits),
        lease_seconds=service.reviews.lease_seconds,
        **dict(describe_progress(service, reviewer)),
    )


@router.post("/v1/review/release")
def release(service: CurrentService, reviewer: Reviewer) -> ProgressBody:
    """Release all leased images."""
    service.reviews.release(reviewer.session)
    return describe_progress(service, reviewer)


@router.post("/v1/review/{number}/label")
def label_image(
    reviewer: Reviewer,
    number: Number,
    service: CurrentService,
    label: Label,
    comment: Comment = None,
    seconds: Annotated[float | None, Body(ge=0, le=1e6, description="Time that the image was on the screen.")] = None,
) -> ProgressBody:
    """Label an image. Idempotent."""
    service.reviews.label(
        number, find_label(label, service, number), reviewer, comment=comment or None, seconds=seconds
    )
    return describe_progress(service, reviewer)


@router.post("/v1/review/{number}/escalate")
def escalate(reviewer: Reviewer, number: Number, service: CurrentService, comment: CommentOnly = None) -> ProgressBody:
    """Hand an image to another reviewer, for a second opinion. Idempotent."""
    if service.labeling is not None:
        raise RequestError(409, "labeling", "there is no second opinion while labeling for a policy.")
    service.reviews.escalate(number, reviewer, comment=comment or None)
    return describe_progress(service, reviewer)


@router.post("/v1/review/{number}/skip")
def skip(reviewer: Reviewer, number: Number, service: CurrentService) -> ProgressBody:
    """Postpone an image. Idempotent."""
    service.reviews.skip(number, reviewer.session)
    return describe_progress(service, reviewer)


@router.post("/v1/review/{number}/undo")
def undo(reviewer: Reviewer, number: Number, service: CurrentService) -> UndoBody:
    """Undo your own label, escalation or skip. Idempotent."""
    (item,) = describe_items([service.reviews.undo(number, reviewer)], service)
    return UndoBody(item=item, **dict(describe_progress(service, reviewer)))


@router.get("/v1/reviews", dependencies=[check_reviewer], response_class=StreamingResponse)
def export_reviews(
    service: CurrentService,
    format_: Annotated[ExportFormat, Query(alias="format")] = "csv",
    state: Literal["waiting", "done", "all"] = "waiting",
) -> Response:
    """Return the review queue as a file."""
    states: tuple[QueueState, ...] = ("waiting", "done", "expired") if state == "all" else (state,)
    export = ReviewExport(service, find_class_names(service), states)
    suffix, media_type = FILE_TYPES[format_]
    headers = {"Content-Disposition": f'attachment; filename="reviews-{state}.{suffix}"'}
    return StreamingResponse(export.write(format_), media_type=media_type, headers=headers)


@router.post(
    "/v1/reviews",
    openapi_extra={"requestBody": {"required": True, "content": {"text/csv": {}, "application/json": {}}}},
)
async def import_reviews(request: Request, service: CurrentService, reviewer: Reviewer) -> dict[str, int]:
    """Import labels from a CSV or Parquet file, or from Label Studio."""
    content = await request.body()
    by_reviewer, for_others = service.labeling is None, reviewer.may("administer")
    labels = await run_in_threadpool(parse_label_file, content, find_class_names(service), by_reviewer=by_reviewer)
    new = await run_in_threadpool(service.reviews.add_labels, labels, reviewer.name, for_others=for_others)
    if service.labeling is not None:
        await run_in_threadpool(service.labeling.update)
    return {"labels": len(labels), "new": new}


def describe_progress(service: Service, reviewer: Principal) -> ProgressBody:
    """Return the progress of the review."""
    goal = None if service.labeling is None else service.labeling.update()  # before counting: changes the queue
    return ProgressBody(counts=service.reviews.counts(), pace=service.reviews.pace(reviewer.session), goal=goal)


def find_class_names(service: Service) -> tuple[str, ...] | None:
    """Return the names of all classes; None if unknown."""
    if service.labeling is not None:
        return service.labeling.class_names
    classifier = service.live.plan.resolved.classifier
    candidates = (classifier.class_names, service.live.deployment.policy.class_names)
    known = [names for names in candidates if names and classifier.n_classes in (None, len(names))]
    return known[0] if known else None


def find_label(label: int | str, service: Service, number: int) -> int:
    """Return the class or `Answer` of a label in a request."""
    found = find_class(label, find_class_names(service), str(number))
    if found >= 2**31:
        raise RequestError(422, "invalid", f"label {found} is not a class; expected the index of a class.")
    return found


def describe_items(items: Sequence[StoredDecision], service: Service) -> list[ReviewBody | BlindBody]:
    """Return images of the queue as response bodies."""
    urgent = [item.number for item in items if item.urgent]
    asked = service.reviews.find_events(urgent, events.c.action == "escalate")
    return [describe_item(item, service, asked.get(item.number)) for item in items]


def describe_item(item: StoredDecision, service: Service, asked: StoredEvent | None) -> ReviewBody | BlindBody:
    """Return an image of the queue as a response body."""
    about = {"id": item.id, "number": item.number, "name": item.name, "image": item.has_image, "skips": item.skips}
    escalation = None if asked is None else EscalationBody(by=asked.by, comment=asked.comment)
    about |= {"second": item.urgent, "asked": escalation}
    if item.audit or service.labeling is not None:
        return BlindBody(**about)
    names = find_class_names(service)

    def describe_class(label: int, probability: float) -> dict[str, Any]:
        return {"label": label, "class_name": None if names is None else names[label], "probability": probability}

    values = describe_decision(item, service) | {
        "class_name": None if names is None else names[item.label],
        "likely": [describe_class(*one) for one in item.likely],
        "views": [{"view": view, **describe_class(*one)} for view, *one in item.views],
    }
    return ReviewBody(**values | about)
