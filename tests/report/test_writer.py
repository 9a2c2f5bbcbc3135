"""Writing a report: the files next to it, edge cases, invalid arguments and unwritable places."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import ReportError
from secondlook.evaluation import evaluate
from secondlook.predictions import Predictions
from secondlook.report import write_report
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import build_study

PredictionFactory = Callable[..., Predictions]
ImageReader = Callable[[int], Array]


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def parse_number(text: str) -> float | None:
    return float(text) if text else None


def test_tables_hold_the_numbers(preds: Predictions, tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": ["msr", "mean"], "resamples": 50}
    write_report(preds, tmp_path / "run.html", title="t", metrics=["auroc", "aurc"], risk=0.1, **options)
    evaluation = evaluate(preds, metrics=["auroc", "aurc", "coverage_at:0.1"], **options)
    rows = read_rows(tmp_path / "run-files" / "methods.csv")
    assert len(rows) == len(evaluation.rows)
    for row, one in zip(rows, evaluation.rows, strict=True):
        assert (row["method"], row["metric"]) == (one.method, one.metric)
        assert parse_number(row["value"]) == one.value
        assert parse_number(row["low"]) == (one.interval and one.interval.low)
        assert parse_number(row["difference"]) == one.difference
        assert parse_number(row["difference_high"]) == (one.difference_interval and one.difference_interval.high)
        assert row["verdict"] == (one.verdict or "")
    study = build_study(preds, ["msr", "mean"])
    for row in read_rows(tmp_path / "run-files" / "operating-points.csv"):
        point = point_at_risk(study.rankings[row["method"]], float(row["tolerated_risk"]))
        assert (int(row["accepted"]), int(row["errors_accepted"])) == (point.accepted, point.errors)
        assert int(row["rejected"]) == 600 - point.accepted


def test_files_are_complete_and_reproducible(preds: Predictions, read_image: ImageReader, tmp_path: Path) -> None:
    first, second = (
        write_report(preds, tmp_path / name / "r.html", title="t", image=read_image, methods=["msr", "mean"])
        for name in "ab"
    )
    tables = "facts methods risk-coverage risk-coverage-bands operating-points histograms reliability classes views"
    plots = "risk-coverage histograms reliability classes views"
    expected = {f"{name}.csv" for name in [*tables.split(), "confusions", "galleries", "skipped"]}
    expected |= {f"{name}.{suffix}" for name in plots.split() for suffix in ("png", "svg")}
    assert {path.name for path in (first.parent / "r-files").iterdir()} == expected
    for path in [first, *(first.parent / "r-files").iterdir()]:
        assert path.read_bytes() == (second.parent / path.relative_to(first.parent)).read_bytes(), path.name
    assert (first.parent / "r-files" / "views.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (first.parent / "r-files" / "views.svg").read_bytes()


@pytest.mark.parametrize("n_images", [1, 2, 30])
@pytest.mark.parametrize("kind", ["no errors", "all errors", "one error"])
def test_edge_cases_are_reported(
    make_predictions: PredictionFactory, read_image: ImageReader, tmp_path: Path, n_images: int, kind: str
) -> None:
    wrong = {"no errors": np.zeros, "all errors": np.ones, "one error": np.zeros}[kind](n_images, dtype=np.bool_)
    wrong[0] |= kind == "one error"
    values = np.linspace(0.5, 0.9, n_images)
    plots = n_images == 1  # drawing takes most of the time
    preds = make_predictions(values, values, wrong)
    path = write_report(preds, tmp_path / "r.html", title="t", image=read_image, artifacts=plots)
    assert ("A second look" in path.read_text("utf-8")) == (0 < wrong.sum() < n_images)


def test_equal_confidences(make_predictions: PredictionFactory, tmp_path: Path) -> None:
    same = np.full(40, 0.7)
    path = write_report(
        make_predictions(same, same, np.arange(40) < 10), tmp_path / "r.html", title="t", artifacts=False
    )
    assert "AUROC 50.0, as before" in path.read_text("utf-8")


@pytest.mark.parametrize(
    "options",
    [
        {"predict_from": "views"},
        {"top_k": 2},
        {"predict_from": "views", "top_k": 2},
        {"methods": ["entropy", "view:hflip"]},
    ],
)
def test_other_predictions_and_methods(
    preds: Predictions, read_image: ImageReader, tmp_path: Path, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    shuffled = Predictions(
        probabilities=rng.dirichlet(np.ones(4), (80, 3)), views=preds.views, labels=rng.integers(0, 4, 80)
    )
    path = write_report(shuffled, tmp_path / "r.html", title="t", image=read_image, artifacts=False, **options)
    assert "class 3" in path.read_text("utf-8"), "classes without names are numbered"


def test_ensemble(preds: Predictions, tmp_path: Path) -> None:
    few = preds.select(images=np.arange(60))
    both = Predictions(members=[few, few], views=few.views)
    assert "× 2 members" in write_report(both, tmp_path / "r.html", title="t", artifacts=False).read_text("utf-8")


def test_unwritable_path_is_rejected(preds: Predictions, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    few = preds.select(images=np.arange(40))
    with pytest.raises(ReportError, match=re.escape(str(tmp_path / "file" / "r.html"))):
        write_report(few, tmp_path / "file" / "r.html", title="t", methods=["msr"], artifacts=False)
    (tmp_path / "r.html").mkdir()
    with pytest.raises(ReportError, match="Is a directory"):
        write_report(few, tmp_path / "r.html", title="t", methods=["msr"], artifacts=False)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": []}, "methods="),
        ({"delta": 0.0}, r"delta is 0\.0"),
        ({"risk": 1.5}, r"risk is 1\.5"),
        ({"image": lambda index: None}, "NoneType"),
    ],
)
def test_invalid_arguments_are_rejected(
    preds: Predictions, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReportError, match=message):
        write_report(preds, tmp_path / "r.html", **{"title": "t", "methods": ["msr"], "artifacts": False, **options})


def test_path_that_is_no_html_file_is_rejected(preds: Predictions, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=re.escape(repr(str(tmp_path)))):
        write_report(preds, tmp_path, title="t")
