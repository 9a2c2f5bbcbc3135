"""Displays of a confidence draw the curves of the metrics, on the axes that they are given."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import secondlook as sl
from secondlook import metrics
from secondlook.arrays import Float64Array
from secondlook.errors import MetricError
from secondlook.predictions import PredictFrom, Predictions
from secondlook.report import ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay
from secondlook.report.displays import ConfidenceDisplay

DISPLAYS = [RiskCoverageDisplay, ReliabilityDisplay, ConfidenceHistogramDisplay]


@dataclass
class Run:
    """What displays read of a run."""

    predictions: Predictions
    predict_from: PredictFrom = "views"
    top_k: int = 2


def drawn(display: Any, axis: str) -> Float64Array:
    return np.asarray(getattr(display.line_, f"get_{axis}data")(), dtype=np.float64)


def legend_texts(display: Any) -> list[str]:
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_risk_coverage_is_that_of_the_metrics(preds: Predictions) -> None:
    display = RiskCoverageDisplay.from_predictions(preds, "mean")
    correct, confidence = preds.correct(), sl.confidence(preds, "mean")
    by_hand = [(~correct[np.argsort(-confidence)[:n]]).mean() for n in range(1, 401)]
    np.testing.assert_allclose(drawn(display, "x"), np.arange(1, 401) / 400)
    np.testing.assert_allclose(drawn(display, "y"), by_hand)
    assert legend_texts(display) == [f"mean (AURC = {metrics.aurc(correct, confidence):.4f})", "perfect order"]
    perfect = np.asarray(display.ax_.lines[1].get_ydata())
    errors = int((~correct).sum())
    np.testing.assert_allclose(perfect, [max(0, n - (400 - errors)) / n for n in range(1, 401)])


def test_risk_axis_shows_the_error_rates_of_all_curves() -> None:
    """A wrong image at the very top of the ranking must not squash the rest of the plot."""
    correct = np.arange(100) % 10 != 0
    display = RiskCoverageDisplay.from_confidence(correct, -np.arange(100.0))
    assert display.curve.risk[0] == 1
    assert display.ax_.get_ylim() == pytest.approx((0, 0.15))
    RiskCoverageDisplay.from_confidence(np.arange(100) % 2 == 0, -np.arange(100.0), ax=display.ax_)
    assert display.ax_.get_ylim() == pytest.approx((0, 0.75))
    RiskCoverageDisplay.from_confidence(correct, -np.arange(100.0), ax=display.ax_)
    assert display.ax_.get_ylim() == pytest.approx((0, 0.75))


def test_reliability_is_that_of_the_metrics(preds: Predictions) -> None:
    display = ReliabilityDisplay.from_predictions(preds, "msr", bins=5, color="red")
    correct, confidence = preds.correct(), sl.confidence(preds, "msr")
    bin_of = np.minimum((confidence * 5).astype(int), 4)
    filled = [b for b in range(5) if (bin_of == b).any()]
    np.testing.assert_allclose(drawn(display, "x"), [confidence[bin_of == b].mean() for b in filled])
    np.testing.assert_allclose(drawn(display, "y"), [correct[bin_of == b].mean() for b in filled])
    assert display.line_.get_color() == "red"
    assert legend_texts(display)[0] == f"msr (ECE = {metrics.ece(correct, confidence, bins=5):.4f})"


def test_histogram_counts_correct_up_and_wrong_down(preds: Predictions) -> None:
    display = ConfidenceHistogramDisplay.from_predictions(preds, "mean", bins=10)
    correct, confidence = preds.correct(), sl.confidence(preds, "mean")
    up, down = ([bar.get_height() for bar in bars] for bars in display.bars_)
    assert up == np.histogram(confidence[correct], np.linspace(0, 1, 11))[0].tolist()
    assert down == (-np.histogram(confidence[~correct], np.linspace(0, 1, 11))[0]).tolist()
    assert display.ax_.get_title() == "mean"


@pytest.mark.parametrize("kind", DISPLAYS)
def test_display_uses_the_given_axes(preds: Predictions, kind: type[ConfidenceDisplay]) -> None:
    figure, (first, second) = plt.subplots(1, 2)
    display: Any = kind.from_predictions(preds, ax=first)
    assert (display.ax_, display.figure_) == (first, figure)
    assert display.plot(second) is display
    assert display.ax_ is second
    display.plot()
    assert display.figure_ is not figure, "a new figure"
    assert len(plt.get_fignums()) == 2


@pytest.mark.parametrize("kind", DISPLAYS)
def test_run_sets_how_classes_are_predicted(preds: Predictions, kind: type[ConfidenceDisplay]) -> None:
    run = Run(preds)
    own: Any = kind.from_run(run, "msr", name="mine")
    expected: Any = kind.from_predictions(preds, "msr", predict_from="views", top_k=2)
    other: Any = kind.from_predictions(preds, "msr")
    same, different = (
        all(np.array_equal(vars(curve(own))[name], vars(curve(one))[name]) for name in vars(curve(one)))
        for one in (expected, other)
    )
    assert (same, different) == (True, False)
    assert own.name == "mine"


@pytest.mark.parametrize("kind", DISPLAYS)
def test_images_set_apart_by_a_run_are_not_drawn(preds: Predictions, kind: type[ConfidenceDisplay]) -> None:
    run = SimpleNamespace(predictions=preds, predict_from="image", top_k=1, tuning_positions=np.arange(30))
    drawn: Any = kind.from_run(run, "msr")
    expected: Any = kind.from_predictions(preds.select(images=np.arange(30, preds.n_images)), "msr")
    for name, values in vars(curve(expected)).items():
        np.testing.assert_array_equal(vars(curve(drawn))[name], values)


def test_legend_has_three_digits_of_small_values() -> None:
    correct = np.arange(5000) >= 4
    display = RiskCoverageDisplay.from_confidence(correct, np.arange(5000.0), name="own")
    assert display.aurc is not None
    assert display.line_.get_label() == f"own (AURC = {float(f'{display.aurc:.2e}'):.2e})".replace("e-0", "e-")


def curve(display: Any) -> Any:
    return display.histogram if hasattr(display, "histogram") else display.curve


def test_reference_is_named_once_in_the_legend(preds: Predictions) -> None:
    display = RiskCoverageDisplay.from_predictions(preds, "msr")
    RiskCoverageDisplay.from_predictions(preds, "mean", ax=display.ax_, label="views")
    assert [text.partition(" (")[0] for text in legend_texts(display)] == ["msr", "perfect order", "views"]
    bare = ReliabilityDisplay.from_predictions(preds, "msr", ref_line=False)
    assert len(bare.ax_.lines) == 1


def test_reliability_needs_a_probability(preds: Predictions) -> None:
    with pytest.raises(MetricError, match=r"'bootstrap'.*mean"):
        ReliabilityDisplay.from_predictions(preds, "bootstrap")
    with pytest.raises(MetricError, match=r"\[0, 1\]"):
        ReliabilityDisplay.from_confidence([True, False], [2.0, 0.1])


@pytest.mark.parametrize("kind", DISPLAYS)
def test_labels_are_required(preds: Predictions, kind: type[ConfidenceDisplay]) -> None:
    with pytest.raises(MetricError, match="labels"):
        kind.from_predictions(Predictions(logits=preds.logits, views=preds.views))
    assert not plt.get_fignums(), "nothing is drawn"


@pytest.mark.parametrize("kind", DISPLAYS)
@pytest.mark.parametrize("correct", [[True], [False], [True, True], [False, False]])
def test_one_image_and_one_outcome_can_be_drawn(kind: type[ConfidenceDisplay], correct: list[bool]) -> None:
    display: Any = kind.from_confidence(correct, np.full(len(correct), 0.5))
    display.figure_.canvas.draw()
