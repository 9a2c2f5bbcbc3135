"""The compiled loops against pairs counted one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import BoolArray, Float64Array
from secondlook.diagnosis.kernels import auroc_of, auroc_with_each, count_below
from secondlook.metrics import auroc


def pairs_one_by_one(confidence: Float64Array, wrong: BoolArray) -> float:
    """Look at every pair of a right and a wrong image."""
    pairs = [(sure, other) for sure in confidence[~wrong] for other in confidence[wrong]]
    return sum(1.0 if sure > other else 0.5 if sure == other else 0.0 for sure, other in pairs) / len(pairs)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12))
def test_auroc_counts_pairs(images: list[tuple[int, bool]]) -> None:
    images = [*images, (2, True), (2, False)]  # at least one of each kind
    confidence = np.array([sure for sure, _ in images], dtype=np.float64)  # few values, so there are ties
    wrong = np.array([is_wrong for _, is_wrong in images])
    ours = auroc_of(confidence[~wrong], confidence[wrong])
    assert ours == pytest.approx(pairs_one_by_one(confidence, wrong), abs=1e-12)
    assert ours == auroc(~wrong, confidence)


def test_each_candidate_is_joined_alone() -> None:
    generator = np.random.default_rng(1)
    shares, wrong = generator.random((4, 50)), generator.random(50) < 0.3
    values, candidates = np.empty(2), np.array([3, 1])
    right_shares, wrong_shares = shares[:, ~wrong], shares[:, wrong]
    auroc_with_each(right_shares[0], wrong_shares[0], right_shares, wrong_shares, candidates, values)
    expected = [pairs_one_by_one(shares[0] + shares[one], wrong) for one in candidates]
    np.testing.assert_allclose(values, expected, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(-1, 6))
def test_bisection_counts_what_is_below(values: list[int], value: int) -> None:
    assert count_below(np.sort(np.array(values, dtype=np.float64)), float(value)) == sum(one < value for one in values)
