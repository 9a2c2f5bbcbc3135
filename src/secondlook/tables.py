"""Tables of results: aligned text for people, Arrow and pandas for programs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from secondlook.imports import import_extra

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


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
