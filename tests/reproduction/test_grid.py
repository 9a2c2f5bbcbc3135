"""Grids of texts: aligned, escaped, without empty columns."""

from reproduction.findings import Row, csv_text
from reproduction.grid import Grid, ends, percent, signed

GRID = Grid("A_title", ("method", "empty", "50 %"), (("MSR(x)", "", "1.00"), ("a|b & c", "", "22.00")))


def test_empty_columns_are_left_out() -> None:
    assert GRID.filled().head == ("method", "50 %")
    assert GRID.filled().rows == (("MSR(x)", "1.00"), ("a|b & c", "22.00"))


def test_text_is_aligned() -> None:
    assert GRID.filled().text().splitlines() == ["A_title", "  method   50 %", "  MSR(x)   1.00", "  a|b & c  22.00"]


def test_markdown_escapes_bars() -> None:
    assert GRID.filled().markdown().splitlines()[-1] == r"| a\|b & c | 22.00 |"


def test_latex_escapes_what_is_special() -> None:
    text = GRID.filled().latex()
    assert r"method & 50 \% \\" in text
    assert r"a\textbar{}b \& c & 22.00 \\" in text
    assert r"\caption{A\_title}" in text


def test_numbers_are_shown_times_a_hundred() -> None:
    assert percent(0.9412) == "94.12"
    assert signed(0.0011) == "+0.11"
    assert ends(-0.001, 0.02, sign=True) == "[-0.10, +2.00]"
    assert percent(None) == signed(None) == ends(None, 1.0) == ""


def test_the_csv_has_raw_numbers_with_six_decimals_and_no_negative_zero() -> None:
    row = Row("t", "c", "all", 10, 2, "x", 1, "MSR(x)", "aorc_joint", -1e-9, published=0.5)
    head, line = csv_text([row]).splitlines()
    cells = dict(zip(head.split(","), line.split(","), strict=True))
    assert cells["value"] == "0.000000"
    assert cells["difference"] == "-0.500000"
    assert cells["low"] == ""
