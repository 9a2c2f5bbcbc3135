"""The ranking kernel against a transparent version, with ties, odd windows, threads and parts of the list."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import ConfidenceError
from secondlook.estimators import plurality
from secondlook.estimators.plurality import plurality_order, ranks_to_scores


def reference_order(resampled: Array, window: int) -> list[int]:
    """The paper's steps, one by one. [N, B] -> images, the surest first"""
    scores = [(doubt, image) for image, row in enumerate(resampled.tolist()) for doubt in row]
    images = [image for _, image in sorted(scores)]
    order = []
    while images:
        in_window = images[:window]
        most_frequent = max(dict.fromkeys(in_window), key=in_window.count)
        order.append(most_frequent)
        images = [image for image in images if image != most_frequent]
    return order


def resampled_doubts(doubts: Array, counts: Array) -> Array:
    sums = np.zeros((len(doubts), counts.shape[1]))
    for view in range(len(counts)):
        sums += doubts[:, view : view + 1] * counts[view]
    return sums.astype(np.float32)


@st.composite
def ranking_problems(draw: st.DrawFn) -> tuple[Array, int]:
    """Few different values, so that nearly everything ties; windows below, at and above the resamplings."""
    n, b = draw(st.integers(1, 25)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.integers(0, draw(st.sampled_from([1, 2, 4, 1000])), (n, b)).astype(float)
    window = draw(st.sampled_from([1, max(1, b // 2), b, b + 1, 3 * b, n * b, 2 * n * b]))
    return values, window


@settings(deadline=None, max_examples=300)
@given(ranking_problems(), st.integers(1, 4))
def test_equals_the_transparent_version(problem: tuple[Array, int], threads: int) -> None:
    doubts, window = problem
    order = plurality_order(doubts, np.eye(doubts.shape[1]), window, threads=threads)
    assert order.tolist() == reference_order(doubts, window)


@pytest.mark.parametrize("entries_per_part", [1, 7, 100, 10**6])
@pytest.mark.parametrize("window", [1, 40, 200])
def test_resampling_and_parts_of_the_list(entries_per_part: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plurality, "ENTRIES_PER_PART", entries_per_part)
    generator = np.random.default_rng(5)
    doubts = generator.random((60, 5)) ** 8
    doubts[10:20] = doubts[30:40]
    counts = generator.multinomial(5, np.full(5, 0.2), size=40).T
    expected = reference_order(resampled_doubts(doubts, counts), window)
    assert plurality_order(doubts, counts, window, threads=3).tolist() == expected


def test_large_bins_are_sorted_by_their_digits() -> None:
    generator = np.random.default_rng(0)
    doubts = 1 + generator.random((300, 20)) * 1e-3
    assert plurality_order(doubts, np.eye(20)).tolist() == reference_order(doubts.astype(np.float32), 20)


def test_parts_cover_every_bin_once_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plurality, "ENTRIES_PER_PART", 10)
    in_bin = np.array([0, 4, 5, 0, 0, 30, 1, 0, 9, 1, 0])
    parts = list(plurality._parts(in_bin))
    assert sum(in_bin[low:high].sum() for low, high in parts) == in_bin.sum()
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(parts))
    assert all(in_bin[low:high].sum() <= 10 or high - low == 1 for low, high in parts)


def test_equal_images_keep_their_order() -> None:
    assert plurality_order(np.zeros((5, 3)), np.ones((3, 7))).tolist() == [0, 1, 2, 3, 4]


def test_one_image_and_one_resampling() -> None:
    assert plurality_order(np.array([[0.5, 0.2]]), np.ones((2, 10))).tolist() == [0]
    assert plurality_order(np.array([[3.0], [1.0], [2.0]]), np.ones((1, 1))).tolist() == [1, 2, 0]


def test_no_image() -> None:
    assert plurality_order(np.empty((0, 2)), np.ones((2, 3))).tolist() == []


def test_doubts_far_below_float32_resolution_of_one_are_told_apart() -> None:
    doubts = np.array([[3e-30], [1e-30], [2e-30]])
    assert plurality_order(doubts, np.ones((1, 4))).tolist() == [1, 2, 0]


def test_scores_are_evenly_spaced_from_one_to_zero() -> None:
    np.testing.assert_allclose(ranks_to_scores(np.array([2, 0, 1])), [0.5, 0.0, 1.0])
    assert ranks_to_scores(np.array([0])).tolist() == [1.0]


@pytest.mark.parametrize(
    ("doubts", "counts", "window", "says"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), None, "do not fit"),
        (np.ones(3), np.ones((3, 1)), None, "do not fit"),
        (np.ones((2, 3)), np.ones((3, 0)), None, "do not fit"),
        (np.full((2, 3), np.nan), np.ones((3, 1)), None, "NaN"),
        (-np.ones((2, 3)), np.ones((3, 1)), None, "negative"),
        (np.full((2, 3), np.inf), np.ones((3, 1)), None, "infinite"),
        (np.ones((2, 3)), np.ones((3, 1)), 0, "at least 1"),
    ],
)
def test_bad_input_is_named(doubts: Array, counts: Array, window: int | None, says: str) -> None:
    with pytest.raises(ConfidenceError, match=says):
        plurality_order(doubts, counts, window)
