"""Values against scikit-learn, slow counts, closed forms and the published tables; curves, bins and resamples."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score, roc_curve

from secondlook import metrics
from secondlook.metrics import Interval, Ranking, rank, resample_metrics

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "paper" / "published.csv"


def make_images(seed: int, n: int = 3000, decimals: int = 2) -> tuple[Any, Any]:
    """Return `correct` and `confidence`; rounding to few decimals makes ties."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).round(decimals)
    return rng.random(n) < 0.3 + 0.65 * confidence, confidence


@pytest.mark.parametrize("decimals", [1, 15])
def test_values_agree_with_scikit_learn(decimals: int) -> None:
    correct, confidence = make_images(2, decimals=decimals)
    precision = average_precision_score(~correct, -confidence)
    found = [metrics.brier(correct, confidence), metrics.nll(correct, confidence), metrics.auroc(correct, confidence)]
    expected = [function(correct, confidence) for function in (brier_score_loss, log_loss, roc_auc_score)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert metrics.aupr(correct, confidence, ties="threshold") == pytest.approx(precision, abs=1e-12)
    if decimals == 15:  # without ties
        assert metrics.aupr(correct, confidence) == pytest.approx(precision, abs=1e-12)
        false, true, _ = roc_curve(correct, confidence, drop_intermediate=False)
        assert metrics.fpr95(correct, confidence) == pytest.approx(false[np.argmax(true >= 0.95)], abs=1e-12)


def test_values_of_small_examples() -> None:
    # Confidence 0.3 with none of two correct, confidence 0.9 with three of four correct.
    correct, confidence = [False, False, True, True, True, False], [0.3, 0.3, 0.9, 0.9, 0.9, 0.9]
    assert metrics.ece(correct, confidence, bins=2) == pytest.approx((2 * 0.3 + 4 * 0.15) / 6)
    assert metrics.nll([False], [1.0]) == pytest.approx(-np.log(np.finfo(float).eps)), "finite"
    correct, confidence = [True, True, False, True, False], [0.9, 0.8, 0.7, 0.6, 0.5]
    assert metrics.risk_at(correct, confidence, 0.6) == pytest.approx(1 / 3)
    assert metrics.risk_at(correct, confidence, 1.0) == pytest.approx(2 / 5)
    assert metrics.coverage_at(correct, confidence, 0.0) == pytest.approx(0.4)
    assert metrics.coverage_at(correct, confidence, 0.25) == pytest.approx(0.8)
    assert metrics.coverage_at([False, True], [0.9, 0.1], 0.1) == 0.0


def test_many_ties_match_the_mean_of_many_random_orders() -> None:
    correct, confidence = make_images(0, n=400, decimals=1)
    rng = np.random.default_rng(1)
    orders = [np.lexsort((rng.random(400), -confidence)) for _ in range(2000)]
    curves = [np.cumsum(~correct[order]) / np.arange(1, 401) for order in orders]
    assert metrics.aurc(correct, confidence) == pytest.approx(np.mean(curves), abs=2e-4)
    assert metrics.risk_at(correct, confidence, 0.33) == pytest.approx(np.mean(curves, axis=0)[131], abs=2e-3)


def test_risk_inside_a_large_tie_is_exact() -> None:
    correct = np.ones(10**6, dtype=bool)
    correct[:300_001] = False
    assert metrics.risk_at(correct, np.zeros(10**6), 1e-6) == 0.300001


def test_areas_are_those_of_their_curves_and_of_closed_forms() -> None:
    correct, confidence = make_images(0, n=500, decimals=1)
    joint = rank(correct, confidence).risk_coverage(joint=True)
    augrc, error_rate = metrics.augrc(correct, confidence), 1 - metrics.accuracy(correct, confidence)
    assert np.mean(rank(correct, confidence).risk_coverage().risk) == pytest.approx(metrics.aurc(correct, confidence))
    assert np.trapezoid([0, *joint.risk], [0, *joint.coverage]) == pytest.approx(augrc)
    assert joint.risk[-1] == pytest.approx(error_rate)
    excess = error_rate * (1 - error_rate) * (1 - metrics.auroc(correct, confidence))
    assert augrc == pytest.approx(error_rate**2 / 2 + excess)
    assert metrics.eaurc_joint(correct, confidence) == pytest.approx(excess)


@pytest.mark.parametrize("joint", [False, True])
def test_the_given_curve_is_between_those_of_a_perfect_and_of_the_worst_confidence(joint: bool) -> None:
    correct, confidence = make_images(1, n=500, decimals=1)
    ranking = rank(correct, confidence)
    given, perfect, worst = (
        one.risk_coverage(joint=joint).risk for one in (ranking, ranking.perfect(), ranking.worst())
    )
    assert np.all(perfect <= given + 1e-12)
    assert np.all(given <= worst + 1e-12)
    assert perfect[-1] == pytest.approx(given[-1])
    for extreme, order in ((perfect, correct), (worst, ~correct)):
        assert extreme == pytest.approx(rank(correct, order.astype(float)).risk_coverage(joint=joint).risk)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=30), st.integers(0, 100))
def test_coverage_at_is_the_last_point_of_the_curve_within_the_risk(
    images: list[tuple[bool, int]], percent: int
) -> None:
    correct, confidence = [c for c, _ in images], [float(s) for _, s in images]
    curve = rank(correct, confidence).risk_coverage()
    within = curve.coverage[curve.risk <= percent / 100 + 1e-10]
    found = metrics.coverage_at(correct, confidence, percent / 100)
    assert found == pytest.approx(within[-1] if len(within) else 0.0)


def test_each_image_is_in_one_bin_of_the_reliability_curve() -> None:
    correct, confidence = make_images(4, n=500, decimals=3)
    confidence[:2] = 0.0, 1.0
    curve = rank(correct, confidence).reliability(10)
    edges = np.linspace(0, 1, 11)
    assert curve.images.sum() == len(correct)
    for low, high, mean, accuracy in zip(edges[:-1], edges[1:], curve.confidence, curve.accuracy, strict=True):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        assert (mean, accuracy) == pytest.approx((confidence[inside].mean(), correct[inside].mean()))


@given(st.lists(st.tuples(st.booleans(), st.floats(-3, 3)), min_size=1, max_size=40), st.integers(1, 12))
def test_every_image_is_counted_in_its_bin_of_the_histogram(images: list[tuple[bool, float]], bins: int) -> None:
    correct, confidence = map(np.array, zip(*images, strict=True))
    histogram = rank(correct, confidence).histogram(bins)
    edges = histogram.edges
    for kind, counts in ((True, histogram.correct), (False, histogram.wrong)):
        values = [value for is_correct, value in images if is_correct is kind]
        # A bin includes its lower edge; the last one includes its upper edge, too.
        slow = [sum(edges[b] <= v and (v < edges[b + 1] or b == bins - 1) for v in values) for b in range(bins)]
        assert counts.tolist() == slow
    assert histogram.correct.sum() + histogram.wrong.sum() == len(images)


def test_probabilities_are_counted_over_the_unit_interval_and_others_over_their_range() -> None:
    histogram = rank([True, False, True], [0.2, 0.3, 0.4]).histogram()
    assert (histogram.edges[0], histogram.edges[-1], len(histogram.correct)) == (0, 1, 40)
    histogram = rank([True, False, True], [-2.0, 0.5, 7.0]).histogram(3)
    assert (histogram.edges[0], histogram.edges[-1]) == (-2, 7)
    assert rank([True, False], [-2.0, -2.0]).histogram().correct.sum() == 1


def test_resamples_rank_like_repeated_images_and_are_paired_by_name() -> None:
    images = make_images(0, n=60, decimals=1)
    rankings: dict[str, list[Ranking]] = {"given": [], "same": []}
    steps: list[int] = []

    def compute(name: str, ranking: Ranking) -> list[float]:
        rankings[name].append(ranking)
        return [ranking.mean_selective_risk]

    values = resample_metrics(dict.fromkeys(rankings, images), compute, 30, 5, advance=steps.append)
    rng = np.random.default_rng(5)
    drawn = [tuple(one[rows] for one in images) for rows in (rng.integers(60, size=60) for _ in range(30))]
    for found, expected in zip(rankings["given"], (rank(*one) for one in drawn), strict=True):
        np.testing.assert_array_equal(found.confidences, expected.confidences)
        np.testing.assert_array_equal(found.accepted, expected.accepted)
        np.testing.assert_array_equal(found.errors, expected.errors)
    np.testing.assert_array_equal(values["given"][:, 0], [metrics.aurc(*one) for one in drawn])
    np.testing.assert_array_equal(values["given"], values["same"])
    assert steps == [1] * 30


@pytest.mark.parametrize(("n_undefined", "is_defined"), [(0, True), (10, True), (11, False), (100, False)])
def test_an_interval_holds_the_central_values_of_enough_defined_resamples(n_undefined: int, is_defined: bool) -> None:
    values = np.linspace(0, 1, 100)
    values[:n_undefined] = np.nan
    interval = Interval.from_resamples(values, 0.9)
    assert (interval is not None) == is_defined
    if interval:
        lowest, margin = n_undefined / 99, 0.05 * (1 - n_undefined / 99)
        assert (interval.low, interval.high) == pytest.approx((lowest + margin, 1 - margin))


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs the published numbers of the paper")
def test_the_published_tables_are_on_joint_risk() -> None:
    keys = ("table", "predict_by", "dataset", "arch", "flip", "task", "method", "accuracy")
    values: dict[tuple[str, ...], dict[str, float]] = {}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            values.setdefault(tuple(row[key] for key in keys), {})[row["metric"]] = float(row["value"])
    complete = {cell: by_metric for cell, by_metric in values.items() if {"AORC", "AUROC", "eAURC"} <= set(by_metric)}
    assert len(complete) == 86
    for cell, by_metric in complete.items():
        assert by_metric["AORC"] == by_metric["AUROC"], cell
        accuracy = float(cell[-1])
        # Printed in percent with one decimal: half a unit of tolerance for each rounded number.
        tolerance = 0.05 + 0.05 * accuracy * (1 - accuracy) + 0.05 * (100 - by_metric["AUROC"]) / 100 + 1e-9
        assert abs((100 - by_metric["AUROC"]) * accuracy * (1 - accuracy) - by_metric["eAURC"]) <= tolerance, cell
