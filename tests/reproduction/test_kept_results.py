"""The kept results are complete, and the documentation agrees with them."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCS = ROOT / "reproduction" / "results", ROOT / "docs"
PICTURES = {"results-wrn-gains.png": "cifar10-wrn/methods-gains.png", "results-shift.png": "cifar10-resnet/shift.png"}

Rows = list[dict[str, str]]


def read_results(experiment: str) -> Rows:
    return list(csv.DictReader((RESULTS / experiment / "results.csv").read_text().splitlines()))


def read_documented_gains() -> dict[str, list[str]]:
    """Return the cells of the first table of docs/results.md by column."""
    lines = (DOCS / "results.md").read_text().splitlines()
    head = lines.index("| classifier | accuracy | MSR(x) | MSR(D) | gain |")
    table = lines[head + 2 : lines.index("", head)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0].removeprefix("WRN, ").replace("seed ", "seed"): row[1:] for row in cells}


def find_row(rows: Rows, column: str, method: str, metric: str) -> dict[str, str]:
    wanted = {"piece": "methods", "column": column, "method": method, "metric": metric, "by": "x"}
    (found,) = (row for row in rows if wanted.items() <= row.items())
    return found


def test_documented_gains_are_the_measured_ones_on_all_images() -> None:
    documented = read_documented_gains()
    seen = set()
    for experiment in ("cifar10-resnet", "cifar10-wrn"):
        rows = read_results(experiment)
        assert {row["images"] for row in rows} == {"10000"}
        for column in dict.fromkeys(row["column"] for row in rows if row["piece"] == "methods" and row["method"]):
            if column not in documented:
                continue
            before, after = (find_row(rows, column, method, "aorc_joint") for method in ("MSR(x)", "MSR(D)"))
            measured = [before["value"], after["value"], after["gain"], after["gain_low"], after["gain_high"]]
            accuracy, *others = map(float, re.findall(r"[-+]?[0-9.]+", " ".join(documented[column])))
            assert accuracy == float(find_row(rows, column, "MSR(x)", "accuracy")["value"])
            # Both are rounded, the documented ones to two decimals.
            assert others == pytest.approx([100 * float(value) for value in measured], abs=0.0051)
            seen.add(column)
    assert seen == set(documented)
    assert len(seen) == 12


def test_documentation_shows_the_kept_pictures() -> None:
    for shown, made in PICTURES.items():
        assert (DOCS / "images" / shown).read_bytes() == (RESULTS / made).read_bytes()
