"""The rows of a scoring: one per image, as a table from which every format is written."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import DecisionError
from secondlook.estimators import confidence as confidence_of
from secondlook.estimators import confidence_interval
from secondlook.predictions import Predictions
from secondlook.selective import Rule

if TYPE_CHECKING:
    import pyarrow as pa

INDEX = "index"
"""The column with an image's place in its source: kept in the parts, left out of what the user gets."""


@dataclass(frozen=True)
class Question:
    """What is asked about every image: the rule, the level and seed of the interval, and whether all views are told."""

    rule: Rule
    level: float = 0.95
    seed: int = 0
    per_view: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise DecisionError(f"level is {self.level}, expected a share between 0 and 1, such as 0.95.")
        if self.seed < 0:
            raise DecisionError(f"seed is {self.seed}, expected a whole number from 0 up.")


def schema_of(question: Question) -> "pa.Schema":
    """Return the columns, with the index of the parts in front."""
    import pyarrow as pa

    leading = [("labels", pa.list_(pa.int64()))] if question.rule.top_k > 1 else []
    per_view = [("view_labels", pa.list_(pa.int64())), ("view_probabilities", pa.list_(pa.float64()))]
    fields = [
        (INDEX, pa.int64()),
        ("id", pa.string()),
        ("label", pa.int64()),
        *leading,
        ("class", pa.string()),
        ("confidence", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("accept", pa.bool_()),
        *(per_view if question.per_view else []),
    ]
    return pa.schema(fields)


def rows_of(question: Question, preds: Predictions, indices: IntArray) -> "pa.Table":
    """Decide about each image. The indices are the images' places in their source, int64 [N]."""
    import pyarrow as pa

    rule = question.rule
    sure = confidence_of(preds, rule.method, predict_from=rule.predict_from, top_k=rule.top_k, **rule.options)
    leading = preds.predicted(rule.predict_from, rule.top_k).reshape(len(preds), rule.top_k)
    low, high = _interval(question, preds)
    columns: dict[str, Any] = {
        INDEX: indices,
        "id": list(preds.ids),
        "label": leading[:, 0],
        "labels": list(leading),
        "class": _names(preds.class_names, leading[:, 0]),
        "confidence": sure,
        "low": low,
        "high": high,
        "accept": rule.accept(sure),
    }
    if question.per_view:
        columns["view_labels"], columns["view_probabilities"] = (list(rows) for rows in _answers_of_views(preds))
    schema = schema_of(question)
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _interval(question: Question, preds: Predictions) -> tuple[Float64Array | list[None], Float64Array | list[None]]:
    """Return the ends of the mean confidence over views, or nothing where there is nothing to draw from."""
    if preds.n_outputs < 2:
        return [None] * len(preds), [None] * len(preds)
    return confidence_interval(
        preds, question.level, seed=question.seed, predict_from=question.rule.predict_from, top_k=question.rule.top_k
    )


def _names(class_names: tuple[str, ...] | None, classes: IntArray) -> list[str | None]:
    return [None if class_names is None else class_names[one] for one in classes]


def _answers_of_views(preds: Predictions) -> tuple[IntArray, Float64Array]:
    """Return the class that each view leads to, and the probability it gives to it. int64 [N, V], float64 [N, V]"""
    leading = np.empty((preds.n_images, preds.n_views), dtype=np.int64)
    surest = np.empty((preds.n_images, preds.n_views))
    for rows, block in preds.blocks():
        leading[rows] = block.argmax(axis=2)
        surest[rows] = block.max(axis=2)
    return leading, surest
