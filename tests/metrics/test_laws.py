"""Laws that hold for every registered metric."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.metrics import Metric, aorc_joint, auroc, known_metrics, parse_metric, rank

ORDER_ONLY = [one for one in known_metrics() if one.reads == "order"]
ARGUMENTS: dict[str | None, tuple[float, ...]] = {None: (), "coverage": (0.6,), "risk": (0.2,)}
both_kinds = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40).filter(
    lambda images: len({right for right, _ in images}) == 2
)


def value(one: Metric[...], correct: Any, confidence: Any) -> float:
    return one(np.asarray(correct, dtype=bool), np.asarray(confidence, dtype=float), *ARGUMENTS[one.parameter])


def is_no_worse(one: Metric[...], first: float, second: float) -> bool:
    return first >= second - 1e-12 if one.better == "higher" else first <= second + 1e-12


@pytest.mark.parametrize("one", known_metrics(), ids=lambda one: str(one.name))
@settings(deadline=None, max_examples=40)
@given(images=both_kinds, seed=st.integers(0, 1000))
def test_shuffling_changes_no_bit(one: Metric[...], images: list[tuple[bool, int]], seed: int) -> None:
    correct, confidence = np.array([c for c, _ in images]), np.array([s for _, s in images]) / 6
    order = np.random.default_rng(seed).permutation(len(correct))
    assert value(one, correct, confidence) == value(one, correct[order], confidence[order])


@pytest.mark.parametrize("one", known_metrics(), ids=lambda one: str(one.name))
@settings(deadline=None, max_examples=40)
@given(images=both_kinds)
def test_numbers_stay_within_their_bounds(one: Metric[...], images: list[tuple[bool, int]]) -> None:
    number = value(one, [c for c, _ in images], [s / 6 for _, s in images])
    assert one.bounds[0] <= number <= one.bounds[1]


@pytest.mark.parametrize("one", ORDER_ONLY, ids=lambda one: str(one.name))
@settings(deadline=None, max_examples=40)
@given(images=both_kinds)
def test_monotone_changes_change_nothing(one: Metric[...], images: list[tuple[bool, int]]) -> None:
    correct, confidence = [c for c, _ in images], np.array([s for _, s in images])
    assert value(one, correct, confidence) == value(one, correct, np.exp(3.0 * confidence) - 7)


@pytest.mark.parametrize("one", ORDER_ONLY, ids=lambda one: str(one.name))
@settings(deadline=None, max_examples=40)
@given(images=both_kinds)
def test_the_perfect_order_is_best_and_the_worst_is_worst(one: Metric[...], images: list[tuple[bool, int]]) -> None:
    correct, confidence = np.array([c for c, _ in images]), np.array([s for _, s in images])
    found = value(one, correct, confidence)
    assert is_no_worse(one, value(one, correct, correct), found)
    assert is_no_worse(one, found, value(one, correct, ~correct))


@settings(deadline=None, max_examples=200)
@given(images=both_kinds)
def test_aorc_on_joint_risk_is_auroc_exactly(images: list[tuple[bool, int]]) -> None:
    correct, confidence = np.array([c for c, _ in images]), np.array([s for _, s in images])
    assert aorc_joint(correct, confidence) == auroc(correct, confidence)


@pytest.mark.parametrize("one", known_metrics(), ids=lambda one: str(one.name))
def test_a_metric_of_ranked_images_is_the_same_number(one: Metric[...]) -> None:
    rng = np.random.default_rng(5)
    correct, confidence = rng.random(50) < 0.7, rng.random(50).round(1)
    text = one.name if one.parameter is None else f"{one.name}:{ARGUMENTS[one.parameter][0]}"
    assert parse_metric(text).of(rank(correct, confidence)) == value(one, correct, confidence)
    assert one.__doc__
    assert one.says
