"""Decisions about images: the record of one row, the columns, and how they are computed from predictions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from secondlook.arrays import BoolArray, Float32Array, Float64Array, IntArray
from secondlook.estimators import compute_look_statistics, confidence_interval, find_method
from secondlook.files import FrozenRecord
from secondlook.policies import Guarantee, Policy
from secondlook.predictions import Predictions
from secondlook.tables import pandas_frame

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

REJECTED_LABEL = -1
"""Predicted label of a rejected image."""
DEFAULT_LEVEL = 0.95
"""Confidence level of the interval of a decision."""

Rejection = Literal["unsure", "unfamiliar"]
"""Why an image is rejected: its confidence is too low, or it looks unlike all known images, at any confidence."""


class LookPrediction(NamedTuple):
    """Prediction of one look at an image."""

    view: str
    label: int
    probability: float


class ClassProbability(NamedTuple):
    """A class and its mean probability over the looks."""

    label: int
    probability: float


class Decision(FrozenRecord):
    """The decision about one image: a row of scores, and the result of `decide` and of a service."""

    id: str
    label: int
    """The first predicted class, whether accepted or not."""
    labels: tuple[int, ...] | None = None
    """The top-k classes; None for top_k = 1."""
    class_name: str | None = None
    """Name of the first predicted class; None if it is unknown."""
    confidence: float
    accept: bool
    rejection: Rejection | None = None
    """Why the image is rejected; None if it is accepted."""
    familiarity: float | None = None
    """How much the image looks like known ones; None if the policy has no limit for it."""
    looks: int
    """Number of views that were classified."""
    first_look: float
    """Probability of the predicted class after the first look."""
    disagreement: float | None
    """How much the looks disagree, from 0 to 1; None after a single look."""
    interval: tuple[float, float] | None = None
    """Bootstrap interval of the confidence over the views; None if not computed, or after a single look."""
    guarantee: Guarantee | None = None
    """What the policy guarantees about accepted images; None if nothing."""
    audit: bool = False
    """Whether the image is accepted and marked for review."""
    audit_probability: float | None = None
    """Probability of being marked; None for rejected images, and without audits."""
    likely: tuple[ClassProbability, ...] = ()
    """The likeliest classes: the predicted class, then the others by descending probability; for reviewers only."""
    views: tuple[LookPrediction, ...] = ()
    """Prediction of each look, in the order of looks; for reviewers only."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions about N images as arrays; iterate for one `Decision` per image."""

    ids: tuple[str, ...]
    labels: IntArray
    """The predicted classes, whether accepted or not. int64 [N], or [N, k] for top_k > 1"""
    confidence: Float64Array
    accept: BoolArray
    looks: IntArray
    """Number of views that were classified. int64 [N]"""
    first_look: Float64Array
    """Probability of the predicted class, or classes, after the first look. float64 [N]"""
    disagreement: Float64Array
    """How much the looks disagree, from 0 to 1; NaN after a single look. float64 [N]"""
    interval: tuple[Float64Array, Float64Array] | None = None
    """Ends of the interval of the confidence over views; NaN after a single look, None if not computed."""
    familiarity: Float64Array | None = None
    """How much each image looks like known ones; None if the policy has no limit for it. float64 [N]"""
    is_familiar: BoolArray | None = None
    """Whether the familiarity reaches its limit; None without a limit. bool [N]"""
    class_names: tuple[str, ...] | None = None
    guarantee: Guarantee | None = None
    """What the policy guarantees about accepted images; None if nothing."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Decision:
        return self.make_row(index)

    def __iter__(self) -> Iterator[Decision]:
        return (self.make_row(index) for index in range(len(self)))

    @property
    def first_labels(self) -> IntArray:
        """The first predicted class of each image. int64 [N]"""
        return self.labels if self.labels.ndim == 1 else self.labels[:, 0]

    def find_rejection(self, index: int) -> Rejection | None:
        """Return why an image is rejected; None if it is accepted."""
        if self.accept[index]:
            return None
        return "unsure" if self.is_familiar is None or self.is_familiar[index] else "unfamiliar"

    def make_row(self, index: int, **details: Any) -> Decision:
        """Return the decision about one image, with `details` for the fields that are not in the arrays."""
        labels = np.asarray(self.labels[index]).tolist()
        label = labels if isinstance(labels, int) else labels[0]
        ends = None if self.interval is None else (float(self.interval[0][index]), float(self.interval[1][index]))
        disagreement = float(self.disagreement[index])
        return Decision.model_construct(
            id=self.ids[index],
            label=label,
            labels=None if isinstance(labels, int) else tuple(labels),
            class_name=None if self.class_names is None else self.class_names[label],
            confidence=float(self.confidence[index]),
            accept=bool(self.accept[index]),
            rejection=self.find_rejection(index),
            familiarity=None if self.familiarity is None else float(self.familiarity[index]),
            looks=int(self.looks[index]),
            first_look=float(self.first_look[index]),
            disagreement=None if np.isnan(disagreement) else disagreement,
            interval=None if ends is None or np.isnan(ends[0]) else ends,
            guarantee=self.guarantee,
            **details,
        )

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The columns common to all rows, by name; null where there is no value."""
        low, high = self.interval or (np.full(len(self), np.nan),) * 2
        names = self.class_names
        familiar: dict[str, Any] = {}
        if self.familiarity is not None:
            rejections = [self.find_rejection(index) for index in range(len(self))]
            familiar = {"familiarity": self.familiarity, "rejection": rejections}
        return {
            "id": list(self.ids),
            "label": self.first_labels,
            "labels": list(self.labels.reshape(len(self), -1)),
            "class": [None if names is None else names[label] for label in self.first_labels.tolist()],
            "confidence": self.confidence,
            "low": as_nullable(low),
            "high": as_nullable(high),
            "accept": self.accept,
            **familiar,
            "looks": self.looks,
            "first_look": self.first_look,
            "disagreement": as_nullable(self.disagreement),
        }

    def to_arrow(self) -> "pa.Table":
        """Return the columns id, label, confidence, low, high, accept, looks, first_look and disagreement.

        For top_k > 1, `label` is the first class and the column `labels` holds all k. Without an interval, `low` and
        `high` are null; after a single look, so is `disagreement`. If the policy has a limit of familiarity, the
        columns familiarity and rejection follow accept.
        """
        import pyarrow as pa

        left_out = ("class", "labels") if self.labels.ndim == 1 else ("class",)
        return pa.table({name: values for name, values in self.columns.items() if name not in left_out})

    def to_frame(self) -> "pd.DataFrame":
        """Return the columns of `to_arrow` as a pandas data frame."""
        return pandas_frame(self.to_arrow())

    @classmethod
    def join(cls, groups: "Iterable[tuple[IntArray, Decisions]]") -> "Decisions":
        """Join groups of positions and their decisions, in the order of positions."""
        positions, parts = zip(*groups, strict=True)
        order = np.argsort(np.concatenate(positions))
        ids = [id_ for part in parts for id_ in part.ids]
        values: dict[str, Any] = {"ids": tuple(ids[place] for place in order)}
        names = ("labels", "confidence", "accept", "looks", "first_look", "disagreement", "familiarity", "is_familiar")
        for name in names:
            columns = [getattr(part, name) for part in parts]
            values[name] = None if columns[0] is None else np.concatenate(columns)[order]
        intervals = [part.interval for part in parts if part.interval is not None]
        if intervals:
            low, high = np.concatenate(intervals, axis=1)[:, order]
            values["interval"] = low, high
        first: Decisions = parts[0]
        return replace(first, **values)


class FileOutputs(NamedTuple):
    """Outputs of an exported file for N images."""

    labels: IntArray
    """The predicted classes, whether accepted or not. int64 [N], or [N, k] for top_k > 1"""
    confidence: Float64Array
    accept: BoolArray
    looks: IntArray
    """Number of views that were classified. int64 [N]"""
    view_outputs: Float32Array
    """Outputs of the members for each look, NaN for looks not taken. float32 [N, V, members * classes]"""
    probabilities: Float32Array
    """Mean over looks and members. float32 [N, classes]"""
    familiarity: Float64Array | None = None
    """How much each image looks like known ones; None if the policy has no limit for it."""

    @classmethod
    def join(cls, parts: "Sequence[FileOutputs]") -> "FileOutputs":
        """Join the outputs for several batches."""
        columns = zip(*parts, strict=True)
        joined: Any = (None if column[0] is None else np.concatenate(column) for column in columns)
        return cls(*joined)

    def select(self, positions: IntArray) -> "FileOutputs":
        """Return the outputs for the images at some positions. int64 [n]"""
        columns: tuple[Any, ...] = self
        selected: Any = (None if column is None else column[positions] for column in columns)
        return FileOutputs(*selected)


def make_decisions(
    policy: Policy, preds: Predictions, *, level: float | None = None, seed: int = 0, decided: FileOutputs | None = None
) -> Decisions:
    """Decide about images from predictions for all views; with a schedule, `preds` has them in the order of looks.

    `level` and `seed` are the confidence level and random seed of the interval; None omits the interval. If given,
    `decided` has the classes, confidence and decisions of an exported file.
    """
    if decided is None:
        predicted = preds.predicted(policy.predict_from, policy.top_k)
        confidence = policy.compute_stopped(preds)
        groups = policy.find_first_classes(preds) if policy.grouped_by == "class" else None
        familiarity = policy.compute_familiarity(preds)
        accept = policy.accept_values(confidence, groups, familiarity)
    else:
        predicted, confidence, accept = decided.labels, decided.confidence, decided.accept
        familiarity = decided.familiarity
    first_look, disagreement = compute_look_statistics(preds, policy.top_k)
    return Decisions(
        ids=preds.ids,
        labels=predicted,
        confidence=confidence,
        accept=accept,
        looks=np.full(len(preds), preds.n_views),
        first_look=first_look,
        disagreement=disagreement,
        familiarity=familiarity,
        is_familiar=policy.is_familiar(familiarity),
        interval=None if level is None else compute_interval(policy, preds, level, seed),
        class_names=preds.class_names,
        guarantee=policy.guarantee,
    )


def compute_interval(
    policy: Policy, preds: Predictions, level: float, seed: int
) -> tuple[Float64Array, Float64Array] | None:
    """Return the ends of the bootstrap interval of the policy's confidence over the views. float64 [N] each

    For a method that is not a mean over views, it is the interval of MSR(D). With a schedule, the ends are converted to
    estimates like the confidence. None for a single output, or NaN if other images may have more looks.
    """
    if preds.n_outputs == 1:
        return None if policy.schedule is None else (np.full(len(preds), np.nan), np.full(len(preds), np.nan))
    options: dict[str, Any] = dict(policy.options) if find_method(policy.method).is_mean_over_views else {}
    low, high = confidence_interval(
        preds, level, policy.method, seed=seed, predict_from=policy.predict_from, top_k=policy.top_k, **options
    )
    if policy.schedule is None:
        return low, high
    return policy.schedule.estimate(preds.n_views, low), policy.schedule.estimate(preds.n_views, high)


def as_nullable(values: Float64Array) -> "pa.Array":
    """Return an Arrow array of values, null where they are NaN. float64 [n]"""
    import pyarrow as pa

    return pa.array(values, from_pandas=True)
