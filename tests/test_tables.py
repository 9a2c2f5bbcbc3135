"""Cells of CSV files: no text is a formula, and every text can be restored."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from secondlook.tables import escape_formula, format_csv_row, unescape_formula

TEXT = st.text(st.sampled_from("'=+-@\t\r\n＝\",;a1 "), max_size=6)


@given(TEXT)
def test_escaped_text_is_no_formula_and_can_be_restored(text: str) -> None:
    escaped = escape_formula(text)
    assert isinstance(escaped, str)
    assert not escaped.startswith(tuple("=+-@\t\r\n＝＋－＠"))
    assert unescape_formula(escaped) == text


def test_only_formulas_are_escaped() -> None:
    assert [escape_formula(cell) for cell in (-1, -0.5, None, "a=1", "'a", "", "1-2")] == [
        *(-1, -0.5, None, "a=1", "'a", "", "1-2")
    ]
    assert format_csv_row(["=a", -1.5, None, "b,c"]) == '\'=a,-1.5,,"b,c"\n'


@given(st.lists(TEXT | st.integers(-9, 9), min_size=2, max_size=4))
def test_cells_are_read_as_they_were_written(cells: list[str | int]) -> None:
    line = format_csv_row(cells)
    assert line.endswith("\n")
    (read,) = csv.reader(io.StringIO(line, newline=""))
    assert [unescape_formula(text) for text in read] == [str(cell) for cell in cells]
