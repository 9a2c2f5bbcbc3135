"""Rows of scores as arrays: read from any kind of table, and checked before they are monitored."""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_number
from secondlook.errors import MonitoringError
from secondlook.policies import AuditPlan, Policy, PolicyWarning

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("id", "label", "confidence", "accept", "looks", "first_look", "disagreement")
"""Columns that every row has; `labels` is needed for several predicted classes per image."""
SCORE_METADATA = b"secondlook.score"
"""Metadata of a Parquet file of scores: JSON with the policy."""


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """The rows of n images that could be read, in the order of the stream."""

    ids: tuple[str, ...]
    predicted: IntArray
    """The predicted classes. int64 [n, k]"""
    confidence: Float64Array
    accept: BoolArray
    looks: IntArray
    first_look: Float64Array
    """Probability of the predicted class after the first look. float64 [n]"""
    disagreement: Float64Array
    """How much the looks disagree; NaN after a single look. float64 [n]"""
    audit: BoolArray
    """Whether an image was accepted and marked for review. bool [n]"""
    audit_probability: Float64Array
    """Probability of being marked; NaN for rejected images, and everywhere without audits. float64 [n]"""
    smallest_probability: float | None
    """Smallest probability that an accepted image could have, as far as it is known; None without audits."""
    skipped: int
    """Number of images that could not be read; they have no place in the arrays."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(cls, rows: object, policy: Policy) -> "ScoreRows":
        """Check a table of scores, and return the images that could be read."""
        table = _make_table(rows)
        _check_policy(table, policy)
        _check_columns(table, policy)
        kept, skipped = _drop_unreadable(table)
        ids = _read_ids(kept)
        numbers = {name: _read_numbers(kept, name, ids) for name in ("confidence", "first_look", "accept", "looks")}
        confidence, accept = numbers["confidence"], numbers["accept"] > 0
        predicted = _read_predicted(kept, policy, ids)
        _check_accept(policy, ids, confidence, accept, predicted)
        audit, probability = _read_audits(kept, ids, accept)
        return cls(
            ids=ids,
            predicted=predicted,
            confidence=confidence,
            accept=accept,
            looks=numbers["looks"].astype(np.int64),
            first_look=numbers["first_look"],
            disagreement=_read_disagreement(kept, ids),
            audit=audit,
            audit_probability=probability,
            smallest_probability=_find_smallest(table, policy, probability),
            skipped=skipped,
        )

    @classmethod
    def join(cls, parts: Sequence["ScoreRows"]) -> "ScoreRows":
        """Return the rows of one or more tables as one."""
        arrays = ("predicted", "confidence", "accept", "looks", "first_look", "disagreement", "audit")
        known = [part.smallest_probability for part in parts if part.smallest_probability is not None]
        return cls(
            ids=tuple(id_ for part in parts for id_ in part.ids),
            **{
                name: np.concatenate([getattr(part, name) for part in parts]) for name in (*arrays, "audit_probability")
            },
            smallest_probability=min(known, default=None),
            skipped=sum(part.skipped for part in parts),
        )


def _make_table(rows: object) -> "pa.Table":
    """Return rows as an Arrow table: from Arrow, pandas, `Decisions`, or a list of dictionaries."""
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "to_arrow"):
        return _make_table(rows.to_arrow())
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Iterable) and not isinstance(rows, str | Mapping):
        listed = list(rows)
        if all(isinstance(row, Mapping) for row in listed):
            names = dict.fromkeys(name for row in listed for name in row) or (*COLUMNS, "labels")
            return pa.table({name: [row.get(name) for row in listed] for name in names})
    raise MonitoringError(
        f"rows are a {type(rows).__name__}; expected an Arrow table, a pandas data frame, Decisions, or a list of "
        "dictionaries."
    )


def _check_policy(table: "pa.Table", policy: Policy) -> None:
    """Raise for rows that say that they were scored with another policy, or with another classifier than its own."""
    metadata = _read_metadata(table)
    if metadata.get("mismatch"):
        raise MonitoringError(
            f"nothing is guaranteed about the rows, since {metadata['mismatch']}; score with the classifier of the "
            "policy."
        )
    found = metadata.get("policy")
    if found is None or (isinstance(found, dict) and found.get("checksum") == policy.checksum):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyWarning)
            used = Policy.model_validate(found)  # by an earlier version of this package, perhaps
    except ValidationError:
        raise MonitoringError(
            "the rows were scored with a policy of another version of secondlook; score again with this one."
        ) from None
    if used.checksum != policy.checksum:
        raise MonitoringError(
            f"the rows were scored with another policy ({used.identity}) than this one ({policy.identity}); pass the "
            "policy that they were scored with."
        )


def _read_metadata(table: "pa.Table") -> dict[str, Any]:
    """Return how the rows were scored; empty if it is unknown, as for rows that are not from a file of scores."""
    try:
        metadata = json.loads((table.schema.metadata or {}).get(SCORE_METADATA, "{}"))
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict):
        raise MonitoringError("the metadata of the rows is damaged, so their policy is unknown; score again.")
    return metadata


def _check_columns(table: "pa.Table", policy: Policy) -> None:
    expected = (*COLUMNS, *(["labels"] if policy.top_k > 1 else []))
    missing = [name for name in expected if name not in table.column_names]
    if missing:
        raise MonitoringError(
            f"the rows have no column {', '.join(map(repr, missing))}; expected those of score files: "
            f"{', '.join(expected)}; score again if they are of an earlier version."
        )
    if "audit" in table.column_names and "audit_probability" not in table.column_names:
        raise MonitoringError(
            "the rows have a column 'audit' but no 'audit_probability', without which audits cannot be weighted; keep "
            "both columns as they were scored, or drop both."
        )


def _drop_unreadable(table: "pa.Table") -> tuple["pa.Table", int]:
    """Return the rows of images that could be read, and the number of the others."""
    import pyarrow.compute as pc

    if "reason" not in table.column_names:
        return table, 0
    kept = table.filter(pc.is_null(table["reason"]))
    return kept, len(table) - len(kept)


def _read_ids(table: "pa.Table") -> tuple[str, ...]:
    if table["id"].null_count:
        raise MonitoringError("the id of an image is null; every row needs an id.")
    ids = tuple(map(str, table["id"].to_pylist()))
    if len(set(ids)) < len(ids):
        duplicate, times = Counter(ids).most_common(1)[0]
        raise MonitoringError(f"duplicate id {duplicate!r} ({times} times) in the rows; ids must be unique.")
    return ids


def _to_floats(column: "pa.ChunkedArray") -> Float64Array:
    """Return a column of numbers or booleans, NaN where it is null. float64 [n]"""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: Float64Array = column.cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False)
    return values


def _read_numbers(table: "pa.Table", name: str, ids: tuple[str, ...]) -> Float64Array:
    """Return a column that must have a finite value in every row. float64 [n]"""
    import pyarrow as pa

    try:
        values = _to_floats(table[name])
    except pa.ArrowException:
        raise MonitoringError(f"column {name!r} has type {table[name].type}; expected numbers.") from None
    unknown = np.flatnonzero(~np.isfinite(values))
    if unknown.size:
        place = int(unknown[0])
        raise MonitoringError(
            f"{name} of image {ids[place]!r} is {values[place]:g}; expected a number in every row of an image that "
            "could be read (one with a null reason)."
        )
    return values


def _read_predicted(table: "pa.Table", policy: Policy, ids: tuple[str, ...]) -> IntArray:
    """Return the predicted classes of each image. int64 [n, k]"""
    if policy.top_k == 1:
        predicted = _read_numbers(table, "label", ids).astype(np.int64)[:, None]
    else:
        classes = table["labels"].to_pylist()
        for id_, row in zip(ids, classes, strict=True):
            if row is None or len(row) != policy.top_k:
                raise MonitoringError(f"labels of image {id_!r} are {row}; expected {policy.top_k} predicted classes.")
        predicted = np.array(classes, dtype=np.int64).reshape(len(ids), policy.top_k)
    n_classes = len(policy.class_names) if policy.class_names else np.iinfo(np.int64).max
    unknown = np.flatnonzero(((predicted < 0) | (predicted >= n_classes)).any(axis=1))
    if unknown.size:
        place = int(unknown[0])
        raise MonitoringError(
            f"the predicted class of image {ids[place]!r} is {predicted[place].tolist()}; expected indices of classes "
            "of the policy; pass the policy that the rows were scored with."
        )
    return predicted


def _read_disagreement(table: "pa.Table", ids: tuple[str, ...]) -> Float64Array:
    """Return how much the looks at each image disagree; NaN after a single look. float64 [n]"""
    values = _to_floats(table["disagreement"])
    invalid = np.flatnonzero((values < 0) | (values > 1))
    if invalid.size:
        place = int(invalid[0])
        raise MonitoringError(
            f"disagreement of image {ids[place]!r} is {values[place]:g}; expected a number from 0 to 1, or null after "
            "a single look."
        )
    return values


def _check_accept(
    policy: Policy, ids: tuple[str, ...], confidence: Float64Array, accept: BoolArray, predicted: IntArray
) -> None:
    """Raise for decisions that are not those of the policy: of all that rows hold, only these show another policy."""
    rule = policy.rule
    expected = rule.accept(confidence, predicted[:, 0] if rule.grouped_by == "class" else None)
    differing = np.flatnonzero(expected != accept)
    if differing.size:
        place = int(differing[0])
        decision = "accepted" if accept[place] else "rejected"
        raise MonitoringError(
            f"image {ids[place]!r} was {decision} with confidence {confidence[place]:.6g}, which the policy would not "
            f"do (threshold {policy.threshold:.6g}); pass the policy that the rows were scored with."
        )


def _read_audits(table: "pa.Table", ids: tuple[str, ...], accept: BoolArray) -> tuple[BoolArray, Float64Array]:
    """Return which images are audited, and with which probability. bool [n], float64 [n]"""
    if "audit" not in table.column_names:
        return np.zeros(len(ids), dtype=np.bool_), np.full(len(ids), np.nan)
    probability = np.where(accept, _to_floats(table["audit_probability"]), np.nan)
    invalid = np.flatnonzero(accept & ~((probability > 0) & (probability <= 1)))
    if invalid.size:
        place = int(invalid[0])
        found = "null" if np.isnan(probability[place]) else f"{probability[place]:g}"
        raise MonitoringError(
            f"audit_probability of image {ids[place]!r} is {found}; expected a number above 0 and at most 1 for every "
            "accepted image; keep the column as it was scored, or score again."
        )
    return (_to_floats(table["audit"]) > 0) & accept, probability


def _find_smallest(table: "pa.Table", policy: Policy, probability: Float64Array) -> float | None:
    """Return the smallest probability of an audit: that of the plan if it is known, or else of these images."""
    known = probability[np.isfinite(probability)].tolist()
    rate = _read_metadata(table).get("audit")
    if is_number(rate) and 0 < rate <= 1:
        known.append(AuditPlan(policy.reference, policy.threshold, rate).smallest)
    return min(known, default=None)
