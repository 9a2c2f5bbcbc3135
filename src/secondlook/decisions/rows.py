"""Decisions about images: one row per image, as a table for score files and as arrays for Python."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from secondlook.arrays import BoolArray, Float32Array, Float64Array, IntArray, is_number
from secondlook.errors import DecisionError
from secondlook.estimators import compute_look_statistics, confidence_interval, find_method
from secondlook.policies import AuditPlan, Rule, draw_audits
from secondlook.predictions import Predictions
from secondlook.tables import arrow_table, pandas_frame

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

REASON = "reason"
"""Column that tells why an image could not be read; null for all others."""

AUDIT = "audit"
"""Column that tells whether an image is marked for review although it is accepted."""
AUDIT_PROBABILITY = "audit_probability"
"""Column with the probability with which an accepted image is marked; null for rejected images."""

REJECTED_LABEL = -1
"""Predicted label of a rejected image."""


class Decision(NamedTuple):
    """The decision about one image."""

    id: str
    label: int | tuple[int, ...]
    """The predicted class, or the top-k classes, whether accepted or not."""
    confidence: float
    interval: tuple[float, float] | None
    accept: bool
    looks: int
    """Number of views that the image was looked at."""
    first_look: float
    """Probability of the predicted class after the first look."""
    disagreement: float | None
    """How much the looks disagree, from 0 to 1; None after a single look."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions about N images as arrays; iterate for one `Decision` per image."""

    ids: tuple[str, ...]
    labels: IntArray
    """The predicted classes, whether accepted or not. int64 [N], or [N, k] for top_k > 1"""
    confidence: Float64Array
    interval: tuple[Float64Array, Float64Array] | None
    """Lower and upper ends of the confidence over views; NaN after a single look, None with a single view."""
    accept: BoolArray
    looks: IntArray
    """Number of views that each image was looked at. int64 [N]"""
    first_look: Float64Array
    """Probability of the predicted class, or classes, after the first look. float64 [N]"""
    disagreement: Float64Array
    """How much the looks disagree, from 0 to 1; NaN after a single look. float64 [N]"""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Decision:
        label = self.labels[index]
        ends = None if self.interval is None else (float(self.interval[0][index]), float(self.interval[1][index]))
        return Decision(
            self.ids[index],
            int(label) if label.ndim == 0 else tuple(int(one) for one in label),
            float(self.confidence[index]),
            None if ends is None or np.isnan(ends[0]) else ends,
            bool(self.accept[index]),
            int(self.looks[index]),
            float(self.first_look[index]),
            None if np.isnan(self.disagreement[index]) else float(self.disagreement[index]),
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[index] for index in range(len(self)))

    def to_arrow(self) -> "pa.Table":
        """Return the columns id, label, confidence, low, high, accept, looks, first_look and disagreement.

        For top_k > 1, `label` is the first class and the column `labels` holds all k. Without an interval, `low` and
        `high` are null, and after a single look `disagreement` is.
        """
        has_top_k = self.labels.ndim > 1
        low, high = _as_columns(self.interval, len(self))
        columns: dict[str, Any] = {"id": list(self.ids), "label": self.labels[:, 0] if has_top_k else self.labels}
        if has_top_k:
            columns["labels"] = list(self.labels)
        columns |= {"confidence": self.confidence, "low": low, "high": high, "accept": self.accept}
        columns |= {"looks": self.looks, "first_look": self.first_look}
        return arrow_table({**columns, "disagreement": as_nullable(self.disagreement)})

    def to_frame(self) -> "pd.DataFrame":
        """Return the columns of `to_arrow` as a pandas data frame."""
        return pandas_frame(self.to_arrow())


class FileDecisions(NamedTuple):
    """What an exported file decided about N images."""

    labels: IntArray
    """The predicted classes, whether accepted or not. int64 [N], or [N, k] for top_k > 1"""
    confidence: Float64Array
    accept: BoolArray
    looks: IntArray
    """Number of views that each image was looked at. int64 [N]"""
    view_outputs: Float32Array
    """Outputs of the members for each look, NaN where it was not taken. float32 [N, V, members * classes]"""
    probabilities: Float32Array
    """Mean over looks and members. float32 [N, classes]"""

    @classmethod
    def join(cls, parts: "Sequence[FileDecisions]") -> "FileDecisions":
        """Return the decisions about the images of several batches."""
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))

    def select(self, positions: IntArray) -> "FileDecisions":
        """Return the decisions about some of the images. int64 [n]"""
        columns: tuple[Any, ...] = self
        return FileDecisions(*(values[positions] for values in columns))


@dataclass(frozen=True)
class RowOptions:
    """How rows are computed: the rule, confidence level of the interval, random seed, and what else they hold."""

    rule: Rule
    level: float = 0.95
    seed: int = 0
    per_view: bool = False
    """Whether rows list the predictions of each view."""
    audit: float | None = None
    """Fraction of the accepted images to mark for review; None for none."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise DecisionError(f"level={self.level} is out of range; expected a number between 0 and 1, such as 0.95.")
        if self.seed < 0:
            raise DecisionError(f"seed={self.seed} is negative; expected a whole number from 0 up.")
        if self.audit is not None and not (is_number(self.audit) and 0 < self.audit <= 1):
            raise DecisionError(
                f"audit={self.audit!r} is out of range; expected the fraction of accepted images to review, such as "
                "0.01."
            )

    @cached_property
    def audit_plan(self) -> AuditPlan | None:
        """How probable it is that an accepted image is marked for review; None if none is."""
        if self.audit is None:
            return None
        return AuditPlan(self.rule.reference, self.rule.threshold, self.audit)


def row_schema(options: RowOptions) -> "pa.Schema":
    """Return the columns of the rows."""
    import pyarrow as pa

    top_k = [("labels", pa.list_(pa.int64()))] if options.rule.top_k > 1 else []
    audit = [(AUDIT, pa.bool_()), (AUDIT_PROBABILITY, pa.float64())]
    per_view = [("view_labels", pa.list_(pa.int64())), ("view_probabilities", pa.list_(pa.float64()))]
    fields = [
        ("id", pa.string()),
        ("label", pa.int64()),
        *top_k,
        ("class", pa.string()),
        ("confidence", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("accept", pa.bool_()),
        ("looks", pa.int64()),
        ("first_look", pa.float64()),
        ("disagreement", pa.float64()),
        *(audit if options.audit is not None else []),
        (REASON, pa.string()),
        *(per_view if options.per_view else []),
    ]
    return pa.schema(fields)


def compute_rows(options: RowOptions, preds: Predictions, decided: FileDecisions | None = None) -> "pa.Table":
    """Decide about each image, looked at in all views of `preds`, unless an exported file has `decided`."""
    decisions = make_decisions(options.rule, preds, level=options.level, seed=options.seed, decided=decided)
    predicted = decisions.labels.reshape(len(preds), options.rule.top_k)
    low, high = _as_columns(decisions.interval, len(preds))
    columns: dict[str, Any] = {
        "id": list(preds.ids),
        "label": predicted[:, 0],
        "labels": list(predicted),
        "class": _name_classes(preds.class_names, predicted[:, 0]),
        "confidence": decisions.confidence,
        "low": low,
        "high": high,
        "accept": decisions.accept,
        "looks": decisions.looks,
        "first_look": decisions.first_look,
        "disagreement": as_nullable(decisions.disagreement),
    }
    if options.audit_plan is not None:
        marked, probabilities = draw_marks(options.audit_plan, decisions, options.seed)
        columns |= {AUDIT: marked, AUDIT_PROBABILITY: as_nullable(probabilities)}
    if options.per_view:
        columns["view_labels"], columns["view_probabilities"] = (list(rows) for rows in predict_per_view(preds))
    return _make_table(options, columns, len(preds))


def draw_marks(plan: AuditPlan, decisions: Decisions, seed: int) -> tuple[BoolArray, Float64Array]:
    """Return which images are marked for review, bool [N], and with which probability, float64 [N], NaN if rejected."""
    probabilities = np.full(len(decisions), np.nan)
    probabilities[decisions.accept] = plan.probabilities(decisions.confidence[decisions.accept])
    # A comparison with NaN is False.
    return draw_audits(decisions.ids, seed) < probabilities, probabilities


def make_skipped_rows(options: RowOptions, skipped: Sequence[tuple[str, str]]) -> "pa.Table":
    """Return the rows of images that could not be read, given by id and reason: never accepted, after no look."""
    ids, reasons = [id_ for id_, _ in skipped], [reason for _, reason in skipped]
    n_images = len(skipped)
    never = [False] * n_images
    columns = {"id": ids, "accept": never, AUDIT: never, "looks": [0] * n_images, REASON: reasons}
    return _make_table(options, columns, n_images)


def _make_table(options: RowOptions, columns: Mapping[str, Any], n_rows: int) -> "pa.Table":
    """Return a table of all columns; those that are not given are null."""
    import pyarrow as pa

    schema = row_schema(options)
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(n_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def join_rows(options: RowOptions, tables: Iterable[tuple[IntArray, "pa.Table"]]) -> "pa.Table":
    """Return the rows of several tables, or of none, each with its positions, int64 [n], in the order of positions."""
    import pyarrow as pa

    parts = [(np.empty(0, dtype=np.int64), row_schema(options).empty_table()), *tables]
    order = np.argsort(np.concatenate([positions for positions, _ in parts]))
    return pa.concat_tables([table for _, table in parts]).take(order)


def make_decisions(
    rule: Rule, preds: Predictions, *, level: float, seed: int, decided: FileDecisions | None = None
) -> Decisions:
    """Decide about images that were looked at in all views of `preds`, in the order of looks if there is a schedule.

    `level` and `seed` are the confidence level and random seed of the interval. Where an exported file has `decided`,
    classes, confidence and decisions are its own.
    """
    interval = None
    if preds.n_outputs > 1:
        interval = compute_interval(rule, preds, level=level, seed=seed)
    elif rule.schedule is not None:
        interval = np.full(len(preds), np.nan), np.full(len(preds), np.nan)
    looks = np.full(len(preds), preds.n_views)
    first_look, disagreement = compute_look_statistics(preds, rule.top_k)
    if decided is None:
        values = compute_confidence(rule, preds)
        predicted = preds.predicted(rule.predict_from, rule.top_k)
        accept = rule.accept_images(preds, values)
    else:
        predicted, values, accept = decided.labels, decided.confidence, decided.accept
    return Decisions(preds.ids, predicted, values, interval, accept, looks, first_look, disagreement)


def join_decisions(groups: Iterable[tuple[IntArray, Decisions]]) -> Decisions:
    """Return the decisions of several groups of images, each with their positions, in the order of positions."""
    positions, parts = zip(*groups, strict=True)
    order = np.argsort(np.concatenate(positions))
    ids = [id_ for part in parts for id_ in part.ids]
    intervals = [part.interval for part in parts if part.interval is not None]
    low, high = (np.concatenate(ends)[order] for ends in zip(*intervals, strict=True)) if intervals else (None, None)
    return Decisions(
        tuple(ids[place] for place in order),
        np.concatenate([part.labels for part in parts])[order],
        np.concatenate([part.confidence for part in parts])[order],
        None if low is None or high is None else (low, high),
        np.concatenate([part.accept for part in parts])[order],
        np.concatenate([part.looks for part in parts])[order],
        np.concatenate([part.first_look for part in parts])[order],
        np.concatenate([part.disagreement for part in parts])[order],
    )


def compute_confidence(rule: Rule, preds: Predictions) -> Float64Array:
    """Return the confidence of images that were looked at in all views of `preds`: the estimate if there is a schedule.

    float64 [N]
    """
    if rule.schedule is None:
        return rule.confidence(preds)
    return rule.schedule.estimate(preds.n_views, rule.compute_running(preds)[:, -1])


def compute_interval(rule: Rule, preds: Predictions, *, level: float, seed: int) -> tuple[Float64Array, Float64Array]:
    """Return the ends of the bootstrap interval of the rule's confidence over the views. float64 [N] each

    For a method that is not a mean over views it is the interval of MSR(D). With a schedule, the ends become estimates
    as the confidence does.
    """
    options: dict[str, Any] = dict(rule.options) if find_method(rule.method).is_mean_over_views else {}
    low, high = confidence_interval(
        preds, level, rule.method, seed=seed, predict_from=rule.predict_from, top_k=rule.top_k, **options
    )
    if rule.schedule is None:
        return low, high
    return rule.schedule.estimate(preds.n_views, low), rule.schedule.estimate(preds.n_views, high)


def _as_columns(interval: tuple[Float64Array, Float64Array] | None, n_images: int) -> list["pa.Array"]:
    """Return the lower and the upper ends, null where there are none."""
    return [as_nullable(end) for end in interval or (np.full(n_images, np.nan),) * 2]


def as_nullable(values: Float64Array) -> "pa.Array":
    """Return an Arrow array of values, null where they are NaN. float64 [n]"""
    import pyarrow as pa

    return pa.array(values, from_pandas=True)


def _name_classes(class_names: tuple[str, ...] | None, classes: IntArray) -> list[str | None]:
    return [None if class_names is None else class_names[one] for one in classes]


def predict_per_view(preds: Predictions) -> tuple[IntArray, Float64Array]:
    """Return the class predicted from each view, and its probability. int64 [N, V], float64 [N, V]"""
    classes = np.empty((preds.n_images, preds.n_views), dtype=np.int64)
    probabilities = np.empty((preds.n_images, preds.n_views))
    for rows, block in preds.blocks():
        classes[rows] = block.argmax(axis=2)
        probabilities[rows] = block.max(axis=2)
    return classes, probabilities
