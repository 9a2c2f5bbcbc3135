"""The threshold with the least cost, and its bound on the error rate, compared with slow references and simulations."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import secondlook as sl
from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import DecisionError
from secondlook.policies import threshold_for

DRAWS, SIZE, DELTA = 4_000, 40, 0.2


def make_predictions(confidence: Float64Array, correct: BoolArray) -> sl.Predictions:
    """Two classes, of which the first is predicted with the given probability. float64 [N], bool [N]"""
    probabilities = np.stack([confidence, 1 - confidence], axis=1)[:, None]
    return sl.Predictions(probabilities=probabilities, views=["identity"], labels=np.where(correct, 0, 1))


def find_bound(errors: int, images: int, level: float) -> float:
    """Return the largest risk at which so few errors have a probability above the level, by bisection."""
    low, high = 0.0, 1.0
    while errors < images and high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if binom.cdf(errors, images, middle) > level else (low, middle)
    return high


def choose_slowly(confidence: Float64Array, correct: BoolArray, error: float, review: float) -> tuple[float, float]:
    """Return the least cost and its threshold, the highest of those with equal costs; infinite to review all."""
    found = [(review * len(correct), -math.inf)]
    for threshold in set(confidence.tolist()):
        accept = confidence >= threshold
        found.append((error * int(np.sum(accept & ~correct)) + review * int(np.sum(~accept)), -threshold))
    cost, negative = min(found)
    return cost / len(correct), -negative


def cross_validate(confidence: Float64Array, correct: BoolArray, error: float, review: float) -> float:
    """Return the mean cost of images that are decided by the threshold of the other nine tenths."""
    parts, costs = np.random.default_rng(0).permutation(len(correct)) % 10, []
    for place, part in enumerate(parts):
        others = parts != part
        threshold = choose_slowly(confidence[others], correct[others], error, review)[1] if others.any() else math.inf
        costs.append(review if confidence[place] < threshold else error * (not correct[place]))
    return float(np.mean(costs))


def test_the_estimated_cost_is_that_of_new_images() -> None:
    """Errors get rarer with the confidence, which the threshold overfits: on its own images it costs too little."""
    rng, estimates, costs = np.random.default_rng(0), [], []
    grid = np.linspace(0.5, 1, 10_001)
    is_wrong = 0.9 * (2 * (1 - grid)) ** 3
    for _ in range(150):
        confidence = rng.choice(grid, 200)
        correct = rng.random(200) >= 0.9 * (2 * (1 - confidence)) ** 3
        policy = threshold_for(make_predictions(confidence, correct), "msr", cost_error=20, cost_review=1)
        assert policy.costs is not None
        accept = grid >= policy.threshold
        estimates.append(policy.costs.per_image)
        counts = policy.calibration
        assert counts is not None
        on_own = (20 * (counts.errors or 0) + counts.images - counts.accepted) / counts.images
        costs.append((float(np.mean(np.where(accept, 20 * is_wrong, 1))), on_own))
    true, own = np.mean(costs, axis=0)
    print(f"estimated {np.mean(estimates):.3f}, true {true:.3f}, on its own images {own:.3f}")
    assert abs(np.mean(estimates) - true) < 0.3 * (true - own)


@given(
    images=st.lists(st.tuples(st.sampled_from([0.5, 0.625, 0.75, 0.875, 1.0]), st.booleans()), min_size=1, max_size=30),
    costs=st.sampled_from([(1.0, 1.0), (50.0, 1.0), (3.0, 2.0), (0.5, 4.0), (1e9, 1e-3)]),
)
def test_costs_and_bound_are_those_of_a_slow_reference(
    images: list[tuple[float, bool]], costs: tuple[float, float]
) -> None:
    confidence, correct = np.array([one for one, _ in images]), np.array([one for _, one in images])
    preds = make_predictions(confidence, correct)
    _, threshold = choose_slowly(confidence.astype(np.float32).astype(float), correct, *costs)
    call: dict[str, Any] = {"cost_error": costs[0], "cost_review": costs[1], "delta": 0.05}
    if math.isinf(threshold):
        with pytest.raises(DecisionError, match="reviewing all images costs less"):
            threshold_for(preds, "msr", **call)
        return
    policy = threshold_for(preds, "msr", **call)
    assert policy.threshold == threshold
    assert policy.costs is not None
    assert policy.costs.per_image == pytest.approx(cross_validate(confidence, correct, *costs))
    assert policy.costs.accept_all == pytest.approx(costs[0] * np.mean(~correct))
    accept = confidence >= threshold
    bound = find_bound(int(np.sum(accept & ~correct)), int(accept.sum()) - 1, 0.05 / len(correct))
    assert policy.certified == (bound <= 0.9999 + 1e-9)
    if policy.guarantee is not None:
        assert bound - 1e-9 <= policy.guarantee.risk <= bound + 1.001e-4


def test_the_bound_holds_for_an_adversary_that_chooses_the_costs() -> None:
    """Whoever tries all thresholds and keeps the lowest bound is wrong in at most `delta` of all draws.

    Without a share of `delta` for each image, the same bounds fail more often than that.
    """
    rng, risk = np.random.default_rng(0), 0.3
    wrong = rng.random((DRAWS, SIZE)) < risk  # most confident image first; every threshold has this risk
    errors, others = np.cumsum(wrong, axis=1), np.arange(SIZE)
    failures = {}
    for level in (DELTA, DELTA / SIZE):
        bounds = np.array([[find_bound(k, n, level) for k in range(SIZE + 1)] for n in range(SIZE)])
        failures[level] = float(np.mean((bounds[others, errors] < risk).any(axis=1)))
    assert failures[DELTA / SIZE] <= DELTA < failures[DELTA]
    # The policies have these bounds, whichever costs are tried.
    confidence = np.linspace(0.99, 0.51, SIZE)
    for draw in range(20):
        for cost_error in (1.5, 2.5, 4.0, 8.0):
            try:
                policy = threshold_for(
                    make_predictions(confidence, ~wrong[draw]), "msr", cost_error=cost_error, cost_review=1, delta=DELTA
                )
            except DecisionError:
                continue
            assert policy.calibration is not None
            accepted = policy.calibration.accepted
            bound = find_bound(int(errors[draw, accepted - 1]), accepted - 1, DELTA / SIZE)
            assert policy.guarantee is None or policy.guarantee.risk >= bound - 1e-9


def test_wrong_copies_count_and_correct_ones_are_left_out() -> None:
    confidence = np.array([0.9, 0.9, 0.8, 0.8, 0.7, 0.6])
    correct = np.array([True, True, False, False, True, True])
    preds = make_predictions(confidence, correct)
    call: dict[str, Any] = {"cost_error": 1, "cost_review": 10, "delta": 0.4}
    policy = threshold_for(preds, "msr", **call, duplicates=[preds.ids[1], preds.ids[3]])
    counts = policy.calibration
    assert counts is not None
    assert (counts.images, counts.accepted, counts.errors, counts.duplicates) == (5, 5, 2, 1)
    assert policy.guarantee is not None
    assert policy.guarantee.risk >= find_bound(2, 4, 0.4 / 6)


@pytest.mark.parametrize("name", ["cost_error", "cost_review"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "50", None, True])
def test_invalid_costs_are_named(name: str, value: Any) -> None:
    preds = make_predictions(np.array([0.9, 0.8]), np.array([True, False]))
    with pytest.raises(DecisionError) as caught:
        threshold_for(preds, "msr", **{"cost_error": 2, "cost_review": 1, name: value})
    assert name in str(caught.value)


def test_costs_exclude_other_goals_and_need_labels() -> None:
    preds = make_predictions(np.array([0.9, 0.8]), np.array([True, True]))
    costs: dict[str, Any] = {"cost_error": 2, "cost_review": 1}
    others: list[dict[str, Any]] = [{"coverage": 0.5}, {"average_risk": 0.1}]
    for other in others:
        with pytest.raises(DecisionError, match="cost_error"):
            threshold_for(preds, "msr", **costs, **other)
    with pytest.raises(DecisionError, match="labels="):
        threshold_for(sl.Predictions(probabilities=preds.probabilities, views=["identity"]), "msr", **costs)


def test_policy_stores_and_describes_its_costs(tmp_path: Any) -> None:
    """The guarantee shows that accepting pays only if its risk is below the break-even."""
    correct = np.append(np.ones(396, dtype=bool), np.zeros(4, dtype=bool))
    preds = make_predictions(np.linspace(0.99, 0.51, 400), correct)
    shown = []
    for cost_error in (10, 200):
        policy = threshold_for(preds, "msr", cost_error=cost_error, cost_review=1)
        policy.save(tmp_path / f"{cost_error}.json")
        read = sl.load_policy(tmp_path / f"{cost_error}.json")
        assert read.costs == policy.costs
        assert policy.costs is not None
        assert policy.guarantee is not None
        assert 4 / 400 <= policy.costs.per_image < 20 / 400
        assert policy.costs.accept_all == cost_error * 4 / 400
        assert f"{1000 * (1 - policy.costs.per_image):.0f} less than reviewing all" in str(read)
        shown.append((policy.guarantee.risk <= policy.costs.break_even, "does not show" in str(read)))
    assert shown == [(True, False), (False, True)]
