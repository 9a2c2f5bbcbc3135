"""Results of an experiment: rows for the CSV file, tables, pictures, and missing items."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from reproduction.inputs import MissingItem

CSV_NAMES = {"subset": "part"}
"""Column names in the kept CSV files that differ from the field."""


@dataclass(frozen=True)
class ResultRow:
    """A number with its interval, its gain over MSR(x) on the same images, and the published number; as fractions."""

    piece: str
    column: str
    subset: str
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
    """Position on the axis, for a point of a curve."""

    @property
    def difference(self) -> float | None:
        """Our number minus the published one."""
        return None if self.published is None else self.value - self.published

    def to_dict(self) -> dict[str, object]:
        """Return the values by the column names of the CSV file."""
        return {name: getattr(self, field) for field, name in _columns()}


def _columns() -> list[tuple[str, str]]:
    names = [*(one.name for one in fields(ResultRow)), "difference"]
    return [(name, CSV_NAMES.get(name, name)) for name in names]


def format_csv(rows: Iterable[ResultRow]) -> str:
    """Return rows as CSV, with six decimals so that equal runs produce equal text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for _, name in _columns()])
    for row in rows:
        writer.writerow([_format_value(value) for value in row.to_dict().values()])
    return text.getvalue()


def _format_value(value: object) -> object:
    if value is None:
        return ""
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(value, 6) + 0.0:.6f}" if isinstance(value, float) else value


@dataclass(frozen=True)
class Picture:
    """A plot or an image that can be saved as PNG."""

    name: str
    caption: str
    save: Callable[[Path], None]


_LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "^": r"\^{}",
          "~": r"\~{}", "{": r"\{", "}": r"\}", "|": r"\textbar{}"}  # fmt: skip


@dataclass(frozen=True)
class TextTable:
    """A title, column headings and rows of text, printed as plain text, Markdown or LaTeX."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def drop_empty_columns(self) -> "TextTable":
        """Return the table without the columns that have no text."""
        kept = [i for i in range(len(self.head)) if any(row[i] for row in self.rows)]
        return TextTable(
            self.title, tuple(self.head[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in self.rows)
        )

    def to_text(self) -> str:
        """Return aligned text."""
        widths = [max(map(len, cells)) for cells in zip(self.head, *self.rows, strict=True)]
        return "\n".join([self.title, *(_align(row, widths) for row in (self.head, *self.rows))])

    def to_markdown(self) -> str:
        """Return a Markdown table below its title."""
        rule = "|".join("---" for _ in self.head)
        lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in self.rows)
        return "\n".join([f"**{self.title}**", "", f"| {' | '.join(self.head)} |", f"|{rule}|", *lines])

    def to_latex(self) -> str:
        """Return a LaTeX table that uses the booktabs package."""
        lines = [f"{' & '.join(map(_escape_latex, row))} \\\\" for row in (self.head, *self.rows)]
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        columns = "l" * len(self.head)
        start = (r"\begin{table}", r"\centering", f"\\begin{{tabular}}{{{columns}}}")
        end = (r"\end{tabular}", f"\\caption{{{_escape_latex(self.title)}}}", r"\end{table}")
        return "\n".join([*start, *body, *end])


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def format_percent(value: float | None) -> str:
    """Return a fraction times 100, like in the paper."""
    return "" if value is None else f"{100 * value:.2f}"


def format_difference(value: float | None) -> str:
    """Return a difference of fractions times 100, with its sign."""
    return "" if value is None else f"{100 * value:+.2f}"


def format_interval(low: float | None, high: float | None, *, sign: bool = False) -> str:
    """Return an interval times 100."""
    show = format_difference if sign else format_percent
    return "" if low is None or high is None else f"[{show(low)}, {show(high)}]"


@dataclass(frozen=True)
class PieceResult:
    """The results of one piece of an experiment."""

    title: str
    rows: tuple[ResultRow, ...] = ()
    tables: tuple[TextTable, ...] = ()
    pictures: tuple[Picture, ...] = ()
    missing: tuple[MissingItem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether there are any results."""
        return bool(self.rows or self.pictures)
