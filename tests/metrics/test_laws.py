"""Laws of every registered metric, and every metric of ties against all their orders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.metrics import METRICS, aorc_joint, auroc, parse_metric, rank
from secondlook.metrics.definitions import Metric

BruteForce = Callable[[str, Any, Any], float]

ALL = list(METRICS.values())
ORDER_ONLY = [record for record in ALL if record.reads == "order"]
ARGUMENTS: dict[str | None, tuple[float, ...]] = {None: (), "coverage": (0.6,), "risk": (0.2,)}

both_outcomes = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40).filter(
    lambda images: len({is_correct for is_correct, _ in images}) == 2
)
few_images = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=2, max_size=6).filter(
    lambda images: len({is_correct for is_correct, _ in images}) == 2
)


def compute(record: Metric, correct: Any, confidence: Any) -> float:
    arguments = ARGUMENTS[record.parameter]
    return record.function(np.asarray(correct, dtype=bool), np.asarray(confidence, dtype=float), *arguments)


def is_no_worse(record: Metric, first: float, second: float) -> bool:
    return first >= second - 1e-12 if record.better == "higher" else first <= second + 1e-12


@pytest.mark.parametrize("record", ALL, ids=lambda record: str(record.name))
@settings(deadline=None, max_examples=40)
@given(images=both_outcomes, seed=st.integers(0, 1000))
def test_shuffling_the_images_changes_no_bit(record: Metric, images: list[tuple[bool, int]], seed: int) -> None:
    correct, confidence = np.array([c for c, _ in images]), np.array([s for _, s in images]) / 6
    order = np.random.default_rng(seed).permutation(len(correct))
    assert compute(record, correct, confidence) == compute(record, correct[order], confidence[order])


@pytest.mark.parametrize("record", ALL, ids=lambda record: str(record.name))
@settings(deadline=None, max_examples=40)
@given(images=both_outcomes)
def test_values_are_within_their_bounds(record: Metric, images: list[tuple[bool, int]]) -> None:
    value = compute(record, [c for c, _ in images], [s / 6 for _, s in images])
    assert record.bounds[0] <= value <= record.bounds[1]


@pytest.mark.parametrize("record", ORDER_ONLY, ids=lambda record: str(record.name))
@settings(deadline=None, max_examples=40)
@given(images=both_outcomes)
def test_monotone_transformations_of_the_confidence_change_nothing(
    record: Metric, images: list[tuple[bool, int]]
) -> None:
    correct, confidence = [c for c, _ in images], np.array([s for _, s in images])
    assert compute(record, correct, confidence) == compute(record, correct, np.exp(3.0 * confidence) - 7)


@pytest.mark.parametrize("record", ORDER_ONLY, ids=lambda record: str(record.name))
@settings(deadline=None, max_examples=40)
@given(images=both_outcomes)
def test_the_perfect_order_is_best_and_the_worst_order_is_worst(record: Metric, images: list[tuple[bool, int]]) -> None:
    correct, confidence = np.array([c for c, _ in images]), np.array([s for _, s in images])
    value = compute(record, correct, confidence)
    assert is_no_worse(record, compute(record, correct, correct), value)
    assert is_no_worse(record, value, compute(record, correct, ~correct))


@settings(deadline=None, max_examples=200)
@given(images=both_outcomes)
def test_aorc_on_joint_risk_equals_auroc_exactly(images: list[tuple[bool, int]]) -> None:
    correct, confidence = np.array([c for c, _ in images]), np.array([s for _, s in images])
    assert aorc_joint(correct, confidence) == auroc(correct, confidence)


@pytest.mark.parametrize("record", ALL, ids=lambda record: str(record.name))
def test_ranked_images_have_the_same_value(record: Metric) -> None:
    rng = np.random.default_rng(5)
    correct, confidence = rng.random(50) < 0.7, rng.random(50).round(1)
    text = record.name if record.parameter is None else f"{record.name}:{ARGUMENTS[record.parameter][0]}"
    expected = compute(record, correct, confidence)
    assert parse_metric(text).compute(rank(correct, confidence)) == expected
    assert parse_metric(text)(correct, confidence) == expected


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


def test_many_ties_match_the_mean_of_many_random_orders(images: Callable[..., tuple[Any, Any]]) -> None:
    correct, confidence = images(0, n=400, decimals=1)
    rng = np.random.default_rng(1)
    curves = []
    for _ in range(2000):
        order = np.lexsort((rng.random(400), -confidence))
        curves.append(np.cumsum(~correct[order]) / np.arange(1, 401))
    assert metrics.aurc(correct, confidence) == pytest.approx(np.mean(curves), abs=2e-4)
    assert metrics.risk_at(correct, confidence, 0.33) == pytest.approx(np.mean(curves, axis=0)[131], abs=2e-3)


@pytest.mark.parametrize(
    ("text", "all_correct", "all_wrong"),
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
def test_edge_cases_have_the_documented_value(
    text: str, all_correct: float | None, all_wrong: float | None, confidence: list[float]
) -> None:
    for outcome, expected in ((True, all_correct), (False, all_wrong)):
        ranking = rank([outcome] * len(confidence), confidence)
        if expected is None:
            with pytest.raises(MetricError, match=text):
                parse_metric(text).compute(ranking)
        else:
            assert parse_metric(text).compute(ranking) == pytest.approx(expected, abs=1e-12)


def test_equal_confidences_have_the_value_of_a_random_order() -> None:
    correct, confidence = [True, True, True, False], [0.5] * 4
    assert metrics.auroc(correct, confidence) == 0.5
    assert metrics.aupr(correct, confidence, ties="threshold") == 0.25
    assert metrics.aupr(correct, confidence) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert metrics.aurc(correct, confidence) == pytest.approx(0.25)
    assert metrics.risk_at(correct, confidence, 0.5) == 0.25
