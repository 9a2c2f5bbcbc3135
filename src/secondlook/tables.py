"""Tables of results: aligned text, HTML, CSV cells for spreadsheets, and pandas; and the format of numbers."""

import csv
import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from secondlook.imports import import_extra

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Cells that spreadsheets run as formulas (OWASP list), and texts that look as if they were escaped already.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_CREDENTIALS = re.compile(
    r"(:/{1,2})[^\s/@'\"]+(?=@)|([?&](?:access_token|key|password|secret|token)=)[^\s&'\"]+", re.IGNORECASE
)
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def format_csv_row(cells: Iterable[object]) -> str:
    """Return a line of a CSV file, with formulas escaped for spreadsheets."""
    line = io.StringIO(newline="")
    # The writer quotes only the characters of its line terminator; an unquoted "\r" would start a new row.
    csv.writer(line, lineterminator="\r\n").writerow(map(escape_formula, cells))
    return line.getvalue().removesuffix("\r\n") + "\n"


def escape_formula(cell: object) -> object:
    """Escape a cell of a CSV file for spreadsheets: a text like '=A1' gets a single quote in front."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def escape_controls(text: str) -> str:
    """Escape the control characters of a text for a terminal, which could hide or replace other texts."""
    return text.translate(_CONTROLS)


def hide_credentials(text: str) -> str:
    """Hide user names, passwords and tokens of URLs."""
    return _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***", text)


def unescape_formula(text: str) -> str:
    """Undo `escape_formula`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def format_class(class_names: tuple[str, ...] | None, label: int) -> str:
    """Return the name of a class, with its index if another class has the same name."""
    if class_names is None:
        return str(label)
    name = class_names[label]
    return name if class_names.count(name) == 1 else f"{name} ({label})"


MAX_LISTED_GROUPS = 20
"""Maximum number of groups in a table; the worst ones are kept."""
MAX_NAME_WIDTH = 32


def shorten_name(name: str, width: int = MAX_NAME_WIDTH) -> str:
    """Shorten a long name in the middle, since class names may share a prefix."""
    end = width // 3
    return name if len(name) <= width else f"{name[: width - end - 1]}…{name[-end:]}"


MAX_DECIMALS = 9
VALUE_DIGITS, DIFFERENCE_DIGITS = 3, 2
"""Minimum number of significant digits."""
MAX_FIXED_DECIMALS = 5
"""Numbers that need more are written like 4.05e-4, so that tables stay within 80 columns."""
ROUNDING_ERROR = 1e-9
"""Smaller differences between metrics count as 0."""


def format_value(value: float, decimals: int = 4, *, digits: int = VALUE_DIGITS, sign: str = "") -> str:
    """Format a number with minimum decimals and significant digits: '0.9123', '0.0123', '0.00123', '1.23e-4'.

    A number close to 1 gets more decimals until it does not read as 1.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:{sign}.{decimals}f}"
    mantissa, exponent = f"{value:{sign}.{digits - 1}e}".split("e")
    decimals = max(decimals, digits - 1 - int(exponent))
    if decimals > MAX_FIXED_DECIMALS:
        return f"{mantissa}e{int(exponent)}"
    text = f"{value:{sign}.{decimals}f}"
    while decimals < MAX_DECIMALS and abs(float(text)) == 1 and float(text) != value:
        decimals += 1
        text = f"{value:{sign}.{decimals}f}"
    return text


def format_difference(value: float, decimals: int = 4, *, none: str = "same") -> str:
    """Format a difference with its sign, or return `none` instead of '+0.0000'."""
    return none if abs(value) < ROUNDING_ERROR else format_value(value, decimals, digits=DIFFERENCE_DIGITS, sign="+")


def format_difference_interval(low: float, high: float) -> str:
    """Format the interval of a difference; "" if both ends are zero."""
    ends = format_difference(low, none="0"), format_difference(high, none="0")
    return "" if ends == ("0", "0") else f"[{ends[0]}, {ends[1]}]"


def format_rate(share: float) -> str:
    """Format a share in percent with three significant digits: '2 %', '0.512 %'."""
    return f"{100 * share:.3g} %"


def format_power_of_ten(log10: float) -> str:
    """Format 10 ** log10 as a number, or as a power of ten if it is large or small: '20', '0.31', '1e+12'."""
    return f"{10**log10:.3g}" if -2 <= log10 < 5 else f"1e{math.floor(log10):+d}"


def format_image_share(share: float, n_images: int, *, sign: str = "", unit: str = " %") -> str:
    """Format a share of images in percent, with decimals by the number of images: '40 %', '11.2 %'."""
    decimals = 0 if n_images <= 100 else 1 if n_images <= 1000 else 2
    return f"{100 * share:{sign}.{decimals}f}{unit}"


ARROWS = {"higher": "↑", "lower": "↓"}
"""Direction of better values of a metric."""


def describe_prediction(predict_from: str, top_k: int) -> str:
    """Describe the prediction, such as 'class predicted from the image'."""
    return f"{'class' if top_k == 1 else f'top-{top_k} classes'} predicted from the {predict_from}"


@dataclass(frozen=True)
class TextTable:
    """Rows of cells, the first of which is the header; `str` aligns them."""

    rows: Sequence[Sequence[str]]
    numbers: bool = False
    """Whether all columns but the first are right-aligned."""

    def __str__(self) -> str:
        return format_table(self.rows, numbers=self.numbers)

    def to_html(self) -> str:
        """Return an HTML table with escaped text."""
        header, *rows = ([html.escape(cell) for cell in row] for row in self.rows)
        align = "right" if self.numbers else "left"
        head, body = _html_row(header, "th"), "".join(_html_row(row, "td") for row in rows)
        return f'<table style="text-align: {align}"><thead>{head}</thead><tbody>{body}</tbody></table>'


def format_html(blocks: Iterable[object]) -> str:
    """Return the notebook output of a result: tables as tables, all other blocks as paragraphs of escaped text."""
    return f'<div class="tex2jax_ignore">{"".join(map(_html_block, blocks))}</div>'  # no formula in a class named "$5"


def _html_block(block: object) -> str:
    if isinstance(block, TextTable):
        return block.to_html()
    return f"<p>{'<br>'.join(html.escape(line) for line in str(block).splitlines())}</p>"


def _html_row(cells: Sequence[str], element: str) -> str:
    if element == "td" and is_heading(cells):
        return f'<tr><th colspan="{len(cells)}" style="text-align: left">{cells[0]}</th></tr>'
    others = "".join(f"<{element}>{cell}</{element}>" for cell in cells[1:])
    return f'<tr><{element} style="text-align: left">{cells[0]}</{element}>{others}</tr>'


def is_heading(row: Sequence[str]) -> bool:
    """Return whether a row has several cells, of which only the first may have content."""
    return len(row) > 1 and not any(row[1:])


def format_table(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Align rows in columns; `numbers` right-aligns all but the first. Headings do not widen columns."""
    measured = [row for row in rows if not is_heading(row)] or rows
    widths = [max(map(len, column)) for column in zip(*measured, strict=True)]
    aligns = [">" if numbers and column else "<" for column in range(len(widths))]
    lines = ([f"{cell:{align}{width}}" for cell, align, width in zip(row, aligns, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def pandas_frame(table: "pa.Table") -> "pd.DataFrame":
    """Return an Arrow table as a pandas data frame; pandas is an optional dependency."""
    import_extra("pandas", feature="to_frame()", extra="pandas")
    return table.to_pandas()
