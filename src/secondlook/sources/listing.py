"""`csv:FILE`: a table of image paths and, optionally, labels."""

import csv
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
from secondlook.sources.labels import labels_of_names, read_class_names
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import ReadOptions
from secondlook.sources.spec import Spec

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?")
MOST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Row:
    """One image of the table: its line in the file, its path and its label as they are written there."""

    line: int
    path: str
    label: str


@source_scheme(
    "csv",
    form="csv:FILE.csv",
    summary="a table with the columns path (relative to the table) and optionally label (class number or class name)",
    options={
        "path": "the column of the paths, if it is not called path",
        "label": "the column of the labels, if it is not called label",
        "classes": "a text file with one class name per line, in the order of the classifier's outputs",
    },
)
def open_csv(spec: Spec, rules: ReadOptions) -> FileSource:
    """Open a table of paths (comma-separated, or tab-separated if its name ends in .tsv)."""
    rows = _checked_rows(_read_rows(spec), spec)
    class_names = None
    if "classes" in spec.options:
        class_names = read_class_names(Path(spec.options["classes"]).expanduser(), str(spec))
    labels, class_names = _read_labels(rows, class_names, spec)
    paths = [spec.path.parent / row.path for row in rows]
    return FileSource(str(spec), paths, [row.path for row in rows], rules, labels=labels, class_names=class_names)


def _read_rows(spec: Spec) -> list[Row]:
    delimiter = "\t" if spec.path.suffix.lower() == ".tsv" else ","
    try:
        with spec.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            columns = list(reader.fieldnames or ())
            path = _column(spec, "path", columns)
            label = _column(spec, "label", columns) if {"label", spec.options.get("label")} & set(columns) else None
            if label is None and "label" in spec.options:
                _column(spec, "label", columns)
            return [_row(reader.line_num, cells, path, label, spec) for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{spec.location!r} cannot be read as a table: {error}; a CSV file in UTF-8 is needed."
        ) from error


def _row(line: int, cells: Mapping[str | None, str | list[str]], path: str, label: str | None, spec: Spec) -> Row:
    if None in cells:
        columns = len(cells) - 1
        raise SourceError(
            f"line {line} of {spec.location!r} has {columns + len(cells[None])} cells, but the first line names"
            f" {columns} columns; put a text that holds the separator in double quotes."
        )
    return Row(line, str(cells[path] or "").strip(), str(cells[label] or "").strip() if label else "")


def _column(spec: Spec, option: str, columns: list[str]) -> str:
    name = spec.options.get(option, option)
    if name not in columns:
        raise SourceError(
            f"{spec.location!r} has no column {name!r}; its first line names: {', '.join(columns) or 'nothing'}. Name"
            f" the column with ?{option}=COLUMN.{did_you_mean(name, columns)}"
        )
    return name


def _checked_rows(rows: list[Row], spec: Spec) -> list[Row]:
    line_of: dict[str, int] = {}
    for row in rows:
        if not row.path:
            raise SourceError(f"line {row.line} of {spec.location!r} has no path; every line needs one.")
        if row.path in line_of:
            raise SourceError(
                f"path {row.path!r} stands in lines {line_of[row.path]} and {row.line} of {spec.location!r}; keep one."
            )
        line_of[row.path] = row.line
    return rows


def _read_labels(
    rows: list[Row], class_names: tuple[str, ...] | None, spec: Spec
) -> tuple[IntArray | None, tuple[str, ...] | None]:
    """Read numbers as class indices and anything else as class names, sorted unless a file orders them.

    Tables often hold 3.0 for 3. What a file of classes names is a name, even if it reads as a number that no class has.
    """
    written = [row.label for row in rows]
    if not any(written):
        return None, class_names
    if not all(written):
        line = next(row.line for row in rows if not row.label)
        raise SourceError(f"line {line} of {spec.location!r} has no label, others have; label every image or none.")
    indices = all(label.isdecimal() for label in written)
    if indices or (not set(written) <= set(class_names or ()) and all(map(NUMBER.fullmatch, written))):
        return np.array([_class_number(row, spec) for row in rows], dtype=np.int64), class_names
    numbered = next((row for row in rows if NUMBER.fullmatch(row.label)), None)
    if numbered is not None and class_names is None:
        raise SourceError(
            f"the labels of {spec.location!r} mix numbers (line {numbered.line}: {numbered.label!r}) and names; use"
            " one kind, or give ?classes=FILE."
        )
    names = class_names or tuple(sorted(set(written)))
    return labels_of_names(written, names, str(spec)), names


def _class_number(row: Row, spec: Spec) -> int:
    number = Decimal(row.label)
    if not 0 <= number <= MOST or number != int(number):
        raise SourceError(
            f"line {row.line} of {spec.location!r} has the label {row.label}, but a class number is 0, 1, 2 and so on;"
            " write such numbers, or name the classes with ?classes=FILE, one name per line."
        )
    return int(number)
