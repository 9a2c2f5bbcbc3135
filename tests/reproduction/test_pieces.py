"""What the runner makes of each kind of piece, against plain computations on the same predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from reproduction.bench import Bench
from reproduction.comparing import run_comparison
from reproduction.experiment import (
    PREDICT_FROM,
    Column,
    Comparison,
    ContactSheets,
    Contrast,
    Experiment,
    Intensity,
    MetricExplained,
    ResamplingStudy,
    RiskCoverage,
    Term,
)
from reproduction.findings import Findings, Row
from reproduction.paper_tables import BOOTSTRAP, DIGITS, FLIP_ONLY, MEAN, METHODS, MSR
from reproduction.runner import run_experiment
from secondlook.classifiers import Classifier
from secondlook.metrics import coverage_at
from secondlook.predictions import Predictions, collect
from secondlook.views import ViewSet

VIEWS = "identity hflip shift:2,0 shift:0,3"
COLUMN = Column("one", "cifar10", ("cifar10-vgg8",), VIEWS)
STL10 = Column("five", "stl10", tuple(f"stl10-wrn-{seed}" for seed in range(5)), "identity hflip")


@pytest.fixture
def bench(data_root: Path, stand_ins: dict[str, Classifier], tmp_path: Path) -> Bench:
    return Bench(data_root, tmp_path / "store", stand_ins, progress=False)


def run(piece: Any, bench: Bench) -> Findings:
    return run_experiment(Experiment("test", "Test", (piece,)), bench)[0]


def plain(bench: Bench, column: Column = COLUMN, part: Any = "evaluation", views: str = VIEWS) -> Predictions:
    source = bench.source(column.data_set, part)
    return collect(bench.classifier(column.classifiers[0]), source, ViewSet(views))


def value(rows: tuple[Row, ...], method: str, by: str = "x", metric: str = "aorc_joint", column: str = "one") -> float:
    return next(
        row.value for row in rows if (row.method, row.by, row.metric, row.column) == (method, by, metric, column)
    )


def test_a_method_with_views_of_its_own_does_not_change_the_views_of_the_others(bench: Bench) -> None:
    narrow = Column("one", "cifar10", ("cifar10-vgg8",), "identity shift:2,0")
    found = run(Comparison("t", "T", (narrow,), (MSR, MEAN, FLIP_ONLY), by=("x", "D")), bench)
    assert {row.method for row in found.rows if row.by == "D"} == {"MSR(x)", "MSR(D)"}
    preds = plain(bench, narrow, views="identity shift:2,0")
    for by in ("x", "D"):
        correct = preds.correct(predict_from=PREDICT_FROM[by])
        chosen = preds.predicted(predict_from=PREDICT_FROM[by])
        mean = preds.probabilities.astype(float).mean(axis=1)[np.arange(len(preds)), chosen]
        assert value(found.rows, "MSR(D)", by) == pytest.approx(roc_auc_score(correct, mean))
    flips = plain(bench, narrow, views="identity hflip")
    mean = flips.probabilities.astype(float).mean(axis=1)[np.arange(len(flips)), flips.predicted()]
    assert value(found.rows, "MSR(x,hflip)") == pytest.approx(roc_auc_score(flips.correct(), mean))


def test_gains_are_differences_to_the_baseline_with_intervals_around_them(bench: Bench) -> None:
    rows = run(Comparison("t", "T", (COLUMN,), METHODS), bench).rows
    baseline = rows[0]
    assert baseline.method == "MSR(x)"
    assert baseline.gain is None
    for row in rows[1:]:
        assert row.gain == pytest.approx(row.value - baseline.value)
        assert row.low is not None
        assert row.high is not None
        assert row.gain_low is not None
        assert row.gain_high is not None
        assert row.low <= row.high
        assert row.gain_low <= row.gain_high


def test_a_contrast_adds_and_takes_away_cells(bench: Bench) -> None:
    terms = (Term(1, "one", "BS(D)"), Term(-1, "one", "MSR(D)"))
    by_d = (Term(1, "one", "MSR(x)", "D"), Term(-1, "one", "MSR(x)", "x"))
    contrasts = (Contrast("bootstrap", "aorc_joint", terms), Contrast("class by D", "accuracy", by_d))
    found = run(
        Comparison("t", "T", (COLUMN,), METHODS, ("aorc_joint", "accuracy"), ("x", "D"), "all", contrasts), bench
    )
    first, second = (row for row in found.rows if row.piece == "t-contrasts")
    assert first.value == pytest.approx(value(found.rows, "BS(D)") - value(found.rows, "MSR(D)"))
    preds = plain(bench, part="experimental"), plain(bench)
    gained = sum(
        int(one.correct(predict_from="views").sum()) - int(one.correct(predict_from="image").sum()) for one in preds
    )
    assert second.value == pytest.approx(gained / 60)
    assert "differences on the same images" in found.grids[-1].title


def test_all_images_are_both_parts_each_once(bench: Bench) -> None:
    preds = bench.predictions(COLUMN, "all", ViewSet(VIEWS))
    parts = [bench.predictions(COLUMN, part, ViewSet(VIEWS)) for part in ("experimental", "evaluation")]
    assert sorted(preds.ids) == [f"{number:06d}" for number in range(60)]
    assert np.array_equal(preds.probabilities, np.concatenate([part.probabilities for part in parts]))
    assert np.array_equal(preds.labels, np.concatenate([part.labels for part in parts]))


def test_an_ensemble_is_the_mean_of_its_members(bench: Bench) -> None:
    found = run(Comparison("t", "T", (STL10,), (MSR, MEAN, BOOTSTRAP), part="all"), bench)
    preds = bench.predictions(STL10, "all", ViewSet("identity hflip"))
    assert len(preds.members) == 5
    mean = np.mean([member.probabilities.astype(float) for member in preds.members], axis=0)
    predicted = mean[:, 0].argmax(axis=1)
    surety = mean.mean(axis=1)[np.arange(60), predicted]
    expected = roc_auc_score(predicted == preds.labels, surety)
    assert value(found.rows, "MSR(D)", column="five") == pytest.approx(expected, abs=1e-6)


def test_an_intensity_point_is_the_mean_over_its_views(bench: Bench) -> None:
    points = ((0.0, ("identity",)), (3.0, ("shift:3,0", "shift:-3,0")))
    found = run(Intensity("shift", "Shift", "pixels", (COLUMN,), points), bench)
    preds = plain(bench, part="experimental", views="identity shift:3,0 shift:-3,0")
    surest = preds.probabilities.max(axis=2)
    aurocs = [roc_auc_score(preds.correct(), surest[:, view]) for view in range(3)]
    assert [row.at for row in found.rows] == [0.0, 3.0]
    assert [row.value for row in found.rows] == pytest.approx([aurocs[0], np.mean(aurocs[1:])])


def test_the_gain_at_a_tolerated_risk_is_counted_in_images(bench: Bench) -> None:
    found = run(RiskCoverage("rc", "RC", COLUMN, METHODS, risk=0.3, published="something"), bench)
    preds = plain(bench)
    confidence = preds.probabilities[:, 0].max(axis=1)
    assert found.rows[0].value == pytest.approx(coverage_at(preds.correct(), confidence, 0.3))
    row = next(row for row in found.rows if row.method == "MSR(D)" and row.metric.startswith("coverage"))
    assert row.gain is not None
    (cells,) = (cells for cells in found.grids[0].rows if cells[0] == "MSR(D)")
    assert f"{round(row.gain * 54):+,d}" in cells
    assert found.notes == ("Published: something.",)


def test_the_areas_of_the_explained_metric_give_its_value(bench: Bench) -> None:
    found = run(MetricExplained("aorc", "AORC", COLUMN, MEAN), bench)
    assert f"{100 * found.rows[0].value:.2f}" == found.grids[0].rows[-1][1]


def test_more_resamplings_vary_less_between_seeds(bench: Bench) -> None:
    study = ResamplingStudy("bs", "BS", (COLUMN,), (3, 1000), (1, 1000), (0, 1, 2, 3))
    rows = run(study, bench).rows
    assert [(row.method, row.at) for row in rows] == [
        ("BS(D), resamplings", 3.0), ("BS(D), resamplings", 1000.0), ("BS(D), window", 1.0), ("BS(D), window", 1000.0),
    ]  # fmt: skip
    few, many = ((row.high or 0) - (row.low or 0) for row in rows[:2])
    assert few > many >= 0


def test_pictures_are_drawn(bench: Bench, tmp_path: Path) -> None:
    pieces = (
        Comparison("table", "Table", (COLUMN,), METHODS),
        Intensity("shift", "Shift", "pixels", (COLUMN,), ((0.0, ("identity",)), (3.0, ("shift:3,0",)))),
        RiskCoverage("rc", "RC", COLUMN, METHODS),
        MetricExplained("aorc", "AORC", COLUMN, MEAN),
        ContactSheets("views", "Views", (COLUMN,)),
    )
    for found in run_experiment(Experiment("test", "Test", pieces), bench):
        for picture in found.pictures:
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.png"
            picture.save(path)
            assert path.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.glob("*.png"))) == 5


def test_a_sheet_needs_data_but_no_classifier(data_root: Path, tmp_path: Path) -> None:
    found = run(ContactSheets("views", "Views", (COLUMN,)), Bench(data_root, tmp_path / "store"))
    assert [picture.name for picture in found.pictures] == [f"views-cifar10-{VIEWS}"]
    assert not found.missing


def test_a_piece_that_fails_says_why_and_the_others_run(bench: Bench) -> None:
    wrong = Column("wrong", "cifar10", ("cifar100-vgg8",), VIEWS)  # a hundred classes for ten names
    first, second = run_experiment(
        Experiment("test", "Test", (Comparison("a", "A", (wrong,), METHODS), Comparison("b", "B", (COLUMN,), METHODS))),
        bench,
    )
    assert not first.has_run
    assert "class_names" in first.missing[0].why
    assert second.has_run


def test_a_method_that_cannot_be_computed_is_listed_and_the_others_stay(bench: Bench) -> None:
    from reproduction.paper_tables import DISTANCE

    column = Column("elu", "stl10", ("stl10-elu",), "identity hflip", methods=(DISTANCE,))
    found = run_comparison(Comparison("t", "T", (column,), METHODS), bench)
    assert {row.method for row in found.rows} == {"MSR(x)", "MSR(D)", "BS(D)"}
    assert "layer" in found.missing[0].why


def test_rows_of_another_set_are_added_to_their_column(bench: Bench) -> None:
    column = Column("svhn", "svhn", ("svhn-vgg8",), "svhn", methods=(DIGITS,))
    found = run(Comparison("t", "T", (column, COLUMN), (MSR,)), bench)
    assert [(row.column, row.method) for row in found.rows] == [
        ("svhn", "MSR(x)"), ("svhn", "MSR(digits)"), ("one", "MSR(x)"),
    ]  # fmt: skip
