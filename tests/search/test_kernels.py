"""The compiled loops against pairs counted one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Float64Array
from secondlook.metrics import auroc
from secondlook.search.kernels import auroc_with_each, weighted_auroc


def pairs_one_by_one(confidence: Float64Array, right: Float64Array, wrong: Float64Array) -> float:
    """Every pair of an image as right and an image as wrong, by its weights."""
    in_order = all_pairs = 0.0
    for sure, weight_right in zip(confidence, right, strict=True):
        for other, weight_wrong in zip(confidence, wrong, strict=True):
            all_pairs += weight_right * weight_wrong
            in_order += weight_right * weight_wrong * (1.0 if sure > other else 0.5 if sure == other else 0.0)
    return in_order / all_pairs


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.01, 0.99)), min_size=1, max_size=12))
def test_weighted_auroc_counts_pairs_by_weight(images: list[tuple[int, float]]) -> None:
    confidence = np.array([sure for sure, _ in images], dtype=np.float64)  # few values, so there are ties
    wrong = np.array([weight for _, weight in images])
    expected = pairs_one_by_one(confidence, 1 - wrong, wrong)
    assert weighted_auroc(confidence, 1 - wrong, wrong) == pytest.approx(expected, abs=1e-12)


def test_hard_labels_give_the_metric() -> None:
    generator = np.random.default_rng(0)
    correct = generator.random(200) < 0.8
    confidence = np.round(generator.random(200), 1)
    ours = weighted_auroc(confidence, correct.astype(float), (~correct).astype(float))
    assert ours == pytest.approx(auroc(correct, confidence), abs=1e-12)


def test_each_candidate_is_joined_alone() -> None:
    generator = np.random.default_rng(1)
    shares, wrong = generator.random((4, 50)), generator.random(50)
    values, candidates = np.empty(2), np.array([3, 1])
    auroc_with_each(shares[0], shares, candidates, 1 - wrong, wrong, values)
    expected = [pairs_one_by_one(shares[0] + shares[one], 1 - wrong, wrong) for one in candidates]
    np.testing.assert_allclose(values, expected, atol=1e-12)
