"""Risk-coverage curves, their areas and their points, and the published tables of the paper."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook import metrics
from secondlook.metrics import rank

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "paper" / "published.csv"
Images = Callable[..., tuple[Any, Any]]


def test_areas_are_means_of_their_curves(images: Images) -> None:
    correct, confidence = images(0, n=500, decimals=1)
    assert np.mean(rank(correct, confidence).risk_coverage().risk) == pytest.approx(metrics.aurc(correct, confidence))
    joint = rank(correct, confidence).risk_coverage(joint=True)
    error_rate = 1 - metrics.accuracy(correct, confidence)
    assert np.trapezoid([0, *joint.risk], [0, *joint.coverage]) == pytest.approx(metrics.augrc(correct, confidence))
    assert joint.risk[-1] == pytest.approx(error_rate)


def test_closed_forms_of_joint_areas_hold(images: Images) -> None:
    correct, confidence = images(4, decimals=1)
    auroc, error_rate = metrics.auroc(correct, confidence), 1 - metrics.accuracy(correct, confidence)
    expected = error_rate**2 / 2 + error_rate * (1 - error_rate) * (1 - auroc)
    assert metrics.augrc(correct, confidence) == pytest.approx(expected)
    assert metrics.eaurc_joint(correct, confidence) == pytest.approx((1 - auroc) * (1 - error_rate) * error_rate)


def test_the_given_curve_is_between_the_perfect_and_the_worst_curve(images: Images) -> None:
    correct, confidence = images(1, n=500, decimals=1)
    ranking = rank(correct, confidence)
    for joint in (False, True):
        given, perfect, worst = (
            one.risk_coverage(joint=joint).risk for one in (ranking, ranking.perfect(), ranking.worst())
        )
        assert np.all(perfect <= given + 1e-12)
        assert np.all(given <= worst + 1e-12)
        assert perfect[-1] == pytest.approx(given[-1])


def test_extreme_curves_are_those_of_an_extreme_confidence(images: Images) -> None:
    correct, confidence = images(2, n=500, decimals=1)
    ranking = rank(correct, confidence)
    for extreme, order in ((ranking.perfect(), correct), (ranking.worst(), ~correct)):
        assert extreme.risk_coverage().risk == pytest.approx(rank(correct, order.astype(float)).risk_coverage().risk)


def test_points_of_a_small_curve() -> None:
    correct, confidence = [True, True, False, True, False], [0.9, 0.8, 0.7, 0.6, 0.5]
    assert metrics.risk_at(correct, confidence, 0.6) == pytest.approx(1 / 3)
    assert metrics.risk_at(correct, confidence, 1.0) == pytest.approx(2 / 5)
    assert metrics.coverage_at(correct, confidence, 0.0) == pytest.approx(0.4)
    assert metrics.coverage_at(correct, confidence, 0.25) == pytest.approx(0.8)
    assert metrics.coverage_at([False, True], [0.9, 0.1], 0.1) == 0.0


@settings(deadline=None, max_examples=200)
@given(
    images=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=30), percent=st.integers(0, 100)
)
def test_coverage_at_is_the_last_point_of_the_curve_within_the_risk(
    images: list[tuple[bool, int]], percent: int
) -> None:
    correct, confidence = [c for c, _ in images], [float(s) for _, s in images]
    curve = rank(correct, confidence).risk_coverage()
    within = curve.coverage[curve.risk <= percent / 100 + 1e-10]
    found = metrics.coverage_at(correct, confidence, percent / 100)
    assert found == pytest.approx(within[-1] if len(within) else 0.0)


def test_risk_inside_a_large_tie_is_exact() -> None:
    correct = np.ones(10**6, dtype=bool)
    correct[:300_001] = False
    assert metrics.risk_at(correct, np.zeros(10**6), 1e-6) == 0.300001


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs the published numbers of the paper")
def test_the_published_tables_are_on_joint_risk() -> None:
    values: dict[tuple[str, ...], dict[str, float]] = {}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            cell = tuple(
                row[key] for key in ("table", "predict_by", "dataset", "arch", "flip", "task", "method", "accuracy")
            )
            values.setdefault(cell, {})[row["metric"]] = float(row["value"])
    complete = {cell: by_metric for cell, by_metric in values.items() if {"AORC", "AUROC", "eAURC"} <= set(by_metric)}
    assert len(complete) == 86
    for cell, by_metric in complete.items():
        assert by_metric["AORC"] == by_metric["AUROC"], cell
        accuracy = float(cell[-1])
        # Printed in percent with one decimal: half a unit of tolerance for each rounded number.
        tolerance = 0.05 + 0.05 * accuracy * (1 - accuracy) + 0.05 * (100 - by_metric["AUROC"]) / 100 + 1e-9
        assert abs((100 - by_metric["AUROC"]) * accuracy * (1 - accuracy) - by_metric["eAURC"]) <= tolerance, cell
