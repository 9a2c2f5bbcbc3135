"""Routes of the trail: search, history and correction of labels, and the agreement of reviewers."""

from datetime import datetime
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from secondlook.extension import name_label
from secondlook.serving.access import require
from secondlook.serving.agreement import GivenLabel, describe_agreement
from secondlook.serving.database import decisions, events, reviews
from secondlook.serving.review_routes import (
    RESPONSES,
    Comment,
    Label,
    Number,
    ProgressBody,
    Reviewer,
    check_reviewer,
    describe_progress,
    find_class_names,
    find_label,
)
from secondlook.serving.service import CurrentService
from secondlook.serving.store import IN_STATE, IS_DISPUTED, StoredDecision, StoredEvent
from secondlook.serving.tokens import Principal
from secondlook.serving.trail import IS_ACTIVE, Action

ItemState = Literal["waiting", "done", "disputed", "expired", "all"]
OWN = "me"

router = APIRouter(tags=["review"], responses=RESPONSES)


class ItemBody(BaseModel):
    """An image to review, with its label in force."""

    number: int
    id: str
    name: str | None
    image: bool = Field(description="Whether the image is stored and can be displayed.")
    audit: bool
    state: Literal["waiting", "done", "disputed", "expired"]
    label: int | None = Field(description="The label in force; without one, that of the caller, if any.")
    class_name: str | None = Field(serialization_alias="class", description="Name of the label, if known.")
    reviewer: str | None = Field(description="The reviewer whose label settled the image.")
    reviewed_at: datetime | None
    comment: str | None
    labels: int = Field(description="Number of reviewers who labeled the image.")


class ItemsBody(BaseModel):
    """A page of images; `next` is the parameter `before` of the next page, null on the last one."""

    items: list[ItemBody]
    next: int | None


class EventBody(BaseModel):
    """Something that a reviewer did with an image."""

    at: datetime
    by: str
    action: Action
    label: int | None
    class_name: str | None = Field(serialization_alias="class", description="Name of the label, if known.")
    comment: str | None
    before: int | None = Field(description="The label that it replaced.")


@router.get("/v1/review/items")
def list_items(
    service: CurrentService,
    reviewer: Reviewer,
    state: ItemState = "all",
    label: Annotated[str | None, Query(description="Label in force: name or index of a class, or an answer.")] = None,
    by: Annotated[str | None, Query(alias="reviewer", description="Who labeled it; `me` is the caller.")] = None,
    query: Annotated[str, Query(max_length=200, description="Part of the id or of the file name.")] = "",
    audits: Annotated[bool, Query(description="Whether to list audits only.")] = False,
    before: Annotated[int, Query(ge=0, le=2**53, description="`next` of the previous page.")] = 0,
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
    items = service.reviews.find_items(conditions, start=before, limit=limit + 1)
    is_own = (events.c.by == reviewer.name) & (events.c.action != "decide")
    own, names = service.reviews.find_events([item.number for item in items], is_own), find_class_names(service)
    found = [describe_found(item, own.get(item.number), names) for item in items[:limit]]
    return ItemsBody(items=found, next=before + limit if len(items) > limit else None)


@router.get("/v1/review/{number}/history")
def read_history(reviewer: Reviewer, number: Number, service: CurrentService) -> dict[str, list[EventBody]]:
    """Return the history of an image. Until it has a label in force, only administrators see the labels of others."""
    is_open = service.reviews.read(number).reviewed_label is not None or reviewer.may("administer")
    names, found = find_class_names(service), service.reviews.read_history(number)
    return {"events": [describe_event(one, names, is_shown=is_open or one.by == reviewer.name) for one in found]}


@router.post("/v1/review/{number}/correct")
def correct(
    reviewer: Reviewer,
    number: Number,
    service: CurrentService,
    label: Label,
    comment: Comment = None,
) -> ProgressBody:
    """Replace your own label; an administrator decides the label for everyone. Idempotent."""
    service.reviews.correct(number, find_label(label, service, number), reviewer, comment=comment or None)
    return describe_progress(service, reviewer)


@router.post("/v1/review/reviewers/{name:path}/withdraw")
def withdraw(
    name: str, service: CurrentService, administrator: Annotated[Principal, Depends(require("administer"))]
) -> dict[str, int]:
    """Withdraw all labels of a reviewer; the images wait again. Idempotent."""
    return {"withdrawn": service.reviews.withdraw(name, administrator)}


@router.get("/v1/review/agreement", dependencies=[check_reviewer])
def read_agreement(service: CurrentService) -> dict[str, Any]:
    """Return how well reviewers agree, their estimated error rate, and their speed.

    Only labels of images drawn for double review, and imported ones, are compared: other images with several labels
    were chosen because of their labels. `fast` is the share of labels in less than a second.
    """
    given = [
        GivenLabel(one.image, one.by, one.label, one.seconds, one.double or one.action == "import")
        for one in service.reviews.read_opinions()
    ]
    found, names = describe_agreement(given, service.live.deployment.reviewer_error), find_class_names(service)
    found["classes"] = [row | {"class": name_shown(row["label"], names)} for row in found["classes"]]
    return found


def name_shown(label: int | None, names: tuple[str, ...] | None) -> str | None:
    """Return the name of a label; None if it is unknown."""
    return None if label is None or (names is None and label >= 0) else name_label(label, names)


def describe_found(item: StoredDecision, own: StoredEvent | None, names: tuple[str, ...] | None) -> ItemBody:
    """Return an image of a search; `own` is the active label or escalation of the caller."""
    label = own.label if item.reviewed_label is None and own is not None else item.reviewed_label
    about = {"image": item.has_image, "label": label, "class_name": name_shown(label, names)}
    if item.state == "waiting" and (item.urgent or item.label_count):
        about["state"] = "disputed"
    return ItemBody(**item._asdict() | {"labels": item.label_count} | about)


def describe_event(event: StoredEvent, names: tuple[str, ...] | None, *, is_shown: bool) -> EventBody:
    """Return an event of a history, with or without its label."""
    hidden = {} if is_shown else {"label": None, "before": None}
    if not is_shown and event.action != "escalate":
        hidden["comment"] = None
    name = name_shown(event.label, names) if is_shown else None
    return EventBody(**event._asdict() | hidden, class_name=name)
