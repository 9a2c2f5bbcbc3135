"""The published numbers are complete, unchanged and consistent with the two identities behind them."""

import csv
import re
from collections import Counter, defaultdict
from importlib.resources import files
from itertools import product
from pathlib import Path

import pytest

from reproduction import EXPERIMENTS, Comparison, PublishedValue, load_published_values
from reproduction.experiment import PublishedColumn
from reproduction.paper import find_published_value

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper"
needs_paper = pytest.mark.skipif(not PAPER.is_dir(), reason="needs the paper's numbers next to the repository")

PRINTED_CELL = re.compile(r"([0-9.]+) (?:\\textbf\{)?\(([-+][0-9.]+)\)")
"""A value and its gain, which is bold where it is the best."""


@needs_paper
@pytest.mark.parametrize("name", ["published.csv", "table1.csv"])
def test_published_values_are_those_of_the_paper(name: str) -> None:
    ours = csv.DictReader(files("reproduction").joinpath(name).read_text(encoding="utf-8").splitlines())
    theirs = list(csv.DictReader((PAPER / name).read_text(encoding="utf-8").splitlines()))
    assert [{column: row[column] for column in theirs[0]} for row in ours] == theirs


@needs_paper
def test_published_gains_are_those_printed_beside_the_values() -> None:
    text = (PAPER / "paper.tex").read_text(encoding="utf-8")
    (flip_row,) = re.findall(r"^MSR\(\$x\$,.*", text, re.MULTILINE)  # only in Table 4, not in the supplement
    printed = PRINTED_CELL.findall(text[text.index("%% file: tables/") :] + flip_row)
    stored = [one for one in load_published_values() if one.column.table > 1]
    for one, (value, gain) in zip(stored, printed, strict=True):
        assert (100 * one.value, 100 * (one.gain or 0)) == pytest.approx((float(value), float(gain))), one


def test_published_numbers_are_complete_and_found_by_their_cell_and_covered() -> None:
    tables = [one.column.table for one in load_published_values()]
    assert len(tables) - tables.count(1) == 347
    assert tables.count(1) == 32
    printed = PublishedColumn(3, "ImageNet", "ResNext")
    found = find_published_value(printed, "x", "aorc_joint", 5, "BS(D)")
    assert found is not None
    assert found.value == pytest.approx(0.8851)
    assert find_published_value(printed, "x", "aorc_joint", 5, "IAD") is None
    assert find_published_value(None, "x", "aorc_joint", 1, "MSR(x)") is None
    covered = set()
    for experiment in EXPERIMENTS.values():
        for piece in experiment.pieces:
            if isinstance(piece, Comparison):
                for column, by, metric in product(piece.columns, piece.by, piece.metrics):
                    for row in (*piece.methods, *column.methods):
                        covered.add(find_published_value(column.published, by, metric, column.k, row.symbol))
    assert covered - {None} == set(load_published_values())


def test_every_published_gain_is_within_rounding_of_the_printed_values() -> None:
    counts, differing = Counter[str](), Counter[str]()
    for one in load_published_values():
        baseline = find_published_value(one.column, one.by, one.metric, one.k, "MSR(x)")
        assert (one.gain is None) == (baseline in (None, one)), one
        if one.gain is None or baseline is None:
            continue
        difference = one.value - baseline.value
        # Half a digit of either value, and half a digit of the gain, which always has two.
        assert one.gain == pytest.approx(difference, abs=printed_digit(one) + 0.00005 + 1e-9, rel=0), one
        counts[one.method] += 1
        differing[one.method] += one.gain != pytest.approx(difference, abs=1e-9, rel=0)
    assert counts == {"MSR(D)": 112, "BS(D)": 112, "IAD": 8, "MSR(x,hflip)": 3}
    assert counts["MSR(D)"] + counts["BS(D)"] == 224
    assert differing["MSR(D)"] + differing["BS(D)"] == 133
    assert differing.total() == 142


def printed_digit(one: PublishedValue) -> float:
    """Return the last printed digit of a value, as a fraction; ImageNet is printed with one more."""
    return 0.0001 if one.column.table == 3 else 0.001


def test_aorc_equals_auroc_and_eaurc_follows_from_it_and_accuracy_in_all_86_cells() -> None:
    cells: dict[object, dict[str, PublishedValue]] = defaultdict(dict)
    for one in load_published_values():
        cells[one.column, one.by, one.k, one.method][one.metric] = one
    complete = [cell for cell in cells.values() if len(cell) == 4]
    assert len(complete) == 86
    for cell in complete:
        assert cell["aorc_joint"].value == cell["auroc"].value, cell
        assert cell["aorc_joint"].gain == cell["auroc"].gain, cell
        digit = printed_digit(cell["auroc"])
        auroc, accuracy = cell["auroc"].value, cell["auroc"].accuracy
        possible = [
            (1 - auroc - one) * (accuracy + other) * (1 - accuracy - other)
            for one, other in product((-digit / 2, digit / 2), (-0.0005, 0.0005))
        ]
        printed = cell["eaurc_joint"].value
        assert min(possible) - digit / 2 <= printed + 1e-12, cell
        assert printed - 1e-12 <= max(possible) + digit / 2, cell
        gain, excess_gain = cell["auroc"].gain, cell["eaurc_joint"].gain
        if gain is not None:
            # Half a digit of either gain, and of the accuracy.
            rounding = 0.00005 * (1 + accuracy * (1 - accuracy)) + 0.0005 * abs(gain)
            assert excess_gain == pytest.approx(-gain * accuracy * (1 - accuracy), abs=rounding, rel=0), cell
