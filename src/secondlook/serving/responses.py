"""Decisions and errors of the service as JSON, shared by the server and `Client`."""

import datetime
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, Field

from secondlook.extension import ServingError


class RequestError(ServingError):
    """A request that failed: an HTTP status, a code for programs and a message for people."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})

    def encode(self, path: str) -> bytes:
        """Return the error as JSON, in the form of the protocol that a path belongs to."""
        content = str(self) if path.startswith("/v2") else {"code": self.code, "message": str(self)}
        return json.dumps({"error": content}).encode()


class ErrorFields(BaseModel):
    """An error for programs and for people."""

    code: str
    message: str


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorFields | str = Field(description="Code and message; below /v2 only the message.")


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "`invalid`, `host`, `headers_too_large`: the request is not valid.",
        401: "`token`: the token is missing or wrong, and the route needs one.",
        403: "`permission`, `cross_site`, `csrf`, `proxy`: the sender may not do this.",
        408: "`slow_body`: the body did not arrive in time.",
        413: "`body_too_large`: above a limit.",
        422: "`invalid`: a parameter or the body is not valid.",
        429: "`busy`: retry after `Retry-After` seconds.",
        500: "`internal`: an unexpected failure; see the log of the service.",
        503: "`storage_unavailable`, `tokens`: the database or the tokens cannot be read.",
        507: "`storage_failed`: the database cannot be written, for example because the disk is full.",
    }.items()
}
"""Errors that any route may return, for the description of the API."""


class ServedGuarantee(BaseModel, frozen=True):
    """The guarantee of a policy for accepted images."""

    risk: float = Field(description="Largest error rate among accepted images.")
    delta: float = Field(description="Failure probability of the guarantee.")
    text: str = Field(description="The guarantee in words.")


class ServedDecision(BaseModel, frozen=True):
    """The decision about one image, with its review, if any."""

    id: str = Field(description="Id of the image, from the request or generated.")
    label: int = Field(description="Index of the predicted class, whether accepted or not.")
    labels: tuple[int, ...] | None = Field(default=None, description="The top-k classes if k is above 1.")
    class_name: str | None = Field(
        validation_alias=AliasChoices("class", "class_name"),
        serialization_alias="class",
        description="Name of the predicted class, if it is known.",
    )
    confidence: float = Field(description="Confidence of the prediction; higher means more confident.")
    interval: tuple[float, float] | None = Field(description="Interval of the confidence; null after a single look.")
    accept: bool = Field(description="Whether the prediction is accepted.")
    rejection: Literal["unsure", "unfamiliar"] | None = Field(
        default=None,
        description="Reason for the rejection: low confidence, or an image unlike the known ones.",
    )
    familiarity: float | None = Field(
        default=None, description="Similarity to known images; null if the policy has no limit for it."
    )
    looks: int = Field(description="Number of views that the classifier saw.")
    first_look: float = Field(description="Probability of the predicted class after the first look.")
    disagreement: float | None = Field(description="Disagreement between looks, from 0 to 1; null after one look.")
    review: Literal["none", "waiting", "done"] = Field(description="Review status; none if no review is needed.")
    guarantee: ServedGuarantee | None = Field(description="The guarantee for accepted images, if any.")
    policy: str = Field(description="Checksum of the policy that decided.")
    decided_at: datetime.datetime = Field(description="When the decision was stored, UTC.")
    reviewed_label: int | None = Field(
        default=None, description="Class index from the reviewer; negative for another answer."
    )
    reviewed_class: str | None = Field(
        default=None, description="Class name from the reviewer, if known, or another answer like `none of these`."
    )
    reviewer: str | None = None
    reviewed_at: datetime.datetime | None = None


class LabelingGoal(BaseModel):
    """Goal and progress of labeling; see `secondlook.LabelingPlan`."""

    text: str = Field(description="The current guarantee in words.")
    next_step: int | None = Field(description="Labels needed for the next step, if all predictions are correct.")
    finished: bool = Field(description="Whether labeling is finished; the server stops then.")


class DecisionsBody(BaseModel):
    """The decisions about the images of a form, in their order."""

    decisions: list[ServedDecision]
