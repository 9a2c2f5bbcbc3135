"""Plots draw the numbers of the metrics, of a diagnosis and of a schedule, on the axes that they are given."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import secondlook as sl
from secondlook import metrics
from secondlook.arrays import Float64Array
from secondlook.classifiers import load_classifier
from secondlook.diagnosis import diagnose_views
from secondlook.errors import DecisionError, DiagnosisError, MetricError, MissingExtraError
from secondlook.policies import Schedule, fit_schedule
from secondlook.predictions import Predictions
from secondlook.report import plots
from tests.policy_maker import attach

Draw = Callable[..., Any]
DRAW = [plots.draw_risk_coverage, plots.draw_reliability, plots.draw_histogram]


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    """Draw without a screen, and close all figures afterwards."""
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def preds() -> Predictions:
    """400 images x 4 views x 3 classes; 'vflip' is harmful."""
    rng = np.random.default_rng(3)
    labels = rng.integers(3, size=400)
    logits = rng.normal(size=(400, 4, 3)) + 1.5 * rng.normal(size=(400, 1, 3))
    logits[np.arange(400), :, labels] += 3.0
    logits[:, 3] = rng.normal(0, 3, (400, 3))
    return Predictions(logits=logits, views="identity hflip shift:1,0 vflip", labels=labels)


@pytest.fixture(scope="module")
def schedule(preds: Predictions) -> Schedule:
    usable = preds.select(views=["identity", "hflip", "shift:1,0"])
    return fit_schedule(usable, sl.Policy(threshold=0.8, method="mean"), tolerance=0.02)


def make_policy(schedule: Schedule | None) -> sl.Policy:
    classifier = load_classifier(lambda images: np.ones((len(images), 3)) / 3, output="probabilities", name="constant")
    views = ("identity", "hflip") if schedule is None else schedule.views
    return attach(sl.Policy(threshold=0.8, method="mean", schedule=schedule), classifier=classifier, views=views)


def drawn(axes: Any) -> Float64Array:
    """Return the points of the first line, or the heights of all bars."""
    if axes.patches:
        return np.array([bar.get_height() for bar in axes.patches])
    return np.asarray(axes.lines[0].get_xydata(), dtype=np.float64)


def legend_texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_risk_coverage_is_that_of_the_metrics_and_its_axis_shows_all_error_rates(preds: Predictions) -> None:
    axes = plots.draw_risk_coverage(preds, "mean")
    correct, confidence = preds.correct(), sl.confidence(preds, "mean")
    by_hand = [(~correct[np.argsort(-confidence)[:n]]).mean() for n in range(1, 401)]
    np.testing.assert_allclose(drawn(axes), np.stack([np.arange(1, 401) / 400, by_hand], axis=1))
    assert legend_texts(axes) == [f"mean (AURC = {metrics.aurc(correct, confidence):.4f})", "perfect order"]
    perfect = np.asarray(axes.lines[1].get_ydata())
    errors = int((~correct).sum())
    np.testing.assert_allclose(perfect, [max(0, n - (400 - errors)) / n for n in range(1, 401)])
    correct = np.arange(100) % 10 != 0
    axes = plots.draw_risk_coverage(correct, -np.arange(100.0))
    assert drawn(axes)[0, 1] == 1
    assert axes.get_ylim() == pytest.approx((0, 0.15))
    plots.draw_risk_coverage(np.arange(100) % 2 == 0, -np.arange(100.0), ax=axes)
    assert axes.get_ylim() == pytest.approx((0, 0.75))
    plots.draw_risk_coverage(correct, -np.arange(100.0), ax=axes)
    assert axes.get_ylim() == pytest.approx((0, 0.75))


def test_reliability_is_that_of_the_metrics_and_needs_a_probability(preds: Predictions) -> None:
    axes = plots.draw_reliability(preds, "msr", bins=5, color="red")
    correct, confidence = preds.correct(), sl.confidence(preds, "msr")
    bin_of = np.minimum((confidence * 5).astype(int), 4)
    filled = [b for b in range(5) if (bin_of == b).any()]
    expected = [(confidence[bin_of == b].mean(), correct[bin_of == b].mean()) for b in filled]
    np.testing.assert_allclose(drawn(axes), expected)
    assert axes.lines[0].get_color() == "red"
    assert legend_texts(axes)[0] == f"msr (ECE = {metrics.ece(correct, confidence, bins=5):.4f})"
    with pytest.raises(MetricError, match=r"'bootstrap'.*mean"):
        plots.draw_reliability(preds, "bootstrap")
    with pytest.raises(MetricError, match=r"\[0, 1\]"):
        plots.draw_reliability([True, False], [2.0, 0.1])


def test_histogram_counts_correct_up_and_wrong_down(preds: Predictions) -> None:
    axes = plots.draw_histogram(preds, "mean", bins=10)
    correct, confidence = preds.correct(), sl.confidence(preds, "mean")
    up, down = (np.histogram(confidence[chosen], np.linspace(0, 1, 11))[0] for chosen in (correct, ~correct))
    assert drawn(axes).tolist() == [*up, *-down]
    assert axes.get_title() == "mean"


@pytest.mark.parametrize("draw", [*DRAW, plots.draw_schedule])
def test_plot_uses_the_given_axes(preds: Predictions, schedule: Schedule, draw: Draw) -> None:
    data = schedule if draw is plots.draw_schedule else preds
    figure, (first, second) = plt.subplots(1, 2)
    assert draw(data, ax=first) is first
    assert draw(data, ax=second) is second
    assert draw(data).figure is not figure, "a new figure"
    assert len(plt.get_fignums()) == 2


@pytest.mark.parametrize("draw", DRAW)
def test_run_sets_how_classes_are_predicted_and_which_images_are_drawn(preds: Predictions, draw: Draw) -> None:
    run = SimpleNamespace(predictions=preds, predict_from="views", top_k=2, tuning_positions=np.arange(30))
    own, judged = drawn(draw(run, "msr", name="mine")), preds.select(images=np.arange(30, preds.n_images))
    options: dict[str, Any] = {"predict_from": "views", "top_k": 2}
    expected = draw(judged.correct(**options), sl.confidence(judged, "msr", **options))
    np.testing.assert_array_equal(own, drawn(expected))
    assert not np.array_equal(own, drawn(draw(judged, "msr")))
    assert not np.array_equal(own, drawn(draw(preds.correct(**options), sl.confidence(preds, "msr", **options))))


def test_legend_has_three_digits_of_small_values_and_the_reference_once(preds: Predictions) -> None:
    correct, confidence = np.arange(5000) >= 4, np.arange(5000.0)
    axes = plots.draw_risk_coverage(correct, confidence, name="own")
    aurc = float(f"{metrics.aurc(correct, confidence):.2e}")
    assert axes.lines[0].get_label() == f"own (AURC = {aurc:.2e})".replace("e-0", "e-")
    shared = plots.draw_risk_coverage(preds, "msr")
    plots.draw_risk_coverage(preds, "mean", ax=shared, label="views")
    assert [text.partition(" (")[0] for text in legend_texts(shared)] == ["msr", "perfect order", "views"]
    assert len(plots.draw_reliability(preds, "msr", ref_line=False).lines) == 1


@pytest.mark.parametrize("draw", DRAW)
def test_labels_and_matplotlib_are_required(preds: Predictions, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MetricError, match="labels"):
        draw(Predictions(logits=preds.logits, views=preds.views))
    assert not plt.get_fignums(), "nothing is drawn"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"secondlook\[plots\]"):
        draw(preds)


@pytest.mark.parametrize("draw", DRAW)
@pytest.mark.parametrize("correct", [[True], [False], [True, True], [False, False]])
def test_one_image_and_one_outcome_can_be_drawn(draw: Draw, correct: list[bool]) -> None:
    draw(correct, np.full(len(correct), 0.5)).figure.canvas.draw()


def test_line_is_the_frontier_of_a_schedule_and_the_margin_is_marked(schedule: Schedule, tmp_path: Path) -> None:
    axes = plots.draw_schedule(schedule, lw=3)
    line, point = axes.lines[:2]
    points = [(point.looks, 1 - point.differing) for point in schedule.frontier]
    np.testing.assert_allclose(np.asarray(line.get_xydata()), points)
    assert line.get_linewidth() == 3
    (chosen,) = (point for point in schedule.frontier if point.margin == schedule.margin)
    np.testing.assert_allclose(np.asarray(point.get_xydata()), [(chosen.looks, 1 - chosen.differing)])
    assert 1 < chosen.looks < 3
    assert axes.get_xlim() == (1, 3)
    assert axes.get_xticks().tolist() == [1, 2, 3]
    assert any(f"margin {schedule.margin:g}: {chosen.looks:.2f} looks" in text for text in legend_texts(axes))
    axes.figure.canvas.draw()
    assert "%" in axes.get_yticklabels()[0].get_text(), "the agreement is in percent"
    policy = make_policy(schedule)
    policy.save(tmp_path / "policy.json")
    for given in (policy, tmp_path / "policy.json", str(tmp_path / "policy.json")):
        drawn_again = plots.draw_schedule(given).lines[0].get_xydata()
        np.testing.assert_allclose(np.asarray(drawn_again), points)


def test_policy_without_a_fitted_schedule_is_rejected(schedule: Schedule) -> None:
    with pytest.raises(DecisionError, match=r"schedule.*adaptive=True"):
        plots.draw_schedule(make_policy(None))
    for name, value in (("frontier", ()), ("margin", 123.0)):
        with pytest.raises(DecisionError, match="frontier"):
            plots.draw_schedule(schedule.model_copy(update={name: value}))
    assert not plt.get_fignums(), "nothing is drawn"


def test_rows_are_the_numbers_of_the_diagnosis_whose_default_depends_on_labels(preds: Predictions) -> None:
    axes, diagnosis = plots.draw_views(preds, quantity="accuracy"), diagnose_views(preds)
    drawn = {
        int(row): (float(value), points.get_label())
        for points in axes.collections
        for value, row in np.asarray(points.get_offsets())
    }
    expected = {
        place: (float((preds.probabilities[:, place].argmax(axis=1) == preds.labels).mean()), status)
        for place, status in enumerate(row.status for row in diagnosis)
    }
    assert drawn == expected
    assert {status for _, status in drawn.values()} >= {"usable", "harmful"}
    assert [text.get_text() for text in axes.get_yticklabels()] == list(preds.views.texts)
    axes.figure.canvas.draw()
    unlabeled = Predictions(logits=preds.logits, views=preds.views)
    assert "AUROC" in plots.draw_views(preds).get_xlabel()
    assert "same prediction" in plots.draw_views(unlabeled).get_xlabel()
    assert "same prediction" in plots.draw_views(diagnose_views(preds), quantity="agreement").get_xlabel()
    with pytest.raises(DiagnosisError, match="'accuracy' needs labels"):
        plots.draw_views(unlabeled, quantity="accuracy")
    with pytest.raises(DiagnosisError, match=r"'agrement'.*'agreement'"):
        plots.draw_views(preds, quantity="agrement")  # type: ignore[arg-type]
