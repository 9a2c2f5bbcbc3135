"""Agreement of reviewers against scikit-learn, a slow version and published numbers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import cohen_kappa_score

from secondlook.extension import Answer
from secondlook.serving.agreement import (
    GivenLabel,
    compute_alpha,
    describe_agreement,
    estimate_error,
)

UNITS = st.lists(st.lists(st.integers(-3, 3), max_size=4), max_size=12)


def compute_slow_alpha(units: list[list[int]]) -> float | None:
    """Krippendorff's alpha from all pairs of labels, one by one."""
    observed = {1: 0.0, 0: 0.0}
    labels = [label for unit in units if len(unit) > 1 for label in unit]
    for unit in units:
        for a, b in itertools.permutations(range(len(unit)), 2):
            observed[unit[a] == unit[b]] += 1 / (len(unit) - 1)
    pairs = list(itertools.permutations(labels, 2))
    expected = sum(a != b for a, b in pairs) / len(pairs) if pairs else 0
    return None if not expected else 1 - observed[0] / len(labels) / expected


@given(UNITS)
def test_alpha_equals_the_slow_version(units: list[list[int]]) -> None:
    expected = compute_slow_alpha(units)
    assert compute_alpha(units) == (None if expected is None else pytest.approx(expected))


def test_alpha_of_a_published_example() -> None:
    """Four observers and twelve units with missing data: alpha = 0.743 (Krippendorff 2011, section C)."""
    units = [
        [1, 1, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4],
        [4, 4, 4, 4], [1, 1, 2, 1], [2, 2, 2, 2], [5, 5, 5], [1, 1], [3],
    ]  # fmt: skip
    assert compute_alpha(units) == pytest.approx(0.743, abs=5e-4)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
def test_kappa_per_pair_of_reviewers(labels: list[tuple[int, int]]) -> None:
    rows = [
        GivenLabel(image, name, one) for image, pair in enumerate(labels) for name, one in zip("ba", pair, strict=True)
    ]
    (found,) = describe_agreement(rows, 0.0)["pairs"]
    a, b = zip(*labels, strict=True)
    matrix = np.histogram2d(a, b, bins=np.arange(-0.5, 3))[0] / len(labels)
    chance = matrix.sum(axis=0) @ matrix.sum(axis=1)
    assert found["reviewers"] == ("a", "b")
    assert found["agreement"] == pytest.approx(np.trace(matrix))
    if len({*a, *b}) == 1:
        assert found["kappa"] is None
    else:
        assert found["kappa"] == pytest.approx((np.trace(matrix) - chance) / (1 - chance), abs=1e-12)
        assert found["kappa"] == pytest.approx(cohen_kappa_score(a, b), abs=1e-12)


@pytest.mark.parametrize(("images", "disagreements"), [(0, 0), (10, 0), (200, 12), (200, 120), (5, 5)])
def test_estimated_reviewer_error(images: int, disagreements: int) -> None:
    found = estimate_error([(0, 1)] * disagreements + [(1, 1)] * (images - disagreements), 0.01)
    assert (found["images"], found["disagreements"]) == (images, disagreements)
    assert 0 <= found["low"] <= (found["estimate"] or 0) <= found["high"] <= 0.5
    assert found["exceeded"] == (found["low"] > 0.01)
    if 0 < disagreements < images / 2:
        rates = [2 * error * (1 - error) for error in (found["estimate"], found["low"], found["high"])]
        assert rates[0] == pytest.approx(disagreements / images)
        low, high = rates[1:]
        assert binom.sf(disagreements - 1, images, low) == pytest.approx(0.025)
        assert binom.cdf(disagreements, images, high) == pytest.approx(0.025)


def test_interval_covers_the_error_rate_of_simulated_reviewers() -> None:
    rng, error, covered = np.random.default_rng(0), 0.03, 0
    for _ in range(300):
        labels = rng.random((400, 2)) < error
        found = estimate_error([(int(a), int(b)) for a, b in labels], error)
        covered += found["low"] <= error <= found["high"]
    assert covered / 300 > 0.92


def test_only_blind_first_labels_are_compared() -> None:
    labels = [
        GivenLabel(1, "a", 0), GivenLabel(1, "b", 1), GivenLabel(1, "b", 0), GivenLabel(1, "c", 0),
        GivenLabel(2, "a", 0, is_blind=False), GivenLabel(2, "b", 1, is_blind=False),
        GivenLabel(3, "a", Answer.CANNOT_TELL), GivenLabel(3, "b", 1),
    ]  # fmt: skip
    found = describe_agreement(labels, 0.05)
    assert (found["error"]["images"], found["error"]["disagreements"]) == (1, 1), "of the first two"
    rows = [(row["name"], row["labels"], row["pairs"]) for row in found["reviewers"]]
    assert rows == [("a", 3, 2), ("b", 3, 2), ("c", 1, 2)]
    assert math.isclose(found["alpha"], compute_slow_alpha([[0, 1, 0]]) or 0)
