"""Exports of the review queue for spreadsheets and labeling tools."""

import base64
import datetime
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from secondlook.extension import LabelStudio, ReviewImage, format_csv_row, name_label
from secondlook.serving.responses import RequestError
from secondlook.serving.store import QueueState, StoredDecision, StoredImage, get_interval

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

CHUNK_BYTES = 2**18
"""Minimum size of a chunk; each is passed between threads."""
MAX_MEMORY = 8 * 2**20
"""Larger Parquet exports go to a temporary file before they are sent."""


@dataclass(frozen=True)
class ReviewExport:
    """Export of the images in some states."""

    service: "Service"
    class_names: tuple[str, ...] | None
    states: Sequence[QueueState]

    def write(self, format_: ExportFormat) -> Iterator[bytes]:
        """Return the file in chunks."""
        if format_ == "csv":
            return self._write_csv()
        if format_ == "parquet":
            return self._write_parquet()
        if format_ == "label-studio":
            return _join_chunks(LabelStudio.format_tasks(self._make_tasks()))
        if self.class_names is None:
            raise RequestError(404, "no_class_names", "the labeling interface needs class names, which are unknown.")
        return iter([LabelStudio.format_interface(self.class_names).encode()])

    def _write_csv(self) -> Iterator[bytes]:
        names = _make_schema().names
        yield format_csv_row(names).encode()
        for items in self.service.reviews.iter_items(self.states):
            rows = [self._make_row(item) for item in items]
            yield "".join(format_csv_row(_format_cell(row[name]) for name in names) for row in rows).encode()

    def _write_parquet(self) -> Iterator[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _make_schema()
        with tempfile.SpooledTemporaryFile(max_size=MAX_MEMORY) as file:
            with pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, compression="zstd") as writer:
                for items in self.service.reviews.iter_items(self.states):
                    writer.write_table(pa.Table.from_pylist([self._make_row(item) for item in items], schema=schema))
            file.seek(0)
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")

    def _make_row(self, item: StoredDecision) -> dict[str, Any]:
        return item._asdict() | {
            "label": None if item.reviewed_label is None else self._name(item.reviewed_label),
            "predicted": self._name(item.label),
            "reviewed_at": None if item.reviewed_at is None else _as_time(item.reviewed_at),
            "decided_at": _as_time(item.decided_at),
            "policy": self.service.decisions.find_deployment(item.deployment).checksum,
        }

    def _make_tasks(self) -> Iterator[dict[str, object]]:
        for items in self.service.reviews.iter_items(self.states):
            yield from map(self._make_task, items, self.service.reviews.iter_images([item.number for item in items]))

    def _make_task(self, item: StoredDecision, image: StoredImage | None) -> dict[str, object]:
        address = item.name or item.id
        if image is not None:  # embed it: other hosts cannot load it from this service
            address = f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"
        about = (item.id, item.label, self._name(item.label), "", item.confidence, get_interval(item), item.accept)
        task = LabelStudio.make_task(ReviewImage(item.number, *about), address)
        task["meta"] = {"comment": item.comment, "label_count": item.label_count}
        if item.reviewed_label is not None:
            task["annotations"] = [{"result": [LabelStudio.make_choice(self._name(item.reviewed_label))]}]
        return task

    def _name(self, label: int) -> str:
        return name_label(label, self.class_names)


def _join_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces to chunks of at least `CHUNK_BYTES`, except the last."""
    joined = bytearray()
    for piece in pieces:
        joined += piece
        if len(joined) >= CHUNK_BYTES:
            yield bytes(joined)
            joined.clear()
    yield bytes(joined)


def _make_schema() -> "pa.Schema":
    import pyarrow as pa

    text, number, flag, time = pa.string(), pa.float64(), pa.bool_(), pa.timestamp("us", tz="UTC")
    types = {"id": text, "label": text, "name": text, "predicted": text, "confidence": number}
    types |= {"low": number, "high": number, "accept": flag, "familiarity": number, "rejection": text, "audit": flag}
    types |= {"looks": pa.int64(), "disagreement": number}
    types |= {"state": text, "reviewer": text, "reviewed_at": time, "comment": text, "label_count": pa.int64()}
    types |= {"decided_at": time, "policy": text}
    return pa.schema(list(types.items()))


def _as_time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _format_cell(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="milliseconds")
    return json.dumps(value) if isinstance(value, bool) else value
