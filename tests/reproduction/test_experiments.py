"""The declared experiments refer only to data sets, classifiers, methods, metrics and views that exist."""

import pytest

from reproduction import CLASSIFIERS, DATA_SETS, EXPERIMENTS, GROUPS, Column, Comparison, Experiment, ReproductionError
from reproduction.catalog import find_experiments
from reproduction.experiment import Piece, required_views, view_texts
from reproduction.measurements import DISTANCE
from secondlook.estimators import METHODS
from secondlook.metrics import parse_metrics
from secondlook.views import PRESETS

NAMES = [
    *("table1", "table2", "table3", "table4", "table5", "supplement"),
    *("figure-views", "figure-intensity", "figure-rc", "figure-aorc", "cifar10-resnet", "cifar10-wrn"),
]


def columns_of(piece: Piece) -> tuple[Column, ...]:
    return getattr(piece, "columns", None) or (piece.column,)  # type: ignore[union-attr]


def comparisons() -> list[Comparison]:
    pieces = [piece for experiment in EXPERIMENTS.values() for piece in experiment.pieces]
    return [piece for piece in pieces if isinstance(piece, Comparison)]


def test_every_table_and_figure_is_declared_once_and_in_a_group() -> None:
    assert list(EXPERIMENTS) == NAMES
    assert [*GROUPS["all"].experiments, *GROUPS["results"].experiments] == NAMES
    assert GROUPS["results"].experiments == ("cifar10-resnet", "cifar10-wrn")
    assert [one.name for one in find_experiments("results")] == NAMES[10:]
    with pytest.raises(ReproductionError, match=r"'tabel2'.*'table2'"):
        find_experiments("tabel2")
    with pytest.raises(ReproductionError, match="'table2'"):
        EXPERIMENTS.add(EXPERIMENTS["table2"])
    assert [bool(piece.contrasts) for piece in comparisons()].count(True) == 2


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_columns_refer_to_existing_inputs(experiment: Experiment) -> None:
    for column in (column for piece in experiment.pieces for column in columns_of(piece)):
        assert column.data_set in DATA_SETS
        assert set(column.classifiers) <= set(CLASSIFIERS)
        assert view_texts(column.views)[0] == "identity"


@pytest.mark.parametrize("piece", comparisons(), ids=lambda one: one.name)
def test_comparisons_and_contrasts_refer_to_what_exists(piece: Comparison) -> None:
    assert len(parse_metrics(piece.metrics)) == len(piece.metrics)
    for column in piece.columns:
        assert all(
            row.confidence.partition(":")[0] in {*METHODS, DISTANCE} for row in (*piece.methods, *column.methods)
        )
        assert set(view_texts(column.views)) <= set(required_views(column, piece.methods).texts)
    titles, symbols = {column.title for column in piece.columns}, {row.symbol for row in piece.methods}
    for contrast in piece.contrasts:
        assert contrast.metric in piece.metrics
        assert {term.column for term in contrast.terms} <= titles
        assert {term.method for term in contrast.terms} <= symbols
        assert {term.by for term in contrast.terms} <= set(piece.by)


def test_preset_warnings_are_not_repeated() -> None:
    assert PRESETS["svhn-released"].warning is not None
    assert len(view_texts("svhn-released")) == 17
