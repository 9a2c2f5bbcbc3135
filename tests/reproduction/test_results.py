"""Text tables and the CSV file."""

from reproduction.results import ResultRow, TextTable, format_csv, format_difference, format_interval, format_percent

TABLE = TextTable("A_title", ("method", "empty", "50 %"), (("MSR(x)", "", "1.00"), ("a|b & c", "", "22.00")))


def test_text_is_aligned_markdown_and_latex_are_escaped_and_empty_columns_are_dropped() -> None:
    table = TABLE.drop_empty_columns()
    assert table.to_text().splitlines() == ["A_title", "  method   50 %", "  MSR(x)   1.00", "  a|b & c  22.00"]
    assert table.to_markdown().splitlines()[-1] == r"| a\|b & c | 22.00 |"
    text = table.to_latex()
    assert r"method & 50 \% \\" in text
    assert r"a\textbar{}b \& c & 22.00 \\" in text
    assert r"\caption{A\_title}" in text


def test_fractions_are_printed_times_100_and_absent_numbers_as_empty_text() -> None:
    assert format_percent(0.9412) == "94.12"
    assert format_difference(0.0011) == "+0.11"
    assert format_interval(-0.001, 0.02, sign=True) == "[-0.10, +2.00]"
    assert format_percent(None) == format_difference(None) == format_interval(None, 1.0) == ""


def test_csv_has_kept_columns_six_decimals_and_no_negative_zero() -> None:
    row = ResultRow("t", "c", "all", 10, 2, "x", 1, "MSR(x)", "aorc_joint", -1e-9, published=0.5)
    head, line = format_csv([row]).splitlines()
    cells = dict(zip(head.split(","), line.split(","), strict=True))
    assert cells["value"] == "0.000000"
    assert cells["difference"] == "-0.500000"
    assert cells["low"] == ""
    assert format_csv([]) == (
        "piece,column,part,images,errors,by,k,method,metric,value,low,high,gain,gain_low,gain_high,published,"
        "published_gain,published_accuracy,at,difference\n"
    )
