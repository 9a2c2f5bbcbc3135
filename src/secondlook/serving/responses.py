"""Decisions and errors of the service as JSON, shared by the server and `Client`."""

import datetime
import json
from collections.abc import Mapping
from typing import Literal

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


class ServedGuarantee(BaseModel, frozen=True):
    """What a policy guarantees about accepted images."""

    risk: float = Field(description="Largest error rate among accepted images.")
    delta: float = Field(description="Failure probability of the guarantee.")
    text: str = Field(description="The guarantee in words.")


class ServedDecision(BaseModel, frozen=True):
    """The decision about one image, with what a reviewer found, if anyone reviewed it."""

    id: str = Field(description="Id of the image: the one that was sent, or a new one.")
    label: int = Field(description="Index of the predicted class, whether accepted or not.")
    labels: tuple[int, ...] | None = Field(default=None, description="The top-k classes, where k is above 1.")
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
        description="Why it is rejected: the confidence is too low, or the image looks like no known one.",
    )
    familiarity: float | None = Field(
        default=None, description="How much the image looks like known ones; null if the policy has no limit for it."
    )
    looks: int = Field(description="Number of views that the classifier was given.")
    first_look: float = Field(description="Probability of the predicted class after the first look.")
    disagreement: float | None = Field(description="How much the looks disagree, from 0 to 1; null after one look.")
    review: Literal["none", "waiting", "done"] = Field(description="Whether people are to review the image, or did.")
    guarantee: ServedGuarantee | None = Field(description="What the policy guarantees about accepted images, if any.")
    policy: str = Field(description="Checksum of the policy that decided.")
    decided_at: datetime.datetime = Field(description="When the decision was stored, UTC.")
    reviewed_label: int | None = Field(
        default=None, description="Index of the class that a reviewer found; negative for another answer."
    )
    reviewed_class: str | None = Field(
        default=None, description="Its name, if it is known; or the other answer, such as `none of these`."
    )
    reviewer: str | None = None
    reviewed_at: datetime.datetime | None = None


class LabelingGoal(BaseModel):
    """What labels are asked for, and how far that is; see `secondlook.LabelingPlan`."""

    text: str = Field(description="What the labels certify now, in words.")
    next_step: int | None = Field(description="Labels until more is certified, if all predictions are right.")
    finished: bool = Field(description="Whether labeling is finished; the server stops then.")


class DecisionsBody(BaseModel):
    """The decisions about the images of a form, in their order."""

    decisions: list[ServedDecision]
