"""Files of the review queue: exports for spreadsheets and labeling tools, and labels that come back from them."""

import base64
import csv
import datetime
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from secondlook.extension import LabelStudio, MonitoringError, ReviewImage, find_class, format_csv_row, unescape_formula
from secondlook.serving.request_images import is_id
from secondlook.serving.responses import RequestError
from secondlook.serving.store import NewLabel, QueueState, StoredDecision, get_interval

if TYPE_CHECKING:
    import pyarrow as pa

    from secondlook.serving.service import Service

ExportFormat = Literal["csv", "parquet", "label-studio", "label-studio-config"]

FILE_TYPES: dict[ExportFormat, tuple[str, str]] = {
    "csv": ("csv", "text/csv; charset=utf-8"),
    "parquet": ("parquet", "application/vnd.apache.parquet"),
    "label-studio": ("json", "application/json"),
    "label-studio-config": ("xml", "application/xml"),
}
"""Suffix and media type of each format."""

MAX_MEMORY = 8 * 2**20
"""Larger exports are written to a temporary file before they are sent."""


@dataclass(frozen=True)
class ReviewExport:
    """The images in some states, as files."""

    service: "Service"
    class_names: tuple[str, ...] | None
    states: Sequence[QueueState]

    def write(self, format_: ExportFormat) -> Iterator[bytes]:
        """Return the pieces of a file."""
        if format_ == "csv":
            return self._write_csv()
        if format_ == "parquet":
            return self._write_parquet()
        if format_ == "label-studio":
            items = (item for part in self.service.reviews.iter_items(self.states) for item in part)
            return LabelStudio.format_tasks(map(self._make_task, items))
        if self.class_names is None:
            raise RequestError(404, "no_class_names", "the labeling interface needs class names, which are unknown.")
        return iter([LabelStudio.format_interface(self.class_names).encode()])

    def _write_csv(self) -> Iterator[bytes]:
        yield format_csv_row(_make_schema().names).encode()
        for items in self.service.reviews.iter_items(self.states):
            rows = [self._make_row(item) for item in items]
            yield "".join(format_csv_row(map(_format_cell, row.values())) for row in rows).encode()

    def _write_parquet(self) -> Iterator[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _make_schema()
        with tempfile.SpooledTemporaryFile(max_size=MAX_MEMORY) as file:
            with pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, compression="zstd") as writer:
                for items in self.service.reviews.iter_items(self.states):
                    writer.write_table(pa.Table.from_pylist([self._make_row(item) for item in items], schema=schema))
            file.seek(0)
            yield from iter(lambda: file.read(2**16), b"")

    def _make_row(self, item: StoredDecision) -> dict[str, object]:
        about = item._asdict() | {
            "label": None if item.reviewed_label is None else self._name(item.reviewed_label),
            "predicted": self._name(item.label),
            "reviewed_at": None if item.reviewed_at is None else _as_time(item.reviewed_at),
            "decided_at": _as_time(item.decided_at),
            "policy": self.service.decisions.find_deployment(item.deployment).checksum,
        }
        return {name: about[name] for name in _make_schema().names}

    def _make_task(self, item: StoredDecision) -> dict[str, object]:
        image = self.service.reviews.read_image(item.number) if item.has_image else None
        address = item.name or item.id
        if image is not None:  # the image itself: other hosts cannot load it from this service
            address = f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"
        about = (item.id, item.label, self._name(item.label), "", item.confidence, get_interval(item), item.accept)
        task = LabelStudio.make_task(ReviewImage(item.number, *about), address)
        if item.reviewed_label is not None:
            task["annotations"] = [{"result": [LabelStudio.make_choice(self._name(item.reviewed_label))]}]
        return task

    def _name(self, label: int) -> str:
        return str(label) if self.class_names is None else self.class_names[label]


def parse_label_file(content: bytes, class_names: tuple[str, ...] | None) -> list[NewLabel]:
    """Read labels from a file: CSV or Parquet with the columns id and label, or an export of Label Studio as JSON.

    Images without a label are left out. The classes are given by name or index.
    """
    if content.startswith(b"PAR1"):
        found = _read_parquet(content)
    elif content.lstrip()[:1] in (b"[", b"{"):
        found = _read_label_studio(content)
    else:
        found = _read_csv(content)
    labels: dict[str, NewLabel] = {}
    for where, id_, label in found:
        if not is_id(id_):  # databases refuse some texts
            raise RequestError(422, "unknown_id", f"{where}: {id_!r} is not the id of an image; remove the row.")
        try:
            new = NewLabel(where, id_, find_class(label, class_names, id_))
        except MonitoringError as error:
            raise RequestError(422, "unknown_class", f"{where}: {error}") from None
        known = labels.setdefault(id_, new)
        if known.label != new.label:
            raise _make_error(f"{where}: image {id_!r} has another label at {known.where}; keep the correct one.")
    return list(labels.values())


_Found = tuple[str, str, object]
"""Where a label was found, the id of its image, and the class."""


def _read_csv(content: bytes) -> Iterator[_Found]:
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        _check_columns(rows.fieldnames or ())
        for row in rows:
            label = unescape_formula((row["label"] or "").strip())
            if label:
                yield f"line {rows.line_num}", unescape_formula(row["id"] or ""), label
    except (UnicodeDecodeError, csv.Error) as error:
        raise _make_error(f"the file cannot be read: {error}; expected CSV in UTF-8.") from None


def _read_parquet(content: bytes) -> Iterator[_Found]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            _check_columns(file.schema_arrow.names)
            row = 0
            for batch in file.iter_batches(columns=["id", "label"]):
                for id_, label in zip(batch["id"].to_pylist(), batch["label"].to_pylist(), strict=True):
                    row += 1
                    if label not in (None, "") and label == label:  # pandas writes missing numbers as NaN
                        is_whole = isinstance(label, float) and label.is_integer()
                        yield f"row {row}", str(id_), int(label) if is_whole else label
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
            yield where, data["id"], choices[0]


def _list_choices(task: dict[str, Any]) -> Iterator[list[object]]:
    """Yield the choices of all annotations of a task; those that were canceled count as none."""
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


def _make_schema() -> "pa.Schema":
    import pyarrow as pa

    text, number, flag, time = pa.string(), pa.float64(), pa.bool_(), pa.timestamp("us", tz="UTC")
    types = {"id": text, "label": text, "name": text, "predicted": text, "confidence": number}
    types |= {"low": number, "high": number, "accept": flag, "audit": flag, "looks": pa.int64(), "disagreement": number}
    types |= {"state": text, "reviewer": text, "reviewed_at": time, "decided_at": time, "policy": text}
    return pa.schema(list(types.items()))


def _as_time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _format_cell(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="milliseconds")
    return json.dumps(value) if isinstance(value, bool) else value
