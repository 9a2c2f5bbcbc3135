"""The ranking against a transparent reference, with ties, odd windows and stages of the list."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import ConfidenceError
from secondlook.estimators import bootstrap, plurality_confidence
from secondlook.estimators.bootstrap import plurality_order


def reference_order(resampled: Array, window: int) -> list[int]:
    """Follow the steps of the paper. [N, B] -> images, the most confident first"""
    entries = [(value, image) for image, row in enumerate(resampled.tolist()) for value in row]
    images = [image for _, image in sorted(entries)]
    order = []
    while images:
        in_window = images[:window]
        most_frequent = max(dict.fromkeys(in_window), key=in_window.count)
        order.append(most_frequent)
        images = [image for image in images if image != most_frequent]
    return order


def resample(other_mass: Array, counts: Array) -> Array:
    sums = np.zeros((len(other_mass), counts.shape[1]))
    for view in range(len(counts)):
        sums += other_mass[:, view : view + 1] * counts[view]
    return sums.astype(np.float32)


@st.composite
def ranking_problems(draw: st.DrawFn) -> tuple[Array, int]:
    """Draw few distinct values, so that most entries tie, and windows below, at and above the resamples."""
    n, b = draw(st.integers(1, 25)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.integers(0, draw(st.sampled_from([1, 2, 4, 1000])), (n, b)).astype(float)
    window = draw(st.sampled_from([1, max(1, b // 2), b, b + 1, 3 * b, n * b, 2 * n * b]))
    return values, window


@settings(deadline=None, max_examples=300)
@given(ranking_problems())
def test_the_order_equals_the_reference(problem: tuple[Array, int]) -> None:
    other_mass, window = problem
    order = plurality_order(other_mass, np.eye(other_mass.shape[1]), window)
    assert order.tolist() == reference_order(other_mass, window)


@pytest.mark.parametrize("images_per_stage", [1, 7, 50, 1000])
@pytest.mark.parametrize("window", [1, 40, 200])
def test_the_order_does_not_depend_on_stages_and_blocks(
    images_per_stage: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "MIN_IMAGES_PER_STAGE", images_per_stage)
    monkeypatch.setattr(bootstrap, "PRODUCT_SIZE", images_per_stage * 5 * 40)
    generator = np.random.default_rng(5)
    other_mass = generator.random((60, 5)) ** 8
    other_mass[10:20] = other_mass[30:40]
    counts = generator.multinomial(5, np.full(5, 0.2), size=40).T
    expected = reference_order(resample(other_mass, counts), window)
    assert plurality_order(other_mass, counts, window).tolist() == expected


def test_values_that_differ_in_their_last_bits_are_sorted() -> None:
    generator = np.random.default_rng(0)
    other_mass = 1 + generator.random((300, 20)) * 1e-3
    assert plurality_order(other_mass, np.eye(20)).tolist() == reference_order(other_mass.astype(np.float32), 20)


def test_sums_halfway_between_two_float32_are_rounded_as_if_added_one_by_one() -> None:
    """The matrix product may add in another order, and so round such a sum to the other side."""
    generator = np.random.default_rng(1)
    other_mass = generator.random((80, 6)).astype(np.float32).astype(np.float64)
    other_mass[:, 5] = 2.0**-25 * (1 + 2.0**-20)
    counts = generator.multinomial(6, np.full(6, 1 / 6), size=50).T
    expected = reference_order(resample(other_mass, counts), 50)
    assert plurality_order(other_mass, counts).tolist() == expected


def test_equal_images_stay_in_order() -> None:
    assert plurality_order(np.zeros((5, 3)), np.ones((3, 7))).tolist() == [0, 1, 2, 3, 4]


def test_one_image_and_one_resample() -> None:
    assert plurality_order(np.array([[0.5, 0.2]]), np.ones((2, 10))).tolist() == [0]
    assert plurality_order(np.array([[3.0], [1.0], [2.0]]), np.ones((1, 1))).tolist() == [1, 2, 0]


def test_no_images() -> None:
    assert plurality_order(np.empty((0, 2)), np.ones((2, 3))).tolist() == []


def test_tiny_values_are_distinguished() -> None:
    other_mass = np.array([[3e-30], [1e-30], [2e-30]])
    assert plurality_order(other_mass, np.ones((1, 4))).tolist() == [1, 2, 0]


def test_confidences_are_evenly_spaced_from_one_to_zero() -> None:
    order = np.array([[2.0], [3.0], [1.0]])
    assert plurality_confidence(order, np.ones((1, 4))).tolist() == [0.5, 0.0, 1.0]
    assert plurality_confidence(order[:1], np.ones((1, 4))).tolist() == [1.0]


@pytest.mark.parametrize(
    ("other_mass", "counts", "window", "offending"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), None, "[2, 3]"),
        (np.ones(3), np.ones((3, 1)), None, "[3]"),
        (np.ones((2, 3)), np.ones((3, 0)), None, "[3, 0]"),
        (np.full((2, 3), np.nan), np.ones((3, 1)), None, "NaN"),
        (-np.ones((2, 3)), np.ones((3, 1)), None, "negative"),
        (np.full((2, 3), np.inf), np.ones((3, 1)), None, "infinite"),
        (np.ones((2, 3)), np.ones((3, 1)), 0, "window=0"),
    ],
)
def test_invalid_arrays_are_rejected(other_mass: Array, counts: Array, window: int | None, offending: str) -> None:
    with pytest.raises(ConfidenceError, match=re.escape(offending)):
        plurality_order(other_mass, counts, window)
