"""Parsers for label files from spreadsheets and labeling tools."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from secondlook.extension import MonitoringError, ServingError, find_class, read_regular_file, unescape_formula
from secondlook.serving.request_images import is_id
from secondlook.serving.responses import RequestError


class NewLabel(NamedTuple):
    """An imported label, and its place in the file."""

    where: str
    """For example `row 3`."""
    id: str
    label: int
    """A class, or an `Answer`."""
    reviewer: str | None = None
    """Name of the reviewer, if the file has it."""


def parse_label_file(
    content: bytes, class_names: tuple[str, ...] | None, *, by_reviewer: bool = False
) -> list[NewLabel]:
    """Read labels from a file: CSV or Parquet with the columns id and label, or an export of Label Studio as JSON.

    Images without a label are skipped. Labels are class names or indices, or the texts of an `Answer`. With
    `by_reviewer`, a column reviewer is read too, and an image may have labels of several reviewers.
    """
    if content.startswith(b"PAR1"):
        found = _read_parquet(content)
    elif content.lstrip()[:1] in (b"[", b"{"):
        found = _read_label_studio(content)
    else:
        found = _read_csv(content)
    labels: dict[tuple[str, str | None], NewLabel] = {}
    for where, id_, label, named in found:
        reviewer = (named or None) if by_reviewer else None
        if not is_id(id_):  # databases reject some strings
            raise RequestError(422, "unknown_id", f"{where}: {id_!r} is not a valid id; remove the row.")
        if reviewer is not None and not is_id(reviewer):
            raise _make_error(f"{where}: {reviewer!r} is not a valid name of a reviewer; correct it.")
        try:
            new = NewLabel(where, id_, find_class(label, class_names, id_), reviewer)
        except MonitoringError as error:
            raise RequestError(422, "unknown_class", f"{where}: {error}") from None
        known = labels.setdefault((id_, reviewer), new)
        if known.label != new.label:
            raise _make_error(f"{where}: image {id_!r} has another label at {known.where}; keep the correct one.")
    return list(labels.values())


def read_label_file(path: Path, class_names: tuple[str, ...]) -> dict[str, int]:
    """Return the labels of a file by id; see `parse_label_file`."""
    try:
        return {one.id: one.label for one in parse_label_file(read_regular_file(path), class_names)}
    except OSError as error:
        raise ServingError(f"cannot read the labels {str(path)!r}: {error.strerror}; check the path.") from None
    except RequestError as error:
        raise ServingError(f"the labels {str(path)!r}: {error}") from None


_Found = tuple[str, str, object, str | None]
"""Place in the file, image id, label, and reviewer."""


def _read_csv(content: bytes) -> Iterator[_Found]:
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        _check_columns(rows.fieldnames or ())
        for row in rows:
            label = unescape_formula((row["label"] or "").strip())
            if label:
                reviewer = unescape_formula((row.get("reviewer") or "").strip())
                yield f"line {rows.line_num}", unescape_formula(row["id"] or ""), label, reviewer
    except (UnicodeDecodeError, csv.Error) as error:
        raise _make_error(f"the file cannot be read: {error}; expected CSV in UTF-8.") from None


def _read_parquet(content: bytes) -> Iterator[_Found]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            _check_columns(file.schema_arrow.names)
            row = 0
            columns = [name for name in ("id", "label", "reviewer") if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=columns):
                for one in batch.to_pylist():
                    row, label = row + 1, one["label"]
                    if label not in (None, "") and label == label:  # pandas writes missing numbers as NaN
                        is_whole = isinstance(label, float) and label.is_integer()
                        yield (
                            f"row {row}",
                            str(one["id"]),
                            int(label) if is_whole else label,
                            str(one.get("reviewer") or ""),
                        )
    except (pa.ArrowException, OSError) as error:
        raise _make_error(f"the Parquet file cannot be read: {error}; export it again.") from None


def _read_label_studio(content: bytes) -> Iterator[_Found]:
    try:
        tasks = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _make_error(f"the file cannot be read: {error}; expected JSON as Label Studio exports it.") from None
    for place, task in enumerate(tasks if isinstance(tasks, list) else [tasks], 1):
        where = f"task {place}"
        data = task.get("data") if isinstance(task, dict) else None
        if not isinstance(data, dict) or not isinstance(data.get("id"), str):
            raise _make_error(f"{where} has no data.id; expected tasks that this service exported, in the format JSON.")
        for choices in _list_choices(task):
            if len(choices) != 1:
                raise _make_error(f"{where}: image {data['id']!r} has {len(choices)} classes; choose one.")
            yield where, data["id"], choices[0], None


def _list_choices(task: dict[str, Any]) -> Iterator[list[object]]:
    """Yield the choices of all annotations of a task, except canceled ones."""
    for annotation in _only_dicts(task.get("annotations")):
        if not annotation.get("was_cancelled"):
            values = _only_dicts([result.get("value") for result in _only_dicts(annotation.get("result"))])
            yield from (value["choices"] for value in values if isinstance(value.get("choices"), list))


def _only_dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _check_columns(names: Iterable[str]) -> None:
    missing = " and ".join(map(repr, sorted({"id", "label"} - set(names))))
    if missing:
        raise _make_error(f"the file has no column {missing}; expected the columns id and label.")


def _make_error(message: str) -> RequestError:
    return RequestError(422, "unreadable_labels", message)
