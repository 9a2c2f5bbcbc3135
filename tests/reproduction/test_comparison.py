"""Comparisons against plain computations on the same predictions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import secondlook as sl
from reproduction import Column, Comparison
from reproduction.comparison import run_comparison
from reproduction.experiment import PREDICT_FROM, Contrast, PublishedColumn, Term
from reproduction.paper import BOOTSTRAP, DIGITS, DISTANCE, FLIP_ONLY, MEAN, MSR, PAPER_METHODS
from reproduction.results import ResultRow
from reproduction.workspace import Workspace

Collect = Callable[..., sl.Predictions]

COLUMN = Column("one", "cifar10", ("cifar10-vgg8",), "identity hflip shift:2,0 shift:0,3")
ENSEMBLE = Column("five", "stl10", tuple(f"stl10-wrn-{seed}" for seed in range(5)), "identity hflip")


def value(rows: tuple[ResultRow, ...], method: str, by: str = "x", column: str = "one") -> float:
    wanted = (method, by, "aorc_joint", column)
    return next(row.value for row in rows if (row.method, row.by, row.metric, row.column) == wanted)


def test_views_of_one_method_do_not_affect_the_others(workspace: Workspace, collect_plainly: Collect) -> None:
    narrow = Column("one", "cifar10", ("cifar10-vgg8",), "identity shift:2,0")
    found = run_comparison(Comparison("t", "T", (narrow,), (MSR, MEAN, FLIP_ONLY), by=("x", "D")), workspace)
    assert {row.method for row in found.rows if row.by == "D"} == {"MSR(x)", "MSR(D)"}
    preds = collect_plainly(narrow)
    for by in ("x", "D"):
        correct = preds.correct(predict_from=PREDICT_FROM[by])
        predicted = preds.predicted(predict_from=PREDICT_FROM[by])
        mean = preds.probabilities.astype(float).mean(axis=1)[np.arange(len(preds)), predicted]
        assert value(found.rows, "MSR(D)", by) == pytest.approx(roc_auc_score(correct, mean))
    flips = collect_plainly(narrow, views="identity hflip")
    mean = flips.probabilities.astype(float).mean(axis=1)[np.arange(len(flips)), flips.predicted()]
    assert value(found.rows, "MSR(x,hflip)") == pytest.approx(roc_auc_score(flips.correct(), mean))


def test_gains_are_differences_to_the_baseline(workspace: Workspace) -> None:
    rows = run_comparison(Comparison("t", "T", (COLUMN,), PAPER_METHODS), workspace).rows
    baseline = rows[0]
    assert baseline.method == "MSR(x)"
    assert baseline.gain is None
    for row in rows[1:]:
        assert row.gain == pytest.approx(row.value - baseline.value)
        for low, high in ((row.low, row.high), (row.gain_low, row.gain_high)):
            assert low is not None
            assert high is not None
            assert low <= high


def test_published_gain_is_the_printed_one_and_not_the_difference_of_rounded_values(workspace: Workspace) -> None:
    column = replace(COLUMN, published=PublishedColumn(2, "CIFAR-10", "VGG-8"))
    found = run_comparison(Comparison("t", "T", (column,), (MSR, BOOTSTRAP, FLIP_ONLY)), workspace)
    msr, bootstrap, flip = found.rows
    assert (msr.published, flip.published) == (0.93, None)
    assert bootstrap.published == pytest.approx(0.942)
    assert (msr.published_gain, flip.published_gain) == (None, None)
    assert bootstrap.published_gain == pytest.approx(0.0124)  # 0.942 - 0.93 is 0.012
    assert bootstrap.published_accuracy == 0.938
    (table,) = found.tables
    assert [row[table.head.index("gain published")] for row in table.rows] == ["", "+1.24", ""]


def test_contrast_is_the_signed_sum_of_its_cells(workspace: Workspace, collect_plainly: Collect) -> None:
    terms = (Term(1, "one", "BS(D)"), Term(-1, "one", "MSR(D)"))
    by_d = (Term(1, "one", "MSR(x)", "D"), Term(-1, "one", "MSR(x)", "x"))
    contrasts = (Contrast("bootstrap", "aorc_joint", terms), Contrast("class by D", "accuracy", by_d))
    metrics = ("aorc_joint", "accuracy")
    found = run_comparison(
        Comparison("t", "T", (COLUMN,), PAPER_METHODS, metrics, ("x", "D"), "all", contrasts), workspace
    )
    first, second = (row for row in found.rows if row.piece == "t-contrasts")
    assert first.value == pytest.approx(value(found.rows, "BS(D)") - value(found.rows, "MSR(D)"))
    preds = collect_plainly(COLUMN, "experimental"), collect_plainly(COLUMN)
    gained = sum(
        int(one.correct(predict_from="views").sum()) - int(one.correct(predict_from="image").sum()) for one in preds
    )
    assert second.value == pytest.approx(gained / 60)
    assert found.tables[-1].rows[0][0] == "bootstrap"


def test_ensemble_is_the_mean_of_its_members(workspace: Workspace) -> None:
    found = run_comparison(Comparison("t", "T", (ENSEMBLE,), (MSR, MEAN, BOOTSTRAP), subset="all"), workspace)
    preds = workspace.collect_predictions(ENSEMBLE, "all", sl.ViewSet("identity hflip"))
    assert len(preds.members) == 5
    mean = np.mean([member.probabilities.astype(float) for member in preds.members], axis=0)
    predicted = mean[:, 0].argmax(axis=1)
    confidence = mean.mean(axis=1)[np.arange(60), predicted]
    expected = roc_auc_score(predicted == preds.labels, confidence)
    assert value(found.rows, "MSR(D)", column="five") == pytest.approx(expected, abs=1e-6)


def test_methods_of_a_column_are_added_to_that_column_only_and_one_that_fails_is_listed(workspace: Workspace) -> None:
    column = Column("svhn", "svhn", ("svhn-vgg8",), "svhn", methods=(DIGITS,))
    found = run_comparison(Comparison("t", "T", (column, COLUMN), (MSR,)), workspace)
    assert [(row.column, row.method) for row in found.rows] == [
        ("svhn", "MSR(x)"), ("svhn", "MSR(digits)"), ("one", "MSR(x)"),
    ]  # fmt: skip
    elu = Column("elu", "stl10", ("stl10-elu",), "identity hflip", methods=(DISTANCE,))
    found = run_comparison(Comparison("t", "T", (elu,), PAPER_METHODS), workspace)
    assert {row.method for row in found.rows} == {"MSR(x)", "MSR(D)", "BS(D)"}
    assert "IAD" in found.missing[0].name
    assert "layer" in found.missing[0].reason
