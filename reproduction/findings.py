"""What an experiment found: rows for the CSV, grids for people, pictures, and what could not be run."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from reproduction.grid import Grid
from reproduction.needed import Missing


@dataclass(frozen=True)
class Row:
    """One number with its interval, its gain over MSR(x) on the same images, and the paper's number. All not x100."""

    piece: str
    column: str
    part: str
    images: int
    errors: int | None
    by: str
    k: int
    method: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    published: float | None = None
    published_gain: float | None = None
    published_accuracy: float | None = None
    at: float | None = None
    """The place on the axis, for a point of a curve."""

    @property
    def difference(self) -> float | None:
        """Ours less the published number."""
        return None if self.published is None else self.value - self.published


@dataclass(frozen=True)
class Picture:
    """A plot or an image that saves itself as PNG."""

    name: str
    caption: str
    save: Callable[[Path], None]


@dataclass(frozen=True)
class Findings:
    """The outcome of one piece of an experiment."""

    title: str
    rows: tuple[Row, ...] = ()
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether anything came out."""
        return bool(self.rows or self.pictures)


def csv_text(rows: Iterable[Row]) -> str:
    """Return rows as CSV; numbers have six decimals, so that the same run gives the same text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(one.name for one in fields(Row)), "difference"])
    for row in rows:
        writer.writerow([_cell(value) for value in (*astuple(row), row.difference)])
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    # A rounded -0.0 would differ from 0.0 by its sign alone.
    return f"{round(value, 6) + 0.0:.6f}" if isinstance(value, float) else value
