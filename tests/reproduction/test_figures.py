"""Figures against plain computations on the same predictions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import secondlook as sl
from reproduction import Column, Comparison, Experiment
from reproduction.experiment import ContactSheets, Intensity, MetricExplained, ResamplingStudy, RiskCoverage
from reproduction.figures import (
    run_contact_sheets,
    run_intensity,
    run_metric_explained,
    run_resampling_study,
    run_risk_coverage,
)
from reproduction.paper import MEAN, PAPER_METHODS
from reproduction.runner import run_experiment
from reproduction.workspace import Workspace
from secondlook.metrics import coverage_at

Collect = Callable[..., sl.Predictions]

VIEWS = "identity hflip shift:2,0 shift:0,3"
COLUMN = Column("one", "cifar10", ("cifar10-vgg8",), VIEWS)


def test_intensity_point_is_the_mean_over_its_views(workspace: Workspace, collect_plainly: Collect) -> None:
    points = ((0.0, ("identity",)), (3.0, ("shift:3,0", "shift:-3,0")))
    found = run_intensity(Intensity("shift", "Shift", "pixels", (COLUMN,), points), workspace)
    preds = collect_plainly(COLUMN, "experimental", "identity shift:3,0 shift:-3,0")
    confidences = preds.probabilities.max(axis=2)
    aurocs = [roc_auc_score(preds.correct(), confidences[:, view]) for view in range(3)]
    assert [row.at for row in found.rows] == [0.0, 3.0]
    assert [row.value for row in found.rows] == pytest.approx([aurocs[0], np.mean(aurocs[1:])])


def test_gain_at_a_risk_is_in_images_and_areas_yield_aorc(workspace: Workspace, collect_plainly: Collect) -> None:
    figure = RiskCoverage("rc", "RC", COLUMN, PAPER_METHODS, risk=0.3, published="something")
    found = run_risk_coverage(figure, workspace)
    preds = collect_plainly(COLUMN)
    confidence = preds.probabilities[:, 0].max(axis=1)
    assert found.rows[0].value == pytest.approx(coverage_at(preds.correct(), confidence, 0.3))
    row = next(row for row in found.rows if row.method == "MSR(D)" and row.metric.startswith("coverage"))
    assert row.gain is not None
    (cells,) = (cells for cells in found.tables[0].rows if cells[0] == "MSR(D)")
    assert f"{round(row.gain * 54):+,d}" in cells
    assert "something" in found.notes[0]
    areas = run_metric_explained(MetricExplained("aorc", "AORC", COLUMN, MEAN), workspace)
    assert f"{100 * areas.rows[0].value:.2f}" == areas.tables[0].rows[-1][1]


def test_more_resamplings_vary_less_between_seeds(workspace: Workspace) -> None:
    study = ResamplingStudy("bs", "BS", (COLUMN,), (3, 1000), (1, 1000), (0, 1, 2, 3))
    rows = run_resampling_study(study, workspace).rows
    assert [(row.method, row.at) for row in rows] == [
        ("BS(D), resamplings", 3.0), ("BS(D), resamplings", 1000.0), ("BS(D), window", 1.0), ("BS(D), window", 1000.0),
    ]  # fmt: skip
    few, many = ((row.high or 0) - (row.low or 0) for row in rows[:2])
    assert few > many >= 0


def test_pictures_are_saved_as_png(workspace: Workspace, tmp_path: Path) -> None:
    pieces = (
        Comparison("table", "Table", (COLUMN,), PAPER_METHODS),
        Intensity("shift", "Shift", "pixels", (COLUMN,), ((0.0, ("identity",)), (3.0, ("shift:3,0",)))),
        RiskCoverage("rc", "RC", COLUMN, PAPER_METHODS),
        MetricExplained("aorc", "AORC", COLUMN, MEAN),
        ContactSheets("views", "Views", (COLUMN,)),
    )
    results = run_experiment(Experiment("test", "Test", pieces), workspace)
    pictures = [picture for result in results for picture in result.pictures]
    assert len(pictures) == 5
    for picture in pictures:
        picture.save(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_contact_sheet_needs_data_but_no_classifier(data_root: Path, tmp_path: Path) -> None:
    sheets = ContactSheets("views", "Views", (COLUMN,))
    found = run_contact_sheets(sheets, Workspace(data_root, tmp_path / "store"))
    assert [picture.name for picture in found.pictures] == [f"views-cifar10-{VIEWS}"]
    assert not found.missing


def test_piece_that_fails_is_listed_and_the_others_run(workspace: Workspace) -> None:
    wrong = Column("wrong", "cifar10", ("cifar100-vgg8",), VIEWS)  # a hundred classes for ten names
    pieces = (Comparison("a", "A", (wrong,), PAPER_METHODS), Comparison("b", "B", (COLUMN,), PAPER_METHODS))
    first, second = run_experiment(Experiment("test", "Test", pieces), workspace)
    assert not first.has_run
    assert "class_names" in first.missing[0].reason
    assert second.has_run
