"""Estimates: values, intervals, verdicts and undefined metrics."""

import numpy as np
import pytest

from secondlook import metrics
from secondlook.arrays import BoolArray, Float64Array
from secondlook.estimators import confidence
from secondlook.evaluation import Comparison, Evaluation, compare, evaluate
from secondlook.predictions import Predictions


def predictions_with(n_errors: int, n_correct: int) -> Predictions:
    """Predictions for one view, of which the first are wrong."""
    labels = np.array([1] * n_errors + [0] * n_correct)
    return Predictions(probabilities=np.tile([0.9, 0.1], (len(labels), 1, 1)), views="identity", labels=labels)


@pytest.fixture(scope="module")
def result(preds: Predictions) -> Evaluation:
    return evaluate(preds, resamples=200)


def test_values_are_those_of_the_metrics(preds: Predictions, result: Evaluation) -> None:
    assert result.methods == ("msr", "mean", "bootstrap", "blend")
    for method in result.methods:
        values = confidence(preds, method)
        assert result[method, "auroc"].value == metrics.auroc(preds.correct(), values)
        assert result[method, "risk_at:0.8"].value == metrics.risk_at(preds.correct(), values, 0.8)
    auroc = {method: metrics.auroc(preds.correct(), confidence(preds, method)) for method in ("msr", "mean")}
    assert result["mean", "auroc"].difference == auroc["mean"] - auroc["msr"]
    assert result["msr", "auroc"].difference is None


def test_verdicts_name_better_and_worse_methods(preds: Predictions, result: Evaluation) -> None:
    assert [result["mean", metric].verdict for metric in ("auroc", "aurc")] == ["better", "better"]
    assert result["msr", "auroc"].verdict is None
    reverse = compare({"a": preds}, ["mean", "msr"], ["auroc", "aurc"], resamples=200)
    assert reverse.baseline == "a mean"
    assert [(one.method, one.verdict) for one in reverse.rows[2:]] == [("a msr", "worse")] * 2


def test_interval_is_that_of_resampled_images(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["auroc"], resamples=300, seed=5)
    correct, values = preds.correct(), confidence(preds, "mean")
    rng = np.random.default_rng(5)
    resamples = [rng.integers(600, size=600) for _ in range(300)]
    resampled = [metrics.auroc(correct[images], values[images]) for images in resamples]
    interval = result["mean", "auroc"].interval
    assert interval is not None
    assert [interval.low, interval.high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=1e-12)


def test_interval_covers_the_true_value_at_its_level() -> None:
    rng, hits, rounds = np.random.default_rng(0), 0, 100
    for _ in range(rounds):
        correct = rng.random(150) < 0.7
        values = np.where(correct, rng.normal(1.0, 1.0, 150), rng.normal(0.0, 1.0, 150))
        entries = {"own": (correct, values)}
        interval = Comparison.from_confidences(entries, ["auroc"], resamples=100).rows[0].interval
        assert interval is not None
        hits += interval.low <= 0.7602499389 <= interval.high  # P(normal(1, 2) > 0)
    assert hits >= 86


def test_undefined_metric_has_a_reason(preds: Predictions) -> None:
    only_correct = preds.select(images=np.flatnonzero(preds.correct()))
    result = evaluate(only_correct, ["msr", "mean"], ["auroc", "aurc"], resamples=20)
    undefined = result["mean", "auroc"]
    assert (undefined.value, undefined.interval, undefined.verdict) == (None, None, None)
    assert undefined.reason is not None
    assert f"- mean: {undefined.reason}" in str(result)
    assert result["mean", "aurc"].value == 0.0


def test_metric_defined_on_few_resamples_has_no_interval() -> None:
    values = {"own": np.arange(30.0)}
    one = evaluate(predictions_with(1, 29), values, ["auroc"], resamples=50)["own", "auroc"]
    assert (one.value, one.interval) == (1.0, None)


def test_score_is_not_calibrated(preds: Predictions) -> None:
    result = evaluate(preds, ["mean", "bootstrap"], ["ece"], resamples=5)
    assert result["mean", "ece"].value is not None
    assert result["bootstrap", "ece"].value is None
    assert "'bootstrap'" in (result["bootstrap", "ece"].reason or "")


@pytest.mark.parametrize(
    ("n_errors", "n_correct", "note"),
    [
        (2, 3, "Too few to judge: only 2 of 5 images are wrong"),
        (0, 50, "Too few to judge: none of 50 images is wrong"),
        (4, 500, "Too few to judge: only 4 of 504 images are wrong"),
        (500, 1, "Too few to judge: only 1 of 501 images is correct"),
        (5, 500, "No verdicts: only 5 of 505 images are wrong"),
        (500, 99, "No verdicts: only 99 of 599 images are correct"),
        (100, 100, None),
    ],
)
def test_few_errors_or_few_correct_predictions_are_noted(n_errors: int, n_correct: int, note: str | None) -> None:
    rng = np.random.default_rng(0)
    values = {"a": rng.random(n_errors + n_correct), "b": rng.random(n_errors + n_correct)}
    result = evaluate(predictions_with(n_errors, n_correct), values, ["aurc"], resamples=20)
    assert (result["b", "aurc"].verdict is None) == (note is not None)
    text = " ".join(result.details().split())
    assert note in text if note else "verdict" not in text.lower()
    percent = text.partition(f" {n_errors} of them wrong (")[2].split()[0]
    assert float(percent) == pytest.approx(100 * n_errors / (n_errors + n_correct), abs=0.06)
    assert ("[" in text) == (min(n_errors, n_correct) >= 5), "an interval from fewer would look certain"
    assert note is None or not any(verdict in text for verdict in ("better", "worse", "unclear"))


def draw_pair(rng: np.random.Generator, n_errors: int, gain: float) -> dict[str, tuple[BoolArray, Float64Array]]:
    """Return two related confidences, of which the second tells errors better by `gain` standard deviations."""
    correct = rng.random(10 * n_errors) >= 0.1
    shared, *own = rng.normal(size=(3, 10 * n_errors))
    first, second = (0.9 * shared + 0.45 * noise + 2.5 * correct for noise in own)
    return {"a": (correct, first), "b": (correct, second + gain * correct)}


@pytest.mark.parametrize(("n_errors", "gain"), [(20, 0.7), (150, 0.0)])
def test_intervals_with_a_verdict_hold_the_difference(n_errors: int, gain: float) -> None:
    """With 20 errors, one in six intervals of the AURC does not, so there is no verdict."""
    rng = np.random.default_rng(1)
    large = draw_pair(rng, 20_000, gain)
    truth = metrics.aurc(*large["b"]) - metrics.aurc(*large["a"]) if gain else 0.0
    rounds, misses = 60, 0
    for _ in range(rounds):
        row = Comparison.from_confidences(draw_pair(rng, n_errors, gain), ["aurc"], resamples=150).rows[1]
        interval = row.difference_interval
        assert interval is not None
        misses += row.verdict is not None and not interval.low <= truth <= interval.high
    assert misses <= 0.1 * rounds


def test_equal_methods_are_the_same_in_the_table() -> None:
    preds, values = predictions_with(30, 70), np.random.default_rng(0).random(100)
    result = evaluate(preds, {"a": values, "b": values}, ["auroc", "aurc"], resamples=20)
    text = result.details()
    assert str(result).partition("vs a")[2].split()[:2] == ["same", "same"]
    rows = [line.split() for line in text.splitlines() if line.startswith(" b ")]
    assert [row[-1] for row in rows] == ["same", "same"], "no interval and no verdict"
    assert "+0.0000" not in text


def test_small_differences_are_not_rounded_away() -> None:
    """One exchanged pair of 20 x 4,980 changes the AUROC by 1e-5."""
    preds, values = predictions_with(20, 4980), np.arange(5000.0)
    swapped = values.copy()
    swapped[[19, 20]] = swapped[[20, 19]]
    text = evaluate(preds, {"a": values, "b": swapped}, ["auroc"], resamples=20).details()
    (row,) = [line.split() for line in text.splitlines() if line.startswith(" b ")]
    assert (row[1], row[4]) == ("0.99999", "-1.0e-5")


def test_small_values_have_three_digits_within_80_columns() -> None:
    """The AURC of a classifier that is wrong on 1 of 200 images."""
    rng = np.random.default_rng(0)
    preds = predictions_with(50, 9950)
    noise = rng.normal(size=(2, 10_000))
    values = {"msr": 3 * preds.correct() + noise[0], "bootstrap": 3 * preds.correct() + noise.mean(axis=0)}
    result = evaluate(preds, values, ["auroc", "aurc", "eaurc", "augrc", "risk_at:0.8"], resamples=50)
    text = result.details()
    assert max(map(len, text.splitlines())) <= 80
    blocks = {line.split()[0]: place for place, line in enumerate(text.splitlines()) if line and line[-1] in "↑↓"}
    for metric in ("aurc", "eaurc", "augrc"):
        for offset, method in enumerate(values, 1):
            shown = text.splitlines()[blocks[metric] + offset].split()[1]
            value = result[method, metric].value
            assert value is not None
            assert 0 < value < 0.01
            assert float(shown) == float(f"{value:.2e}")
