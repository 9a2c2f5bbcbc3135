"""`csv:FILE`: a table of image paths and, optionally, labels."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.image_files import FileSource
from secondlook.sources.labels import parse_labels, read_class_names
from secondlook.sources.regular_files import MAX_TEXT_BYTES, open_regular_file, reject_damaged, reject_url
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec


@dataclass(frozen=True)
class Row:
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
    class_names = None
    if "classes" in spec.options:
        class_names = read_class_names(Path(spec.options["classes"]).expanduser(), str(spec))
    texts = [row.label for row in rows]
    labels, class_names = parse_labels(texts, class_names, lambda index: f"line {rows[index].line}", spec.location)
    paths = [spec.path.parent / row.path for row in rows]
    ids = [row.path for row in rows]
    return FileSource(str(spec), paths, ids, read_options, labels=labels, class_names=class_names)


def _read_rows(spec: Spec) -> list[Row]:
    delimiter = "\t" if spec.path.suffix.lower() == ".tsv" else ","
    with (
        reject_damaged(f"{spec.location!r} cannot be read as a table", "expected a UTF-8 CSV file"),
        io.TextIOWrapper(open_regular_file(spec.path, MAX_TEXT_BYTES), encoding="utf-8-sig", newline="") as file,
    ):
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        columns = list(reader.fieldnames or ())
        path = _find_column(spec, "path", columns)
        has_labels = "label" in columns or "label" in spec.options
        label = _find_column(spec, "label", columns) if has_labels else None
        return [_parse_row(reader.line_num, cells, path, label, spec) for cells in reader]


def _parse_row(line: int, cells: Mapping[str | None, str | list[str]], path: str, label: str | None, spec: Spec) -> Row:
    if None in cells:
        n_columns = len(cells) - 1
        raise SourceError(
            f"line {line} of {spec.location!r} has {n_columns + len(cells[None])} cells, but the header has"
            f" {n_columns} columns; put text that contains the separator in double quotes."
        )
    return Row(line, str(cells[path] or "").strip(), str(cells[label] or "").strip() if label else "")


def _find_column(spec: Spec, option: str, columns: list[str]) -> str:
    name = spec.options.get(option, option)
    if name not in columns:
        raise SourceError(
            f"no column {name!r} in {spec.location!r}; its columns: {', '.join(columns) or 'none'}; name the column"
            f" with ?{option}=COLUMN.{did_you_mean(name, columns)}"
        )
    return name


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
