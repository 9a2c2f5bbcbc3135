"""The sliding-window plurality ranking: from resampled doubts to the images in order, the surest first.

All N x B resampled doubts are sorted into one list, the smallest first, each standing for its image. The image with
most entries among the first W gets the next rank, and all its entries leave the list. Images with equally many
entries are ranked in the order in which they first stand in the list; equal doubts stand in the order of the images.

The list is never held whole. Doubts are sums over few views, so computing them twice costs less than keeping them: a
first pass counts how many fall into each bin of float32 values, then one part of the list after the other is
computed, sorted and led through the window.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.errors import ConfidenceError

Run = Callable[..., Iterable[Any]]
"""How a function is run over several arguments: `map`, or that of a thread pool."""

ENTRIES_PER_PART = 1 << 25
"""Entries of the list held at a time, 8 bytes each (a bin is never split, so a bin of equal doubts may be larger)."""


def plurality_order(
    doubts: Float64Array, counts: Array, window: int | None = None, *, threads: int | None = None
) -> IntArray:
    """Return the images in order, the surest first. doubts [N, V] >= 0, counts [V, B], window (B) -> int64 [N]

    The resampled doubt of image n in resampling b is the float32 of sum_v doubts[n, v] * counts[v, b], added up in
    float64. The result does not depend on the number of threads.
    """
    from secondlook.estimators.window_kernels import open_window, rank_the_rest, slide

    doubts, counts = _checked(doubts, counts)
    window = counts.shape[1] if window is None else window
    if window < 1:
        raise ConfidenceError(f"the window of the ranking is {window} entries long; give window= of at least 1")
    if len(doubts) == 0:
        return np.empty(0, dtype=np.int64)
    state = open_window(len(doubts), window)
    for entries in sorted_entries(doubts, counts, threads or available_cores()):
        slide(state, entries)
    rank_the_rest(state)
    return state.order


def plurality_scores(doubts: Float64Array, counts: Array, window: int | None = None) -> Float64Array:
    """Return the place of each image in that order as a score: 1 for the surest, 0 for the last. float64 [N]"""
    return mean_over_equals(ranks_to_scores(plurality_order(doubts, counts, window)), doubts)


def ranks_to_scores(order: IntArray) -> Float64Array:
    """Return scores evenly spaced from 1 (first in order) to 0 (last). int64 [N] -> float64 [N]; one image gets 1"""
    scores = np.empty(len(order))
    scores[order] = np.linspace(1.0, 0.0, len(order))
    return scores


def mean_over_equals(scores: Float64Array, doubts: Float64Array) -> Float64Array:
    """Return the scores [N], with one mean for all images whose doubts [N, V] are equal in every view.

    The ranking puts such images in the order in which they happen to stand; their score must not depend on it.
    """
    _, first_view = np.unique(doubts[:, 0], return_inverse=True)
    candidates = np.flatnonzero(np.bincount(first_view)[first_view] > 1)  # mostly none, and then nothing is sorted
    if len(candidates) == 0:
        return scores
    _, group = np.unique(doubts[candidates], axis=0, return_inverse=True)
    group = group.reshape(-1)
    shared = scores.copy()
    shared[candidates] = (np.bincount(group, weights=scores[candidates]) / np.bincount(group))[group]
    return shared


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sorted_entries(doubts: Float64Array, counts: Float64Array, threads: int) -> Iterator[Array]:
    """Yield the sorted list part by part: uint64 [n], the bits of the float32 doubt above those of the image.

    Each part lies where the one before it lay.
    """
    shards = [Shard(start, doubts[start:stop]) for start, stop in _cuts(len(doubts), threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda shard: shard.count(counts), shards))
        in_bin = np.array([shard.in_bin for shard in shards])
        parts = list(_parts(in_bin.sum(axis=0)))
        # One piece of memory serves all parts: fresh pages for each would cost as much as the sorting.
        room = np.empty(max(in_bin[:, low:high].sum() for low, high in parts), dtype=np.uint64)
        for low, high in parts:
            yield _sorted_part(shards, counts, in_bin[:, low:high], low, room, pool.map)


class Shard:
    """The images of one thread, and where in the range of values their doubts lie."""

    def __init__(self, first_image: int, doubts: Float64Array) -> None:
        from secondlook.estimators.sorting_kernels import BINS

        self.first_image = first_image
        self.doubts = doubts
        self.in_bin = np.zeros(BINS, dtype=np.int64)
        self.first_bin = np.empty(len(doubts), dtype=np.int64)
        self.last_bin = np.empty(len(doubts), dtype=np.int64)

    def count(self, counts: Float64Array) -> None:
        """Count the doubts in each bin."""
        from secondlook.estimators.sorting_kernels import count_bins

        count_bins(self.doubts, counts, self.in_bin, self.first_bin, self.last_bin)

    def scatter(self, counts: Float64Array, low: int, next_free: IntArray, entries: Array) -> None:
        """Write the entries of bins low, low + 1, ... to their places."""
        from secondlook.estimators.sorting_kernels import scatter_entries

        bins = (self.first_bin, self.last_bin, low, low + len(next_free))
        scatter_entries(self.doubts, counts, self.first_image, *bins, next_free, entries)


def _sorted_part(
    shards: list["Shard"], counts: Float64Array, in_bin: IntArray, low: int, room: Array, run: Run
) -> Array:
    """Compute and sort the entries of bins low, low + 1, ... in_bin [shards, bins] -> uint64 [n]"""
    starts = np.concatenate([[0], np.cumsum(in_bin.sum(axis=0))])
    entries: Array = room[: starts[-1]]
    # In each bin the shards write one after the other, so that equal doubts stand in the order of the images.
    next_free = starts[:-1] + np.cumsum(in_bin, axis=0) - in_bin
    list(run(lambda shard, places: shard.scatter(counts, low, places, entries), shards, next_free))
    list(run(lambda bins: _sort(entries, bins), _equal_shares(starts, len(shards))))
    return entries


def _sort(entries: Array, starts: IntArray) -> None:
    from secondlook.estimators.sorting_kernels import sort_bins

    sort_bins(entries, starts)


def _equal_shares(starts: IntArray, shares: int) -> list[IntArray]:
    """Cut the bins into runs with about equally many entries. int64 [bins + 1] -> boundaries of each run"""
    cuts = np.searchsorted(starts, np.linspace(0, starts[-1], shares + 1)[1:-1])
    edges = np.unique([0, *cuts, len(starts) - 1])
    return [starts[a : b + 1] for a, b in itertools.pairwise(edges)]


def _parts(in_bin: IntArray) -> Iterator[tuple[int, int]]:
    """Yield (low, high) so that bins low..high-1 hold at most ENTRIES_PER_PART entries, or are a single bin."""
    until = np.cumsum(in_bin)
    low, done = 0, 0
    while done < until[-1]:
        high = max(int(np.searchsorted(until, done + ENTRIES_PER_PART, side="right")), low + 1)
        if until[high - 1] > done:
            yield low, high
        low, done = high, int(until[high - 1])


def _cuts(n_images: int, shards: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(np.unique(np.linspace(0, n_images, shards + 1).astype(int)).tolist())


def _checked(doubts: Array, counts: Array) -> tuple[Float64Array, Float64Array]:
    doubts = np.ascontiguousarray(doubts, dtype=np.float64)
    counts = np.ascontiguousarray(counts, dtype=np.float64)
    if doubts.ndim != 2 or counts.ndim != 2 or doubts.shape[1] != counts.shape[0] or counts.size == 0:
        raise ConfidenceError(
            f"doubts {list(doubts.shape)} and counts {list(counts.shape)} do not fit; "
            "expected [images, views] and [views, resamplings]."
        )
    if not (np.all(doubts >= 0) and np.all(counts >= 0) and np.isfinite(doubts.sum() + counts.sum())):
        raise ConfidenceError(
            "the doubts or counts of the ranking hold NaN, infinite or negative values; give values >= 0"
        )
    return doubts, counts
