"""Writing a report: the files beside it, odd data, and what cannot be reported or written."""

import csv
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
from secondlook.report.study import studied

Made = Callable[..., Predictions]
Reader = Callable[[int], Array]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float | None:
    return float(text) if text else None


def test_the_tables_hold_the_numbers(preds: Predictions, tmp_path: Path) -> None:
    evaluation = evaluate(preds, ["msr", "mean"], ["auroc", "aurc"], resamples=50, groups="class")
    write_report(preds, tmp_path / "run.html", title="t", evaluation=evaluation, methods=["msr", "mean"], risk=0.1)
    rows = rows_of(tmp_path / "run-files" / "methods.csv")
    assert len(rows) == len(evaluation.rows)
    for row, one in zip(rows, evaluation.rows, strict=True):
        assert (row["part"], row["method"], row["metric"]) == (one.part, one.method, one.metric)
        assert number(row["value"]) == one.value
        assert number(row["low"]) == (one.interval and one.interval.low)
        assert number(row["difference"]) == one.difference
        assert number(row["difference_high"]) == (one.difference_interval and one.difference_interval.high)
        assert row["verdict"] == (one.verdict or "")
    study = studied(preds, ["msr", "mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    for row in rows_of(tmp_path / "run-files" / "operating-points.csv"):
        point = point_at_risk(study.rankings[row["method"]], float(row["tolerated_risk"]))
        assert (int(row["accepted"]), int(row["errors_accepted"])) == (point.accepted, point.errors)
        assert int(row["rejected"]) == 600 - point.accepted


def test_every_table_and_plot_is_there_and_repeats(preds: Predictions, pixels: Reader, tmp_path: Path) -> None:
    first, second = (
        write_report(preds, tmp_path / name / "r.html", title="t", image=pixels, methods=["msr", "mean"])
        for name in "ab"
    )
    tables = "facts methods risk-coverage risk-coverage-bands operating-points histograms reliability classes views"
    plots = "risk-coverage histograms reliability classes views"
    expected = {f"{name}.csv" for name in [*tables.split(), "galleries", "skipped"]}
    expected |= {f"{name}.{suffix}" for name in plots.split() for suffix in ("png", "svg")}
    assert {path.name for path in (first.parent / "r-files").iterdir()} == expected
    for path in [first, *(first.parent / "r-files").iterdir()]:
        assert path.read_bytes() == (second.parent / path.relative_to(first.parent)).read_bytes(), path.name
    assert (first.parent / "r-files" / "views.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (first.parent / "r-files" / "views.svg").read_bytes()


@pytest.mark.parametrize("n_images", [1, 2, 30])
@pytest.mark.parametrize("kind", ["no errors", "all errors", "one error"])
def test_odd_data_is_reported_too(made: Made, pixels: Reader, tmp_path: Path, n_images: int, kind: str) -> None:
    wrong = {"no errors": np.zeros, "all errors": np.ones, "one error": np.zeros}[kind](n_images, dtype=np.bool_)
    wrong[0] |= kind == "one error"
    values = np.linspace(0.5, 0.9, n_images)
    plots = n_images == 1  # drawing is what takes long
    path = write_report(made(values, values, wrong), tmp_path / "r.html", title="t", image=pixels, artefacts=plots)
    assert "A second look" in path.read_text("utf-8") or not 0 < wrong.sum() < n_images


def test_all_confidences_equal(made: Made, tmp_path: Path) -> None:
    same = np.full(40, 0.7)
    path = write_report(made(same, same, np.arange(40) < 10), tmp_path / "r.html", title="t", artefacts=False)
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
def test_other_questions(preds: Predictions, pixels: Reader, tmp_path: Path, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    shuffled = Predictions(
        probabilities=rng.dirichlet(np.ones(4), (80, 3)), views=preds.views, labels=rng.integers(0, 4, 80)
    )
    path = write_report(shuffled, tmp_path / "r.html", title="t", image=pixels, artefacts=False, **options)
    assert "class 3" in path.read_text("utf-8"), "classes without a name are numbered"


def test_an_ensemble(preds: Predictions, tmp_path: Path) -> None:
    few = preds.select(images=np.arange(60))
    both = Predictions(members=[few, few], views=few.views)
    assert "× 2 members" in write_report(both, tmp_path / "r.html", title="t", artefacts=False).read_text("utf-8")


def test_without_labels_there_is_no_report(preds: Predictions, tmp_path: Path) -> None:
    bare = Predictions(probabilities=preds.probabilities, views=preds.views)
    with pytest.raises(ReportError, match="have no labels; give labels="):
        write_report(bare, tmp_path / "r.html", title="t")


def test_where_nothing_can_be_written(preds: Predictions, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    few = preds.select(images=np.arange(40))
    with pytest.raises(
        ReportError, match=r"cannot be written to '.*r\.html': .*; choose a place that can be written to"
    ):
        write_report(few, tmp_path / "file" / "r.html", title="t", methods=["msr"], artefacts=False)
    (tmp_path / "r.html").mkdir()
    with pytest.raises(ReportError, match="Is a directory"):
        write_report(few, tmp_path / "r.html", title="t", methods=["msr"], artefacts=False)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"methods": []}, "no method to report on"),
        ({"class_names": ["a"]}, "1 names for 4 classes"),
        ({"delta": 0.0}, "delta is 0.0, expected"),
        ({"risk": 1.5}, "risk is 1.5, expected"),
        ({"image": lambda index: np.zeros((4, 4))}, r"gave float64 \[4, 4\], expected uint8"),
        ({"image": lambda index: None}, "gave NoneType, expected uint8"),
    ],
)
def test_what_makes_no_sense(preds: Predictions, tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReportError, match=sentence):
        write_report(preds, tmp_path / "r.html", **{"title": "t", "methods": ["msr"], "artefacts": False, **options})


def test_a_page_has_a_name_of_its_own(preds: Predictions, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"give a name such as 'report\.html'"):
        write_report(preds, tmp_path, title="t")


def test_pictures_may_be_float32(preds: Predictions, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    pages = [
        write_report(preds, tmp_path / name, title="t", methods=["msr"], artefacts=False, image=image).read_bytes()
        for name, image in (("a.html", lambda _: pixels), ("b.html", lambda _: (pixels / 255).astype(np.float32)))
    ]
    assert pages[0] == pages[1]
