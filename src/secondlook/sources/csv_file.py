"""`csv:FILE`: a table of image paths and, optionally, labels."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.image_files import FileSource
from secondlook.sources.labels import encode_labels, read_class_names
from secondlook.sources.regular_files import MAX_TEXT_BYTES, open_regular_file, reject_damaged
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?")
MAX_CLASS_INDEX = np.iinfo(np.int64).max


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
    labels, class_names = _parse_labels(rows, class_names, spec)
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
        if row.path in line_of:
            raise SourceError(
                f"duplicate path {row.path!r} in lines {line_of[row.path]} and {row.line} of {spec.location!r}; remove"
                " one."
            )
        line_of[row.path] = row.line


def _parse_labels(
    rows: list[Row], class_names: tuple[str, ...] | None, spec: Spec
) -> tuple[IntArray | None, tuple[str, ...] | None]:
    """Parse numbers as class indices and other text as class names, in sorted order or that of the `classes` file.

    Tables often contain 3.0 for 3. A name in the `classes` file is a name even if it looks like a number.
    """
    texts = [row.label for row in rows]
    if not any(texts):
        return None, class_names
    if not all(texts):
        line = next(row.line for row in rows if not row.label)
        raise SourceError(f"line {line} of {spec.location!r} has no label, but other rows do; label all rows or none.")
    are_indices = all(text.isdecimal() for text in texts)
    if are_indices or (not set(texts) <= set(class_names or ()) and all(map(NUMBER.fullmatch, texts))):
        return np.array([_parse_class_index(row, spec) for row in rows], dtype=np.int64), class_names
    number = next((row for row in rows if NUMBER.fullmatch(row.label)), None)
    if number is not None and class_names is None:
        raise SourceError(
            f"the labels of {spec.location!r} mix numbers ({number.label!r} in line {number.line}) and names; use only"
            " one of them, or add ?classes=FILE."
        )
    names = class_names or tuple(sorted(set(texts)))
    return encode_labels(texts, names, str(spec)), names


def _parse_class_index(row: Row, spec: Spec) -> int:
    number = Decimal(row.label)
    if not 0 <= number <= MAX_CLASS_INDEX or number != int(number):
        raise SourceError(
            f"label {row.label} in line {row.line} of {spec.location!r} is not a class index; expected 0, 1, 2, ..., or"
            " class names listed one per line in ?classes=FILE."
        )
    return int(number)
