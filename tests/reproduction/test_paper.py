"""The published numbers are complete, unchanged and consistent with the two identities behind them."""

from collections import defaultdict
from importlib.resources import files
from itertools import product
from pathlib import Path

import pytest

from reproduction import EXPERIMENTS, Comparison, PublishedValue, load_published_values
from reproduction.experiment import PublishedColumn
from reproduction.paper import find_published_value

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper"


@pytest.mark.parametrize("name", ["published.csv", "table1.csv"])
@pytest.mark.skipif(not PAPER.is_dir(), reason="needs the paper's numbers next to the repository")
def test_published_numbers_are_those_of_the_paper(name: str) -> None:
    assert files("reproduction").joinpath(name).read_bytes() == (PAPER / name).read_bytes()


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


def test_aorc_equals_auroc_and_eaurc_follows_from_it_and_accuracy_in_all_86_cells() -> None:
    cells: dict[object, dict[str, PublishedValue]] = defaultdict(dict)
    for one in load_published_values():
        cells[one.column, one.by, one.k, one.method][one.metric] = one
    complete = [cell for cell in cells.values() if len(cell) == 4]
    assert len(complete) == 86
    for cell in complete:
        assert cell["aorc_joint"].value == cell["auroc"].value, cell
        digit = 0.0001 if cell["auroc"].column.table == 3 else 0.001  # ImageNet is printed with one more digit
        auroc, accuracy = cell["auroc"].value, cell["auroc"].accuracy
        possible = [
            (1 - auroc - one) * (accuracy + other) * (1 - accuracy - other)
            for one, other in product((-digit / 2, digit / 2), (-0.0005, 0.0005))
        ]
        printed = cell["eaurc_joint"].value
        assert min(possible) - digit / 2 <= printed + 1e-12, cell
        assert printed - 1e-12 <= max(possible) + digit / 2, cell
