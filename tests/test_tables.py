"""Cells of CSV files are no formulas, numbers keep the digits that matter, and HTML is escaped."""

import csv
import io
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from secondlook.tables import (
    TextTable,
    escape_formula,
    format_csv_row,
    format_difference,
    format_difference_interval,
    format_html,
    format_image_share,
    format_value,
    shorten_name,
    unescape_formula,
)

TEXT = st.text(st.sampled_from("'=+-@\t\r\n＝\",;a1 "), max_size=6)


@given(TEXT)
def test_escaped_text_is_no_formula_and_can_be_restored(text: str) -> None:
    escaped = escape_formula(text)
    assert isinstance(escaped, str)
    assert not escaped.startswith(tuple("=+-@\t\r\n＝＋－＠"))
    assert unescape_formula(escaped) == text


def test_only_formulas_are_escaped() -> None:
    cells = [-1, -0.5, None, "a=1", "'a", "", "1-2"]
    assert [escape_formula(cell) for cell in cells] == cells
    assert format_csv_row(["=a", -1.5, None, "b,c"]) == '\'=a,-1.5,,"b,c"\n'


@given(st.lists(TEXT | st.integers(-9, 9), min_size=2, max_size=4))
def test_cells_are_read_unchanged(cells: list[str | int]) -> None:
    line = format_csv_row(cells)
    assert line.endswith("\n")
    (read,) = csv.reader(io.StringIO(line, newline=""))
    assert [unescape_formula(text) for text in read] == [str(cell) for cell in cells]


def test_numbers_keep_the_digits_that_matter() -> None:
    differences = (0.0, 1e-17, -1e-17, 0.00003, -0.00003, 0.0123, 2e-9, 0.00123, -0.000512, 0.25)
    shown = "same same same +3.0e-5 -3.0e-5 +0.0123 +2.0e-9 +0.0012 -0.00051 +0.2500"
    assert [format_difference(value) for value in differences] == shown.split()
    values = (0.0, 1.0, 0.99997, 0.00002, 0.12345, 0.0123, 0.00123, 0.0099996, 0.000405, -0.0123)
    shown = "0.0000 1.0000 0.99997 2.00e-5 0.1235 0.0123 0.00123 0.0100 4.05e-4 -0.0123"
    assert [format_value(value) for value in values] == shown.split()
    assert format_difference_interval(-0.01, 0.0) == "[-0.0100, 0]"
    assert format_difference_interval(0.0, 1e-18) == ""
    shares = ((0.4, 5), (0.112, 1000), (0.06612, 10_000))
    assert [format_image_share(*one) for one in shares] == ["40 %", "11.2 %", "6.61 %"], "no more digits than images"


@given(st.floats(-1, 1))
def test_no_difference_reads_as_zero(value: float) -> None:
    text = format_difference(value)
    if text == "same":
        assert abs(value) < 1e-9
    else:
        assert float(text) != 0
        assert (float(text) > 0) == (value > 0)
        assert abs(float(text) - value) <= 0.5e-4


@given(st.floats(1e-9, 0.9999))
def test_values_keep_three_digits_and_four_decimals(value: float) -> None:
    text = format_value(value)
    assert float(text) == float(f"{value:.2e}") or abs(float(text) - value) <= 0.5e-4
    assert abs(float(text) - value) <= 0.006 * value
    assert len(text) <= 7, "so that tables fit"


class Collector(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@given(st.lists(st.text(st.sampled_from("<>&\"'/script $a"), max_size=12), min_size=3, max_size=3))
def test_html_escapes_all_text(texts: list[str]) -> None:
    """In paragraphs, headers, headings of rows, and cells."""
    table = TextTable([["header", *texts], [texts[0], "", "", ""], ["row", *texts]])
    page = Collector()
    page.feed(format_html([texts[1], table]))
    page.close()
    assert page.elements <= {"div", "p", "br", "table", "thead", "tbody", "tr", "th", "td"}
    told = re.sub(r"\s", "", "".join(page.text))
    assert told == re.sub(r"\s", "", "".join([texts[1], "header", *texts, texts[0], "row", *texts]))


def test_headings_of_rows_do_not_widen_the_table() -> None:
    lines = str(TextTable([["", "value"], ["a long heading", ""], ["  a", "1"]])).splitlines()
    assert lines == ["     value", "a long heading", "  a  1"]
    assert 'colspan="2"' in format_html([TextTable([["", "value"], ["a long heading", ""]])])


@given(st.text(max_size=40), st.integers(3, 40))
def test_short_names_stay_and_long_ones_lose_their_middle(name: str, width: int) -> None:
    short = shorten_name(name, width)
    assert len(short) == min(len(name), width)
    start, cut, end = short.partition("…")
    assert short == name or (cut and name.startswith(start) and name.endswith(end))
