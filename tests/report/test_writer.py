"""Writing a report: the files next to it, edge cases, invalid arguments and unwritable places."""

import csv
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import ReportError
from secondlook.evaluation import evaluate
from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.report import write_report, writer
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import build_study
from tests.report.references import write_run_report

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
    study = build_study(preds, methods=["msr", "mean"])
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
    plots = "risk-coverage adaptive-looking histograms reliability classes views"
    expected = {f"{name}.csv" for name in [*tables.split(), "adaptive-looking", "confusions", "galleries", "skipped"]}
    expected |= {f"{name}.{suffix}" for name in plots.split() for suffix in ("png", "svg")}
    assert {path.name for path in (first.parent / "r-files").iterdir()} == expected
    for path in [first, *(first.parent / "r-files").iterdir()]:
        assert path.read_bytes() == (second.parent / path.relative_to(first.parent)).read_bytes(), path.name
    assert (first.parent / "r-files" / "views.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (first.parent / "r-files" / "views.svg").read_bytes()


def test_report_is_about_judged_images(
    preds: Predictions,
    tmp_path: Path,
    read_page_data: Callable[[Path], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tables and all data of the page equal those of a report about the judged images alone, except the indices."""
    monkeypatch.setattr(writer, "render_plots", lambda findings: ())  # drawing takes most of the time
    reader = read_numbered_image
    judged, tuning = np.arange(200, 600), np.arange(200)
    options: dict[str, Any] = {
        "title": "t",
        "methods": ["msr", "mean"],
        "resamples": 10,
        "warnings": (),
    }
    path = write_run_report(preds, tmp_path / "a.html", tuning=tuning, image=reader, **options)
    alone = write_run_report(
        preds.select(images=judged), tmp_path / "b.html", image=lambda index: reader(index + 200), **options
    )
    data, expected = read_page_data(path), read_page_data(alone)
    assert data["pictures"] == expected["pictures"], "with the same pixels"
    assert str(data) == str(expected)
    for table in (tmp_path / "b-files").glob("*.csv"):
        if table.stem not in ("facts", "galleries"):
            assert (tmp_path / "a-files" / table.name).read_bytes() == table.read_bytes(), table.name
    indices, own = (
        [int(row["index"]) for row in read_rows(tmp_path / f"{name}-files" / "galleries.csv")] for name in "ab"
    )
    assert indices == [index + 200 for index in own], "positions among all images, as image= takes them"
    text = path.read_text("utf-8")
    assert "<dt>Images set apart</dt><dd>200</dd>" in text
    assert "about the other 400" in text
    facts = {row["fact"]: row["value"] for row in read_rows(tmp_path / "a-files" / "facts.csv")}
    assert "200 of 600 images were set apart" in facts["tuning"]
    assert "set apart" not in alone.read_text("utf-8")


def read_numbered_image(index: int) -> Array:
    """Return one plain color for each index."""
    return np.full((8, 8, 3), [index % 256, index // 256, 100], dtype=np.uint8)


def test_methods_are_fitted_on_images_set_apart(
    preds: Predictions, tmp_path: Path, read_page_data: Callable[[Path], dict[str, Any]]
) -> None:
    """The page has the thresholds that `certify` finds with the same images set apart."""
    options: dict[str, Any] = {"risk": 0.2, "delta": 0.2, "tuning": np.arange(0, 600, 2)}
    shown: dict[str, Any] = {"title": "t", "artifacts": False, "resamples": 5}
    shown["calibrated"] = ("learned",)
    path = write_run_report(preds, tmp_path / "r.html", **shown, **options)
    data = read_page_data(path)
    assert [method["name"] for method in data["methods"]] == ["msr", "mean", "bootstrap", "blend", "learned"]
    assert (data["images"], data["method"], data["guaranteed"]) == (300, "learned", True)
    rule = certify(preds, "learned", **options)
    assert rule.calibration is not None
    index = data["risks"].tolist().index(0.2)
    learned = data["methods"][-1]["certified"]
    assert learned["thresholds"][index] == rule.threshold
    assert learned["accepted"][index] == rule.calibration.accepted
    assert "learned: intercept=" in path.read_text("utf-8"), "what was fitted is told"


def test_recommendation_and_warnings_are_at_the_top(preds: Predictions, tmp_path: Path) -> None:
    options: dict[str, Any] = {"title": "t", "methods": ["msr", "mean"], "resamples": 20, "artifacts": False}
    warnings = ("view 'x' & more is harmful.",)
    text = write_run_report(preds, tmp_path / "r.html", warnings=warnings, **options).read_text("utf-8")
    assert text.index("view &#39;x&#39; &amp; more is harmful.") < text.index('id="operate"')
    sentence = evaluate(preds, ["mean"], ["auroc"], resamples=20).recommendation
    assert sentence is not None
    shown = html.escape(sentence).replace("&#x27;", "&#39;").replace(" %", "\u00a0%")
    assert shown in text
    assert text.index(shown) < text.index('id="operate"')


def test_harmful_views_are_warned_of_by_default(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    logits = rng.normal(size=(300, 2, 4))
    logits[np.arange(300), 0, labels] += 6
    logits[np.arange(300), 1, (labels + 1) % 4] += 6
    harmed = Predictions(logits=logits, views="identity vflip", labels=labels)
    options: dict[str, Any] = {"title": "t", "methods": ["msr", "mean"], "resamples": 5, "artifacts": False}
    text = write_report(harmed, tmp_path / "r.html", **options).read_text("utf-8")
    (warning,) = re.findall(r'<p class="warning".*?</p>', text)
    assert "vflip" in warning
    path = write_run_report(harmed, tmp_path / "r.html", warnings=(), **options)
    assert 'class="warning"' not in path.read_text("utf-8")


def test_methods_with_options_are_reported(
    preds: Predictions, tmp_path: Path, read_page_data: Callable[[Path], dict[str, Any]]
) -> None:
    texts = ["msr", "entropy?on=views&temperature=2", "view:hflip?temperature=1.5", "mean?temperature=fit"]
    path = write_report(preds, tmp_path / "r.html", title="t", methods=texts, resamples=5)
    assert [method["name"] for method in read_page_data(path)["methods"]] == texts
    text = path.read_text("utf-8")
    assert 'value="entropy?on=views&amp;temperature=2"' in text
    assert 'data-method="entropy?on=views&amp;temperature=2"' in text
    assert {row["method"] for row in read_rows(tmp_path / "r-files" / "methods.csv")} == set(texts)


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
        ({"delta": 0.0}, r"delta=0\.0"),
        ({"risk": 1.5}, r"risk=1\.5"),
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
