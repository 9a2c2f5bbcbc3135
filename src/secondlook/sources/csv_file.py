"""`csv:FILE`: a table of image paths and, optionally, labels."""

import csv
import io
from typing import NamedTuple

from secondlook.errors import SourceError, reject_failures
from secondlook.sources.encoded_sources import FileSource, Labeling
from secondlook.sources.labels import parse_labels, read_class_names
from secondlook.sources.regular_files import (
    MAX_TEXT_BYTES,
    find_name,
    open_regular_file,
    reject_url,
)
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec


class Row(NamedTuple):
    """A row of the table: its line number, and its path and label as text."""

    line: int
    path: str
    label: str


@source_scheme(
    "csv",
    form="csv:FILE.csv",
    summary="a table with the columns path (relative to the table) and optionally label (class index or class name)",
    options={
        "path": "name of the column of paths, 'path' by default",
        "label": "name of the column of labels, 'label' by default",
        "classes": "text file with one class name per line, in the order of the classifier's outputs",
    },
)
def open_csv(spec: Spec, read_options: ReadOptions) -> FileSource:
    """Open a table of paths (comma-separated, or tab-separated if its name ends in .tsv)."""
    rows = _read_rows(spec)
    _check_rows(rows, spec)
    texts = [row.label for row in rows]
    names = read_class_names(spec)
    labels, names = parse_labels(texts, names, lambda index: f"line {rows[index].line}", spec.location)
    paths = [spec.path.parent / row.path for row in rows]
    return FileSource(str(spec), paths, [row.path for row in rows], read_options, Labeling(labels, names))


def _read_rows(spec: Spec) -> list[Row]:
    delimiter = "\t" if spec.path.suffix.lower() == ".tsv" else ","
    with (
        reject_failures(f"{spec.location!r} cannot be read as a table", "expected a UTF-8 CSV file", SourceError),
        io.TextIOWrapper(open_regular_file(spec.path, MAX_TEXT_BYTES), encoding="utf-8-sig", newline="") as file,
    ):
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        columns = list(reader.fieldnames or ())
        path = _find_column(spec, "path", columns)
        has_labels = "label" in columns or "label" in spec.options
        label = _find_column(spec, "label", columns) if has_labels else None
        rows = []
        for cells in reader:
            if None in cells:
                raise SourceError(
                    f"line {reader.line_num} of {spec.location!r} has {len(columns) + len(cells[None])} cells, but the"
                    f" header has {len(columns)} columns; put text that contains the separator in double quotes."
                )
            rows.append(
                Row(reader.line_num, (cells[path] or "").strip(), (cells[label] or "").strip() if label else "")
            )
    return rows


def _find_column(spec: Spec, option: str, columns: list[str]) -> str:
    name = spec.options.get(option, option)
    return find_name(name, columns, "column", spec.location, f"; name the column with ?{option}=COLUMN")


def _check_rows(rows: list[Row], spec: Spec) -> None:
    line_of: dict[str, int] = {}
    for row in rows:
        if not row.path:
            raise SourceError(f"line {row.line} of {spec.location!r} has no path; every row needs one.")
        reject_url(row.path, f"line {row.line} of {spec.location!r}")
        if row.path in line_of:
            raise SourceError(
                f"duplicate path {row.path!r} in lines {line_of[row.path]} and {row.line} of {spec.location!r}; remove"
                " one."
            )
        line_of[row.path] = row.line
