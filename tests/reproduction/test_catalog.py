"""The declared experiments: names, and nothing in them that does not exist."""

import pytest

from reproduction import EXPERIMENTS, GROUPS, Column, Experiment
from reproduction.catalog import experiments_named
from reproduction.classifier_plans import CLASSIFIERS
from reproduction.data_sets import DATA_SETS
from reproduction.experiment import Comparison, Piece, texts_of, views_needed
from secondlook.errors import ExperimentError
from secondlook.estimators import METHODS
from secondlook.metrics import parse_metrics
from secondlook.views import PRESETS

NAMES = [
    *("table1", "table2", "table3", "table4", "table5", "supplement"),
    *("figure-views", "figure-intensity", "figure-rc", "figure-aorc", "cifar10-resnet", "cifar10-wrn"),
]


def columns_of(piece: Piece) -> tuple[Column, ...]:
    return getattr(piece, "columns", None) or (piece.column,)  # type: ignore[union-attr]


def test_every_table_and_figure_is_there() -> None:
    assert list(EXPERIMENTS) == NAMES
    assert [*GROUPS["all"], *GROUPS["results"]] == NAMES
    assert GROUPS["results"] == ("cifar10-resnet", "cifar10-wrn")
    assert [one.name for one in experiments_named("results")] == NAMES[10:]


def test_an_unknown_name_is_answered_with_the_closest_one() -> None:
    with pytest.raises(ExperimentError, match=r"unknown experiment 'tabel2'.*Did you mean 'table2'"):
        experiments_named("tabel2")


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_every_column_names_what_exists(experiment: Experiment) -> None:
    for column in (column for piece in experiment.pieces for column in columns_of(piece)):
        assert column.data_set in DATA_SETS
        assert set(column.classifiers) <= set(CLASSIFIERS)
        assert texts_of(column.views)[0] == "identity"


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.name)
def test_every_comparison_names_methods_metrics_and_views_that_exist(experiment: Experiment) -> None:
    for piece in experiment.pieces:
        if isinstance(piece, Comparison):
            assert len(parse_metrics(piece.metrics)) == len(piece.metrics)
            for column in piece.columns:
                assert all(row.confidence.partition(":")[0] in METHODS for row in (*piece.methods, *column.methods))
                assert set(texts_of(column.views)) <= set(views_needed(column, piece.methods).texts)


def test_every_contrast_names_cells_of_its_table() -> None:
    for experiment in EXPERIMENTS.values():
        for piece in experiment.pieces:
            if isinstance(piece, Comparison):
                titles, symbols = {one.title for one in piece.columns}, {row.symbol for row in piece.methods}
                for contrast in piece.contrasts:
                    assert contrast.metric in piece.metrics
                    assert {term.column for term in contrast.terms} <= titles
                    assert {term.method for term in contrast.terms} <= symbols
                    assert {term.by for term in contrast.terms} <= set(piece.by)


def test_the_splits_are_those_of_the_released_code() -> None:
    sizes = {key: (one.experimental, one.images) for key, one in DATA_SETS.items()}
    assert sizes["cifar10"] == sizes["cifar100"] == (1000, 10_000)
    assert sizes["stl10"] == (1000, 8000)
    assert sizes["svhn"] == (3254, 26_032)
    assert sizes["imagenet"] == (1000, 50_000)


def test_a_data_set_cut_short_is_split_in_the_same_proportion() -> None:
    assert DATA_SETS["svhn"].experimental_images(26_032) == 3254
    assert DATA_SETS["svhn"].experimental_images(80) == 10
    assert DATA_SETS["imagenet"].experimental_images(5) == 1


def test_the_views_of_a_preset_with_a_warning_are_taken_without_repeating_it() -> None:
    assert PRESETS["svhn-released"].warning is not None
    assert len(texts_of("svhn-released")) == 17
