"""The ranking kernels against a transparent reference, with ties, odd windows, threads and segments of the list."""

import itertools
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
    """Draw few distinct values, so that most entries tie, and windows below, at and above the resamplings."""
    n, b = draw(st.integers(1, 25)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.integers(0, draw(st.sampled_from([1, 2, 4, 1000])), (n, b)).astype(float)
    window = draw(st.sampled_from([1, max(1, b // 2), b, b + 1, 3 * b, n * b, 2 * n * b]))
    return values, window


@settings(deadline=None, max_examples=300)
@given(ranking_problems(), st.integers(1, 4))
def test_the_order_equals_the_reference(problem: tuple[Array, int], threads: int) -> None:
    other_mass, window = problem
    order = plurality_order(other_mass, np.eye(other_mass.shape[1]), window, threads=threads)
    assert order.tolist() == reference_order(other_mass, window)


@pytest.mark.parametrize("entries_per_segment", [1, 7, 100, 10**6])
@pytest.mark.parametrize("window", [1, 40, 200])
def test_the_order_does_not_depend_on_segments(
    entries_per_segment: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "ENTRIES_PER_SEGMENT", entries_per_segment)
    generator = np.random.default_rng(5)
    other_mass = generator.random((60, 5)) ** 8
    other_mass[10:20] = other_mass[30:40]
    counts = generator.multinomial(5, np.full(5, 0.2), size=40).T
    expected = reference_order(resample(other_mass, counts), window)
    assert plurality_order(other_mass, counts, window, threads=3).tolist() == expected


def test_large_bins_are_sorted_by_their_digits() -> None:
    generator = np.random.default_rng(0)
    other_mass = 1 + generator.random((300, 20)) * 1e-3
    assert plurality_order(other_mass, np.eye(20)).tolist() == reference_order(other_mass.astype(np.float32), 20)


def test_segments_cover_each_bin_once_and_are_bounded() -> None:
    bin_sizes = np.array([0, 4, 5, 0, 0, 30, 1, 0, 9, 1, 0])
    segments = list(bootstrap._split_bins(bin_sizes, 10))
    assert sum(bin_sizes[low:high].sum() for low, high in segments) == bin_sizes.sum()
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(segments))
    assert all(bin_sizes[low:high].sum() <= 10 or high - low == 1 for low, high in segments)


def test_equal_images_stay_in_order() -> None:
    assert plurality_order(np.zeros((5, 3)), np.ones((3, 7))).tolist() == [0, 1, 2, 3, 4]


def test_one_image_and_one_resampling() -> None:
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
        (np.ones((2, 3)), np.ones((3, 1)), 0, "window is 0"),
    ],
)
def test_invalid_arrays_are_rejected(other_mass: Array, counts: Array, window: int | None, offending: str) -> None:
    with pytest.raises(ConfidenceError, match=re.escape(offending)):
        plurality_order(other_mass, counts, window)
