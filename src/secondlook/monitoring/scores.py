"""Input of monitoring: score files, validated rows, and reviewed labels."""

import csv
import glob
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import from_json

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_number, is_whole_number
from secondlook.decisions import SCORE_FORMATS, Answer
from secondlook.errors import MonitoringError, shorten_reason
from secondlook.file_systems import is_url, open_location
from secondlook.files import MAX_RECORD_BYTES, open_regular_file
from secondlook.policies import AuditPlan, Policy
from secondlook.registry import did_you_mean
from secondlook.tables import unescape_formula

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("id", "label", "confidence", "accept", "first_look", "disagreement")
"""Required columns; also `labels` for several predicted classes per image, and `audit_probability` for audits."""
READ_COLUMNS = (*COLUMNS, "labels", "familiarity", "reason", "audit", "audit_probability")
SCORE_METADATA = b"secondlook.score"
"""Metadata of a Parquet file of scores: JSON with the policy."""
OTHER_POLICY = "pass the policy that the rows were scored with"

Labels = Mapping[str, int | str] | Iterable[tuple[str, int | str]] | str | Path
"""Reviewed labels by image id: the index or the name of a class, or an `Answer` or its text; or the path of a CSV file
with the columns id and label."""


# ---- Files


class ScoreFile(NamedTuple):
    """A score file: its path or URL, its suffix, and the function that reads its content."""

    name: str
    suffix: str
    read: Callable[[], bytes]

    def parse(self, content: bytes, columns: Sequence[str] = READ_COLUMNS) -> "pa.Table":
        """Parse the content of the file; columns that it does not have are left out."""
        import pyarrow as pa

        numbers = pa.list_(pa.int64())
        types = {"id": pa.string(), "reason": pa.string(), "label": pa.int64(), "labels": numbers}
        types |= {"accept": pa.bool_(), "audit": pa.bool_()}
        read = SCORE_FORMATS[self.suffix].read
        assert read is not None, "only formats that can be read are listed"
        try:
            return read(content, {name: types.get(name, pa.float64()) for name in columns})
        except (pa.ArrowException, ValueError, OSError) as error:
            reason = shorten_reason(error)
            fault = f"the content is not a valid {self.suffix} score file ({reason})"
            raise MonitoringError(fault, repair="score again, or remove the file") from None


def list_score_files(patterns: Iterable[str | Path]) -> list[ScoreFile]:
    """Return the score files of paths, patterns, folders and URLs without repeats, sorted within each of these."""
    found: dict[str, ScoreFile] = {}
    for pattern in map(str, patterns):
        files = [file for place in _expand(pattern) for file in _list_files(place)]
        if not files:
            raise MonitoringError(f"no score files match {pattern!r}; expected files, or a folder or URL of parts.")
        found |= {file.name: file for file in files if file.name not in found}
    return list(found.values())


def _expand(pattern: str) -> list[str]:
    path = Path(pattern).expanduser()
    if is_url(pattern) or path.exists():  # a file may have brackets in its name
        return [pattern if is_url(pattern) else str(path)]
    return list(map(str, sorted(map(Path, glob.glob(str(path))))))  # noqa: PTH207 - it may be absolute


def _list_files(place: str) -> list[ScoreFile]:
    """Return a file, or the files of a folder, without names that begin with '_' or '.'."""
    location = open_location(place, MonitoringError)
    path, suffixes = location.local_path, tuple(name for name, one in SCORE_FORMATS.items() if one.read is not None)
    if location.name.lower().endswith(suffixes) if path is None else path.is_file():
        files = {place: location.name}
        location = location.parent
    else:
        files = {location.locate(name): name for name in location.list_names() if "/" not in name or path is None}
    files = {place: name for place, name in files.items() if not name.rpartition("/")[2].startswith(("_", "."))}
    for other in (place for place, name in files.items() if not name.lower().endswith(suffixes)):
        raise MonitoringError(f"{other!r} is not a score file; expected a file ending in {', '.join(suffixes)}.")
    return [
        ScoreFile(place, Path(name).suffix.lower(), partial(location.read_bytes, name)) for place, name in files.items()
    ]


# ---- Rows


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """The rows of n readable images, in the order of the stream."""

    ids: tuple[str, ...]
    predicted: IntArray
    """The predicted classes. int64 [n, k]"""
    confidence: Float64Array
    accept: BoolArray
    familiarity: Float64Array
    """Familiarity of an image; NaN if the policy has no limit for it. float64 [n]"""
    first_look: Float64Array
    """Probability of the predicted class after the first look. float64 [n]"""
    disagreement: Float64Array
    """Disagreement of the looks; NaN after a single look. float64 [n]"""
    audit: BoolArray
    """Whether an image was accepted and marked for review. bool [n]"""
    audit_probability: Float64Array
    """Probability of being marked; NaN for rejected images, and everywhere without audits. float64 [n]"""
    smallest_probability: float | None
    """Smallest probability that an accepted image can have, as far as known; None without audits."""
    skipped: int
    """Number of images that could not be read; the arrays do not contain them."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_auditable(self) -> BoolArray:
        """Whether an image was accepted and could have been marked. bool [n]"""
        return np.isfinite(self.audit_probability)

    @classmethod
    def read(cls, rows: object, policy: Policy) -> "ScoreRows":
        """Validate a table of scores, and return the readable images."""
        import pyarrow.compute as pc

        table = _make_table(rows)
        rate = _read_metadata(table, policy).get("audit")
        has_audits = "audit" in table.column_names
        is_limited = policy.familiarity is not None
        expected = [*COLUMNS, *["labels"] * (policy.top_k > 1), *["familiarity"] * is_limited]
        expected += ["audit_probability"] * has_audits
        missing = [repr(name) for name in expected if name not in table.column_names]
        if missing:
            raise MonitoringError(f"the rows have no column {', '.join(missing)}; expected {', '.join(expected)}.")
        kept = table.filter(pc.is_null(table["reason"])) if "reason" in table.column_names else table
        ids = _read_ids(kept)
        read = partial(_read_numbers, kept, ids)
        confidence, first_look, accept = read("confidence"), read("first_look"), read("accept") > 0
        predicted = _read_predicted(kept, policy, ids)
        familiarity = read("familiarity") if is_limited else np.full(len(ids), np.nan)
        _check_accept(policy, ids, confidence, accept, predicted, familiarity)
        audit, probability = np.zeros(len(ids), dtype=np.bool_), np.full(len(ids), np.nan)
        if has_audits:
            kind = "a number above 0 and at most 1 for every accepted image; do not edit the column"
            given = read("audit_probability", lambda values: ~accept | ((values > 0) & (values <= 1)), kind)
            probability[accept] = given[accept]
            audit = accept & (read("audit", lambda marks: np.full(len(marks), True)) > 0)
        kind = "a number from 0 to 1, or null after a single look"
        disagreement = read("disagreement", lambda values: ~((values < 0) | (values > 1)), kind)
        probabilities = probability[np.isfinite(probability)].tolist()
        if is_number(rate) and 0 < rate <= 1:
            probabilities.append(AuditPlan(policy.reference, policy.threshold, rate).smallest)
        numbers = (confidence, accept, familiarity, first_look, disagreement, audit, probability)
        return cls(ids, predicted, *numbers, min(probabilities, default=None), len(table) - len(kept))

    @classmethod
    def join(cls, parts: Sequence["ScoreRows"]) -> "ScoreRows":
        """Return the rows of one or more tables as one."""
        arrays = ("predicted", "confidence", "accept", "familiarity", "first_look", "disagreement", "audit")
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

    if hasattr(rows, "to_arrow"):  # `Decisions`
        rows = rows.to_arrow()
    if isinstance(rows, Iterable) and not isinstance(rows, str | Mapping) and not hasattr(rows, "columns"):
        rows = list(rows)
        if all(isinstance(row, Mapping) for row in rows):
            names = dict.fromkeys(name for row in rows for name in row) or (*COLUMNS, "labels")
            rows = pa.table({name: [row.get(name) for row in rows] for name in names})
    if hasattr(rows, "columns"):  # a table or a batch of Arrow, or a data frame
        return pa.table(rows)
    raise MonitoringError(f"rows are of type {type(rows).__name__}; expected Arrow, pandas, Decisions or dictionaries.")


def _read_metadata(table: "pa.Table", policy: Policy) -> dict[str, Any]:
    """Return the metadata of scored rows, empty if unknown; raise if they are from another policy or classifier."""
    try:
        metadata = from_json((table.schema.metadata or {}).get(SCORE_METADATA, "{}"))
        used = metadata.get("policy")
        is_other = used is not None and used["checksum"] != policy.checksum
    except (ValueError, AttributeError, TypeError, KeyError):
        raise MonitoringError("the metadata of the rows is damaged, so their policy is unknown; score again.") from None
    if metadata.get("mismatch"):
        fault = f"the guarantee does not apply to the rows, since {metadata['mismatch']}"
        raise MonitoringError(fault, repair="score with the classifier of the policy")
    if is_other:
        identity = f"{used.get('method')} >= {used.get('threshold')}, made {used.get('made')}, {used['checksum']:.8}"
        fault = f"the rows were scored with another policy ({identity}) than this one ({policy.identity})"
        raise MonitoringError(fault, repair=OTHER_POLICY)
    return dict(metadata)


def _read_ids(table: "pa.Table") -> tuple[str, ...]:
    if table["id"].null_count:
        raise MonitoringError("an image has a null id; every row needs an id.")
    ids = tuple(map(str, table["id"].to_pylist()))
    if len(set(ids)) < len(ids):
        duplicate, times = Counter(ids).most_common(1)[0]
        raise MonitoringError(f"duplicate id {duplicate!r} ({times} times) in the rows; ids must be unique.")
    return ids


def _read_numbers(
    table: "pa.Table",
    ids: tuple[str, ...],
    name: str,
    is_valid: Callable[[Float64Array], BoolArray] = np.isfinite,
    expected: str = "a number in every row with a null reason",
) -> Float64Array:
    """Return a column of numbers or booleans, NaN where it is null; raise for the first invalid one. float64 [n]"""
    import pyarrow as pa

    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    try:
        values: Float64Array = column.cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        raise MonitoringError(f"column {name!r} has type {column.type}; expected numbers.") from None
    valid = is_valid(values)
    if not valid.all():
        place = int(np.argmin(valid))
        found = "null or nan" if np.isnan(values[place]) else f"{values[place]:g}"
        raise MonitoringError(f"{name} of image {ids[place]!r} is {found}; expected {expected}.")
    return values


def _read_predicted(table: "pa.Table", policy: Policy, ids: tuple[str, ...]) -> IntArray:
    """Return the predicted classes of each image. int64 [n, k]"""
    if policy.top_k == 1:
        predicted = _read_numbers(table, ids, "label").astype(np.int64)[:, None]
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
        fault = f"the policy has no class {predicted[place].tolist()}, predicted for image {ids[place]!r}"
        raise MonitoringError(fault, repair=OTHER_POLICY)
    return predicted


def _check_accept(
    policy: Policy,
    ids: tuple[str, ...],
    confidence: Float64Array,
    accept: BoolArray,
    predicted: IntArray,
    familiarity: Float64Array,
) -> None:
    """Raise if a decision differs from the policy's, the only sign of another policy in rows without metadata."""
    expected = policy.accept_values(confidence, predicted[:, 0] if policy.grouped_by == "class" else None, familiarity)
    differing = np.flatnonzero(expected != accept)
    if differing.size:
        place = int(differing[0])
        decision = f"{'accepted' if accept[place] else 'rejected'} with confidence {confidence[place]:.6g}"
        fault = f"image {ids[place]!r} was {decision}, but the policy has the threshold {policy.threshold:.6g}"
        if policy.familiarity is not None:
            fault += f" and the familiarity limit {policy.familiarity.limit:.6g} (image: {familiarity[place]:.6g})"
        raise MonitoringError(fault, repair=OTHER_POLICY)


# ---- Reviewed labels


def collect_labels(labels: Labels) -> dict[str, int | str]:
    """Return labels by id; raise if an image has two different ones."""
    if isinstance(labels, str | Path):
        labels = _read_label_file(labels)
    collected: dict[str, int | str] = {}
    for id_, label in labels.items() if isinstance(labels, Mapping) else labels:
        if collected.setdefault(str(id_), label) != label:
            raise MonitoringError(f"image {id_!r} has two labels, {collected[str(id_)]!r} and {label!r}; keep one.")
    return collected


def _read_label_file(path: str | Path) -> list[tuple[str, int | str]]:
    """Read a CSV file with the columns id and label; images without a label are left out."""
    where = f"reviewed labels {str(path)!r}"
    try:
        with io.TextIOWrapper(open_regular_file(path, MAX_RECORD_BYTES), encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = {"id", "label"} - set(rows.fieldnames or ())
            if missing:
                raise MonitoringError(f"{where} have no column {sorted(missing)}; expected a CSV file with both.")
            pairs = [(unescape_formula(row["id"] or ""), (row["label"] or "").strip()) for row in rows]
    except OSError as error:
        raise MonitoringError(f"cannot read {where}: {error.strerror}; check the path.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise MonitoringError(f"cannot read {where}: {error}; expected a CSV file in UTF-8.") from None
    return [(id_, unescape_formula(label)) for id_, label in pairs if unescape_formula(label)]


def find_class(label: object, class_names: tuple[str, ...] | None, id_: str) -> int:
    """Return the index of a class from its name or its index, as a number or as text; or an `Answer`.

    Class names take precedence, even if they look like a number or an answer.
    """
    names = class_names or ()
    if isinstance(label, str) and label in names:
        return names.index(label)
    answer = Answer.find(label) if isinstance(label, str) else label
    if isinstance(answer, Answer):
        return answer
    index = int(label) if is_whole_number(label) or (isinstance(label, str) and label.isdecimal()) else -1
    if index < 0 or (names and index >= len(names)):
        known = f"one of the {len(names)} class names or an index below {len(names)}" if names else "a class index"
        hint = did_you_mean(label, names) if isinstance(label, str) else ""
        fault = f"label {label!r} of image {id_!r} is not a class of the policy"
        raise MonitoringError(f"{fault}; expected {known}.{hint}")
    return index


def name_label(label: int, class_names: Sequence[str] | None) -> str:
    """Return the name of a class, its index if there are no names, or the text of an `Answer`."""
    if label < 0:
        return Answer(label).text
    return class_names[label] if class_names else str(label)
