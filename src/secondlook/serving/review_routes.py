"""Routes of the review queue: the page for people, its data and images, and files for labeling tools."""

import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StrictInt, StrictStr

from secondlook import apply_views
from secondlook.extension import encode_png, find_class, read_image
from secondlook.serving.decide_routes import as_time
from secondlook.serving.decision_store import StoredImage
from secondlook.serving.pages import render_page
from secondlook.serving.request_images import fit_image
from secondlook.serving.responses import RequestError
from secondlook.serving.review_exports import FILE_TYPES, ExportFormat, ReviewExport, parse_label_file
from secondlook.serving.review_store import QueueState, ReviewCounts, ReviewItem, ReviewPace, make_unknown_error
from secondlook.serving.tokens import Principal

if TYPE_CHECKING:
    from secondlook.serving.service import Service

OF_BROWSERS = ("image/jpeg", "image/png", "image/webp", "image/bmp")
"""Media types that every browser shows."""
MAX_LEASED = 50
"""Number of images that a reviewer can hold."""
MAX_NUMBER = 2**53
"""Larger numbers are not whole in JSON, and not in the database."""

STATES: dict[str, tuple[QueueState, ...]] = {
    "waiting": ("waiting",),
    "done": ("done",),
    "all": ("waiting", "done", "expired"),
}


class ClassBody(BaseModel):
    """A class that an image may have."""

    label: int = Field(description="Index of the class.")
    class_name: str | None = Field(serialization_alias="class", description="Its name, if it is known.")
    probability: float = Field(description="Mean probability over the looks.")


class LookBody(ClassBody):
    """What one look at an image predicted."""

    view: str = Field(description="The view, such as `hflip`.")
    probability: float = Field(description="Probability of the class in this view.")


class ReviewBody(BaseModel):
    """An image to be reviewed."""

    number: int = Field(description="Identifies the image in addresses.")
    id: str
    name: str | None = Field(description="File name of the image, if it was sent.")
    label: int = Field(description="Index of the predicted class.")
    class_name: str | None = Field(
        serialization_alias="class", description="Name of the predicted class, if it is known."
    )
    confidence: float
    interval: tuple[float, float] | None
    accept: bool = Field(description="Whether the prediction was accepted; such images are audited.")
    likely: list[ClassBody] = Field(description="The likeliest classes, the predicted one first.")
    views: list[LookBody] = Field(description="What each look predicted, in their order.")
    image: bool = Field(description="Whether the image is stored, so that it can be shown.")
    skips: int = Field(description="How often the image was skipped.")
    decided_at: datetime.datetime


class ProgressBody(BaseModel):
    """How far the review is."""

    counts: ReviewCounts
    pace: ReviewPace


class LeaseBody(ProgressBody):
    """The images that the reviewer has, most doubtful first."""

    items: list[ReviewBody]
    last: int | None = Field(description="Number of the image that this reviewer labeled last, which can be undone.")
    lease_seconds: float = Field(description="The images are the reviewer's for so long; ask again to keep them.")


class UndoBody(ProgressBody):
    """An image that is the reviewer's again."""

    item: ReviewBody


class LeaseRequest(BaseModel):
    """How many images a reviewer wants to have."""

    count: int = Field(default=1, ge=0, le=MAX_LEASED)


class LabelRequest(BaseModel):
    """What a reviewer found."""

    label: StrictInt | StrictStr = Field(description="Index or name of the class.")


def make_review_router(service: "Service") -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["review"])
    reviewer = Depends(service.access.require("review"))

    @router.get("/review", include_in_schema=False)
    def show_page(request: Request, principal: Annotated[Principal, reviewer]) -> Response:
        return render_page("review.html", principal, request=request)

    _add_queue(router, service)
    _add_images(router, service)
    _add_files(router, service)
    return router


def _add_queue(router: APIRouter, service: "Service") -> None:
    """Add the routes by which images are given to reviewers, and labels come back."""
    reviewer = Depends(service.access.require("review"))
    reviews = service.reviews

    def describe_progress(principal: Principal) -> ProgressBody:
        return ProgressBody(counts=reviews.counts(), pace=reviews.pace(principal.session))

    @router.get("/v1/review/classes", summary="The names of all classes; null if unknown", dependencies=[reviewer])
    def list_classes() -> dict[str, tuple[str, ...] | None]:
        return {"classes": find_class_names(service)}

    @router.post("/v1/review/lease", summary="Get images to review, and keep those that one has")
    def lease(request: LeaseRequest, principal: Annotated[Principal, reviewer]) -> LeaseBody:
        items = reviews.lease(principal.session, request.count)
        names = find_class_names(service)
        return LeaseBody(
            items=[describe_item(item, names) for item in items],
            last=reviews.find_last(principal.session),
            lease_seconds=reviews.lease_seconds,
            **dict(describe_progress(principal)),
        )

    @router.post("/v1/review/release", summary="Give all images back")
    def release(principal: Annotated[Principal, reviewer]) -> ProgressBody:
        reviews.release(principal.session)
        return describe_progress(principal)

    @router.post("/v1/review/{number}/label", summary="Label an image; may be repeated")
    def label(number: int, request: LabelRequest, principal: Annotated[Principal, reviewer]) -> ProgressBody:
        check_number(number)
        found = find_class(request.label, find_class_names(service), str(number))
        if found >= 2**31:
            raise RequestError(422, "invalid", f"label {found} is no class; expected the index of a class.")
        reviews.label(number, found, principal)
        return describe_progress(principal)

    @router.post("/v1/review/{number}/skip", summary="Review an image later; may be repeated")
    def skip(number: int, principal: Annotated[Principal, reviewer]) -> ProgressBody:
        reviews.skip(check_number(number), principal.session)
        return describe_progress(principal)

    @router.post("/v1/review/{number}/undo", summary="Take a label or a skip of one's own back; may be repeated")
    def undo(number: int, principal: Annotated[Principal, reviewer]) -> UndoBody:
        item = reviews.undo(check_number(number), principal)
        described = describe_item(item, find_class_names(service))
        return UndoBody(item=described, **dict(describe_progress(principal)))


def _add_images(router: APIRouter, service: "Service") -> None:
    """Add the routes of pictures."""
    reviewer = Depends(service.access.require("review"))

    @router.get("/v1/review/{number}/image", summary="The image as it was sent", dependencies=[reviewer])
    def show_image(number: int) -> Response:
        image = find_image(service, number)
        if image.media_type in OF_BROWSERS:
            return Response(image.content, media_type=image.media_type)
        pixels = read_image(image.content, max_pixels=service.options.max_pixels)
        return Response(encode_png(pixels), media_type="image/png")

    @router.get(
        "/v1/review/{number}/views/{position}",
        summary="One view of an image, as the classifier saw it",
        dependencies=[reviewer],
    )
    def show_view(number: int, position: int) -> Response:
        content = find_image(service, number).content
        views = service.reviews.read(number).views
        if not 0 <= position < len(views):
            raise RequestError(
                404, "unknown_view", f"image {number} has {len(views)} views; there is none at position {position}."
            )
        image = read_image(content, max_pixels=service.options.max_pixels)
        looks = [view for view, *_ in views[: position + 1]]  # a set of views starts with the identity
        shown = apply_views(fit_image(service.live.plan, image), looks)[0, position]
        return Response(encode_png(shown), media_type="image/png")


def _add_files(router: APIRouter, service: "Service") -> None:
    """Add the exports and imports of labeling tools and spreadsheets."""
    reviewer = Depends(service.access.require("review"))

    @router.get(
        "/v1/reviews",
        summary="The review queue as a file",
        dependencies=[reviewer],
        response_class=StreamingResponse,
    )
    def export_reviews(
        format_: Annotated[ExportFormat, Query(alias="format")] = "csv",
        state: Annotated[Literal["waiting", "done", "all"], Query()] = "waiting",
    ) -> Response:
        export = ReviewExport(service, find_class_names(service), STATES[state])
        suffix, media_type = FILE_TYPES[format_]
        headers = {"Content-Disposition": f'attachment; filename="reviews-{state}.{suffix}"'}
        return StreamingResponse(export.write(format_), media_type=media_type, headers=headers)

    @router.post(
        "/v1/reviews",
        summary="Import labels from a CSV or Parquet file, or from Label Studio",
        openapi_extra={"requestBody": {"required": True, "content": {"text/csv": {}, "application/json": {}}}},
    )
    async def import_reviews(request: Request, principal: Annotated[Principal, reviewer]) -> dict[str, int]:
        content = await request.body()
        labels = await run_in_threadpool(parse_label_file, content, find_class_names(service))
        new = await run_in_threadpool(service.reviews.add_labels, labels, principal.name)
        return {"labels": len(labels), "new": new}


def find_class_names(service: "Service") -> tuple[str, ...] | None:
    """Return the names of all classes; None if they are unknown, as for a model without names."""
    classifier = service.live.plan.resolved.classifier
    candidates = (classifier.class_names, service.live.deployment.policy.class_names)
    known = [names for names in candidates if names and classifier.n_classes in (None, len(names))]
    return known[0] if known else None


def describe_item(item: ReviewItem, names: tuple[str, ...] | None) -> ReviewBody:
    """Return an image of the queue as it is sent."""
    stored = item.decision

    def name(label: int) -> str | None:
        return None if names is None else names[label]

    return ReviewBody(
        number=stored.number,
        id=stored.id,
        name=stored.name,
        label=stored.label,
        class_name=name(stored.label),
        confidence=stored.confidence,
        interval=stored.interval,
        accept=stored.accept,
        likely=[ClassBody(label=one, class_name=name(one), probability=share) for one, share in item.likely],
        views=[
            LookBody(view=view, label=one, class_name=name(one), probability=share) for view, one, share in item.views
        ],
        image=item.has_image,
        skips=item.skips,
        decided_at=as_time(stored.decided_at),
    )


def check_number(number: int) -> int:
    """Return the number of an image, or raise an error for one that cannot be."""
    if not 0 < number < MAX_NUMBER:
        raise make_unknown_error(number)
    return number


def find_image(service: "Service", number: int) -> StoredImage:
    """Return a stored image."""
    image = service.reviews.read_image(check_number(number))
    if image is None:
        raise RequestError(
            404, "no_image", f"image {number} is not stored; it was removed after its time, or never kept."
        )
    return image
