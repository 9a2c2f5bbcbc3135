"""Every number against an independent one: all orders of the ties, scikit-learn, closed forms, the paper."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook import metrics
from secondlook.errors import MetricError

SHARED = Path(__file__).resolve().parents[3] / "shared"
BruteForce = Callable[[str, Any, Any], float]
few_images = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=2, max_size=6).filter(
    lambda images: len({right for right, _ in images}) == 2
)


def random_images(seed: int, n: int = 3000, decimals: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).round(decimals)
    return rng.random(n) < 0.3 + 0.65 * confidence, confidence


@pytest.mark.parametrize("name", ["auroc", "aupr", "aurc", "eaurc", "aorc", "augrc", "eaurc_joint", "aorc_joint"])
def test_ties_count_as_the_mean_over_all_their_orders(name: str, brute_force: BruteForce) -> None:
    @settings(deadline=None, max_examples=40)
    @given(images=few_images)
    def check(images: list[tuple[bool, int]]) -> None:
        correct, confidence = [c for c, _ in images], [float(s) for _, s in images]
        assert getattr(metrics, name)(correct, confidence) == pytest.approx(
            brute_force(name, correct, confidence), abs=1e-12
        )

    check()


def test_numbers_of_many_images_with_ties_match_a_long_shuffle() -> None:
    correct, confidence = random_images(0, n=400, decimals=1)
    rng = np.random.default_rng(1)
    curves = []
    for _ in range(2000):
        order = np.lexsort((rng.random(400), -confidence))
        curves.append(np.cumsum(~correct[order]) / np.arange(1, 401))
    assert metrics.aurc(correct, confidence) == pytest.approx(np.mean(curves), abs=2e-4)
    assert metrics.risk_at(correct, confidence, 0.33) == pytest.approx(np.mean(curves, axis=0)[131], abs=2e-3)


@pytest.mark.parametrize("decimals", [1, 15])
def test_scikit_learn_agrees(decimals: int) -> None:
    from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

    correct, confidence = random_images(2, decimals=decimals)
    assert metrics.auroc(correct, confidence) == pytest.approx(roc_auc_score(correct, confidence), abs=1e-12)
    assert metrics.aupr(correct, confidence, ties="threshold") == pytest.approx(
        average_precision_score(~correct, -confidence), abs=1e-12
    )
    assert metrics.brier(correct, confidence) == pytest.approx(brier_score_loss(correct, confidence), abs=1e-12)
    assert metrics.nll(correct, confidence) == pytest.approx(log_loss(correct, confidence), abs=1e-12)


def test_without_ties_both_average_precisions_are_one() -> None:
    correct, confidence = random_images(3, decimals=15)
    expected = metrics.aupr(correct, confidence, ties="threshold")
    assert metrics.aupr(correct, confidence) == pytest.approx(expected, abs=1e-12)


def test_the_closed_forms_of_the_joint_areas_hold() -> None:
    correct, confidence = random_images(4, decimals=1)
    auroc, error = metrics.auroc(correct, confidence), 1 - metrics.accuracy(correct, confidence)
    assert metrics.augrc(correct, confidence) == pytest.approx(error**2 / 2 + error * (1 - error) * (1 - auroc))
    assert metrics.eaurc_joint(correct, confidence) == pytest.approx((1 - auroc) * (1 - error) * error)


def test_calibration_error_of_a_hand_made_case() -> None:
    # Two bins: confidence 0.3 with none of two right, confidence 0.9 with three of four right.
    correct = np.array([False, False, True, True, True, False])
    confidence = np.array([0.3, 0.3, 0.9, 0.9, 0.9, 0.9])
    assert metrics.ece(correct, confidence, bins=2) == pytest.approx((2 * 0.3 + 4 * 0.15) / 6)


def test_a_sure_and_wrong_image_costs_a_finite_number_of_nats() -> None:
    assert metrics.nll([False], [1.0]) == pytest.approx(-np.log(np.finfo(float).eps))


@pytest.mark.parametrize(
    ("name", "no_errors", "only_errors"),
    [
        ("accuracy", 1.0, 0.0),
        ("auroc", None, None),
        ("aupr", None, 1.0),
        ("aurc", 0.0, 1.0),
        ("eaurc", 0.0, 0.0),
        ("aorc", None, None),
        ("augrc", 0.0, 0.5),
        ("eaurc_joint", 0.0, 0.0),
        ("aorc_joint", None, None),
        ("risk_at:0.5", 0.0, 1.0),
        ("coverage_at:0.1", 1.0, 0.0),
    ],
)
@pytest.mark.parametrize("confidence", [[0.5], [0.2, 0.9, 0.4], [0.5, 0.5, 0.5]], ids=["one", "three", "tied"])
def test_edges_have_the_documented_value(
    name: str, no_errors: float | None, only_errors: float | None, confidence: list[float]
) -> None:
    for right, expected in ((True, no_errors), (False, only_errors)):
        ranking = metrics.rank([right] * len(confidence), confidence)
        if expected is None:
            with pytest.raises(MetricError, match="has no meaning"):
                metrics.parse_metric(name).of(ranking)
        else:
            assert metrics.parse_metric(name).of(ranking) == pytest.approx(expected, abs=1e-12)


def test_all_tied_says_nothing_about_order() -> None:
    correct, confidence = [True, True, True, False], [0.5] * 4
    assert metrics.auroc(correct, confidence) == 0.5
    assert metrics.aupr(correct, confidence, ties="threshold") == 0.25
    assert metrics.aupr(correct, confidence) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert metrics.aurc(correct, confidence) == pytest.approx(0.25)
    assert metrics.risk_at(correct, confidence, 0.5) == 0.25


def test_points_of_the_curve() -> None:
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
def test_coverage_at_is_the_last_point_of_the_curve_below_the_risk(
    images: list[tuple[bool, int]], percent: int
) -> None:
    correct, confidence = [c for c, _ in images], [float(s) for _, s in images]
    curve = metrics.risk_coverage(correct, confidence)
    kept = curve.coverage[curve.risk <= percent / 100 + 1e-10]
    found = metrics.coverage_at(correct, confidence, percent / 100)
    assert found == pytest.approx(kept[-1] if len(kept) else 0.0)


def published_cells() -> list[dict[str, str]]:
    with (SHARED / "paper" / "published.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(not (SHARED / "paper" / "published.csv").is_file(), reason="needs the paper's published numbers")
def test_the_published_tables_are_on_joint_risk() -> None:
    values: dict[tuple[str, ...], dict[str, float]] = {}
    for row in published_cells():
        cell = tuple(
            row[key] for key in ("table", "predict_by", "dataset", "arch", "flip", "task", "method", "accuracy")
        )
        values.setdefault(cell, {})[row["metric"]] = float(row["value"])
    whole = {cell: by_name for cell, by_name in values.items() if {"AORC", "AUROC", "eAURC"} <= set(by_name)}
    assert len(whole) == 86
    for cell, by_name in whole.items():
        assert by_name["AORC"] == by_name["AUROC"], cell
        right = float(cell[-1])
        # Printed with one decimal in per cent: the cell is right within half a unit of each rounded number.
        slack = 0.05 + 0.05 * right * (1 - right) + 0.05 * (100 - by_name["AUROC"]) / 100 + 1e-9
        assert abs((100 - by_name["AUROC"]) * right * (1 - right) - by_name["eAURC"]) <= slack, cell


def test_risk_inside_a_large_block_keeps_its_digits() -> None:
    correct = np.ones(10**6, dtype=bool)
    correct[:300_001] = False
    assert metrics.risk_at(correct, np.zeros(10**6), 1e-6) == 0.300001
