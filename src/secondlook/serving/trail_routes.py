"""Routes of the trail: search, history and correction of labels, and the agreement of reviewers."""

from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Body, Depends, Query
from pydantic import BaseModel, Field

from secondlook.extension import name_label
from secondlook.serving.access import require
from secondlook.serving.agreement import AgreementBody, GivenLabel, describe_agreement
from secondlook.serving.database import decisions, events, reviews
from secondlook.serving.review_routes import (
    COMMENT,
    RESPONSES,
    Label,
    Number,
    ProgressBody,
    Reviewer,
    describe_progress,
    find_class_names,
    find_label,
)
from secondlook.serving.service import CurrentService
from secondlook.serving.store import IN_STATE, IS_DISPUTED, StoredDecision, StoredEvent
from secondlook.serving.tokens import Principal
from secondlook.serving.trail import IS_ACTIVE, Action
from secondlook.serving.watcher import format_time

ItemState = Literal["waiting", "done", "disputed", "expired", "all"]
OWN = "me"

router = APIRouter(tags=["review"], responses=RESPONSES)
Administrator = Annotated[Principal, Depends(require("administer"))]


class ItemBody(BaseModel):
    """An image to review, with its label in force."""

    number: int
    id: str
    name: str | None = Field(description="File name of the image, if it was sent.")
    image: bool = Field(description="Whether the image is stored and can be displayed.")
    audit: bool
    state: Literal["waiting", "done", "disputed", "expired"]
    label: int | None = Field(description="The label in force; without one, that of the caller, if any.")
    class_name: str | None = Field(serialization_alias="class", description="Name of the label, if known.")
    reviewer: str | None = Field(description="The reviewer whose label settled the image.")
    reviewed_at: str | None
    comment: str | None
    labels: int = Field(description="Number of reviewers who labeled the image.")


class ItemsBody(BaseModel):
    """A page of images."""

    items: list[ItemBody]
    next: int | None = Field(description="Parameter `before` of the next page; null on the last one.")


class EventBody(BaseModel):
    """Something that a reviewer did with an image."""

    at: str
    by: str
    action: Action
    label: int | None
    class_name: str | None = Field(serialization_alias="class", description="Name of the label, if known.")
    comment: str | None
    before: int | None = Field(description="The label that it replaced.")


class HistoryBody(BaseModel):
    """Everything that reviewers did with an image, oldest first."""

    events: list[EventBody]


class WithdrawalBody(BaseModel):
    """Result of a withdrawal."""

    withdrawn: int = Field(description="Number of labels, escalations and decisions.")


@router.get("/v1/review/items")
def list_items(
    service: CurrentService,
    reviewer: Reviewer,
    state: ItemState = "all",
    label: Annotated[str | None, Query(description="Label in force: name or index of a class, or an answer.")] = None,
    by: Annotated[str | None, Query(alias="reviewer", description="Who labeled it; `me` is the caller.")] = None,
    query: Annotated[str, Query(max_length=200, description="Part of the id or of the file name.")] = "",
    audits: Annotated[bool, Query(description="Whether to list audits only.")] = False,
    before: Annotated[int | None, Query(ge=-(2**53), le=2**53, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> ItemsBody:
    """Search images to review: the newest labels first, then images without a label in review order."""
    conditions = [] if state == "all" else [IS_DISPUTED if state == "disputed" else IN_STATE[state]]
    if label is not None:
        conditions.append(reviews.c.label == find_label(label, service, 0))
    if by is not None:
        name = reviewer.name if by == OWN else by
        conditions.append(reviews.c.number.in_(sa.select(events.c.image).where(events.c.by == name, IS_ACTIVE)))
    if query:
        conditions.append(
            sa.or_(*(one.icontains(query, autoescape=True) for one in (decisions.c.id, decisions.c.name)))
        )
    if audits:
        conditions.append(reviews.c.audit)
    items, following = service.reviews.find_items(conditions, before=before, limit=limit)
    own = service.reviews.find_events([item.number for item in items], by=reviewer.name)
    found = [describe_found(item, own.get(item.number), find_class_names(service)) for item in items]
    return ItemsBody(items=found, next=following)


@router.get("/v1/review/{number}/history")
def read_history(reviewer: Reviewer, number: Number, service: CurrentService) -> HistoryBody:
    """Return the history of an image. Until it has a label in force, only administrators see the labels of others."""
    is_open = service.reviews.read(number).reviewed_label is not None or reviewer.may("administer")
    names, found = find_class_names(service), service.reviews.read_history(number)
    shown = [describe_event(one, names, is_shown=is_open or one.by == reviewer.name) for one in found]
    return HistoryBody(events=shown)


@router.post("/v1/review/{number}/correct")
def correct(
    reviewer: Reviewer,
    number: Number,
    service: CurrentService,
    label: Label,
    comment: Annotated[str | None, Body(**COMMENT)] = None,
) -> ProgressBody:
    """Replace your own label; an administrator decides the label for everyone. Idempotent."""
    service.reviews.correct(number, find_label(label, service, number), reviewer, comment=comment or None)
    return describe_progress(service, reviewer)


@router.post("/v1/review/reviewers/{name:path}/withdraw")
def withdraw(name: str, service: CurrentService, administrator: Administrator) -> WithdrawalBody:
    """Withdraw all labels of a reviewer; the images wait again. Idempotent."""
    return WithdrawalBody(withdrawn=service.reviews.withdraw(name, administrator))


@router.get("/v1/review/agreement", dependencies=[Depends(require("review"))])
def read_agreement(service: CurrentService) -> AgreementBody:
    """Return how well reviewers agree, their estimated error rate, and their speed.

    Only the first two labels of images drawn for double review, and imported ones, are compared: other images with
    several labels were chosen because of their labels.
    """
    given = [
        GivenLabel(one.image, one.by, one.label, one.seconds, is_blind=one.double or one.action == "import")
        for one in service.reviews.read_opinions()
    ]
    found, names = describe_agreement(given, service.live.deployment.reviewer_error), find_class_names(service)
    for row in found.classes:
        row.class_name = name_shown(row.label, names)
    return found


def name_shown(label: int | None, names: tuple[str, ...] | None) -> str | None:
    """Return the name of a label; None if it is unknown."""
    return None if label is None or (names is None and label >= 0) else name_label(label, names)


def describe_found(item: StoredDecision, own: StoredEvent | None, names: tuple[str, ...] | None) -> ItemBody:
    """Return an image of a search; `own` is the active label or escalation of the caller."""
    is_disputed = item.state == "waiting" and (item.urgent or item.label_count > 0)
    label = own.label if item.reviewed_label is None and own is not None else item.reviewed_label
    at = item.reviewed_at
    values: dict[str, Any] = {name: getattr(item, name) for name in ("number", "id", "name", "audit", "comment")}
    return ItemBody(
        **values,
        image=item.has_image,
        state="disputed" if is_disputed else item.state,
        label=label,
        class_name=name_shown(label, names),
        reviewer=item.reviewer,
        reviewed_at=None if at is None else format_time(at),
        labels=item.label_count,
    )


def describe_event(event: StoredEvent, names: tuple[str, ...] | None, *, is_shown: bool) -> EventBody:
    """Return an event of a history, with or without its label."""
    label, before = (event.label, event.before) if is_shown else (None, None)
    comment = event.comment if is_shown or event.action == "escalate" else None
    return EventBody(
        at=format_time(event.at),
        by=event.by,
        action=event.action,
        label=label,
        class_name=name_shown(label, names),
        comment=comment,
        before=before,
    )
