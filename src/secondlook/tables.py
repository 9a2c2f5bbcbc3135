"""Tables of results: aligned text for people, CSV cells for spreadsheets, Arrow and pandas for programs."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from secondlook.imports import import_extra

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# What spreadsheets run as a formula (the list of OWASP), and texts that escaping would make look like an escaped one.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def format_csv_row(cells: Iterable[object]) -> str:
    """Return a line of a CSV file, whose texts spreadsheets do not run as formulas."""
    line = io.StringIO(newline="")
    # Only characters of the line end are quoted, so the writer must know both: a lone "\r" would start a new row.
    csv.writer(line, lineterminator="\r\n").writerow(map(escape_formula, cells))
    return line.getvalue().removesuffix("\r\n") + "\n"


def escape_formula(cell: object) -> object:
    """Return a cell of a CSV file so that spreadsheets do not run it: a text like '=A1' gets a single quote in front.

    Numbers and other texts are returned as they are. `unescape_formula` restores the text.
    """
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def unescape_formula(text: str) -> str:
    """Return the text that `escape_formula` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def format_table(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Return rows of cells as aligned lines; with `numbers` all columns but the first are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_format_line(row, widths, numbers) for row in rows)


def _format_line(row: Sequence[str], widths: Sequence[int], numbers: bool) -> str:
    first, *others = (
        cell.rjust(width) if numbers and column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def arrow_table(columns: Mapping[str, Any]) -> "pa.Table":
    """Return columns (arrays or lists of equal length) as an Arrow table."""
    import pyarrow as pa

    return pa.table(dict(columns))


def pandas_frame(table: "pa.Table") -> "pd.DataFrame":
    """Return an Arrow table as a pandas data frame; pandas is an optional dependency."""
    import_extra("pandas", feature="to_frame()", extra="pandas")
    return table.to_pandas()
