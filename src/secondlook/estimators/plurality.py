"""The sliding-window plurality ranking: from resampled outputs to the images in order of confidence.

The other-class mass of all N images in all B resamplings is sorted into one list of N x B entries, smallest first. The
image with most entries among the first W gets the next rank, and all its entries are removed. Images with equally many
entries are ranked by their first entry; equal values are sorted by the position of the image.

The list is never in memory as a whole. Each value is a sum over few views, so computing it twice is cheaper than
storing it: a first pass counts the entries in each bin of float32 values, then one segment of the list after the other
is computed, sorted and passed through the window.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.errors import ConfidenceError
from secondlook.threads import count_threads

Map = Callable[..., Iterable[Any]]
"""The built-in `map`, or that of a thread pool."""

SortRange = Callable[[int, int, BoolArray], Iterable[Array]]
"""Returns the sorted entries of bins low..high-1 by segments, uint64 [n] each, without those of ranked images."""

_NUMBER_BITS = np.uint64(0xFFFFFFFF)
_ROUNDING = 1e-6
"""More than what sums over views lose by rounding."""

ENTRIES_PER_SEGMENT = 1 << 25
"""Entries in memory at a time, 8 bytes each; a bin is never split, so one bin of equal values may be larger."""


def plurality_order(
    other_mass: Float64Array, counts: Array, window: int | None = None, *, threads: int | None = None
) -> IntArray:
    """Return the images in order, the most confident first. [N, V] >= 0, counts [V, B] -> int64 [N]

    The value of image n in resampling b is the float32 of sum_v other_mass[n, v] * counts[v, b], summed in float64.
    `window` is W, by default B. The result does not depend on the number of threads.
    """
    other_mass, counts = _check_arrays(other_mass, counts)
    window = check_window(window, counts)
    if len(other_mass) == 0:
        return np.empty(0, dtype=np.int64)
    ranking = WindowRanking(len(other_mass), window)
    for entries in _iter_sorted_segments(other_mass, counts, threads or count_threads()):
        ranking.add(entries)
    return ranking.finish()


def plurality_confidence(other_mass: Float64Array, counts: Array, window: int | None = None) -> Float64Array:
    """Return the rank of each image as a confidence: 1 for the first in order, 0 for the last. float64 [N]"""
    return spread_confidences(plurality_order(other_mass, counts, window), *_find_equal_images(other_mass))


def check_window(window: int | None, counts: Array) -> int:
    """Return the number of entries in the window, by default that of the resamplings. counts [V, B]"""
    window = counts.shape[1] if window is None else window
    if window < 1:
        raise ConfidenceError(f"window is {window}; expected the number of entries in the window, at least 1.")
    return window


class WindowRanking:
    """Ranks images while the sorted list of their entries passes through the window, segment by segment.

    An entry is a uint64: the bits of the float32 value above those of the number of the image. Numbers are below
    `n_numbers`, by default the number of images. It takes about 32 bytes per image.
    """

    def __init__(self, n_images: int, window: int, n_numbers: int | None = None) -> None:
        from secondlook.estimators.kernels import create_window

        self._state = create_window(n_images, window, n_numbers)

    @property
    def is_ranked(self) -> BoolArray:
        """Whether further entries of each image do not matter. bool [numbers of images]"""
        from secondlook.estimators.kernels import find_ranked

        return find_ranked(self._state)

    def add(self, entries: Array) -> None:
        """Add the next segment of the list, uint64 [n]; entries of ranked images may be missing."""
        from secondlook.estimators.kernels import slide_window

        slide_window(self._state, entries)

    def finish(self) -> IntArray:
        """Return the images in order, after the last segment. int64 [N]"""
        from secondlook.estimators.kernels import rank_remaining

        rank_remaining(self._state)
        return self._state.order


def rank_by_ranges(ranking: WindowRanking, bin_sizes: IntArray, entries_per_range: int, sort: SortRange) -> IntArray:
    """Return the images in order, from entries that are computed and sorted range by range of their values. int64 [N]

    `bin_sizes` is the sum of `count_bin_sizes` over all images. A range has at most `entries_per_range` entries, or is
    a single bin; entries of images that are ranked when it begins are left out.
    """
    for low, high in _split_bins(bin_sizes, entries_per_range):
        for entries in sort(low, high, ranking.is_ranked):
            ranking.add(entries)
    return ranking.finish()


def count_bin_sizes(other_mass: Float64Array, counts: Array) -> IntArray:
    """Return the number of values of some images in each bin. [n, V], [V, B] -> int64 [bins]"""
    return _count_bins(*_check_arrays(other_mass, counts))[0]


def make_entries(
    other_mass: Float64Array, counts: Array, numbers: IntArray, low: int, high: int, is_ranked: BoolArray
) -> Array:
    """Return the entries of some images in bins low..high-1, in no order. [n, V], [V, B], [n], bool [n] -> uint64 [m]

    Images that are ranked already have none.
    """
    from secondlook.estimators.kernels import scatter_entries

    kept = np.flatnonzero(~is_ranked & _may_have_values(other_mass, counts, low, high))
    other_mass, counts = _check_arrays(other_mass[kept], counts)
    bin_sizes, first_bin, last_bin = _count_bins(other_mass, counts)
    ends = np.cumsum(bin_sizes[low:high])
    entries = np.empty(ends[-1], dtype=np.uint64)
    scatter_entries(other_mass, counts, 0, first_bin, last_bin, low, high, ends - bin_sizes[low:high], entries)
    places = (entries & _NUMBER_BITS).astype(np.int64)
    return (entries & ~_NUMBER_BITS) | numbers[kept][places].astype(np.uint64)


def _count_bins(other_mass: Float64Array, counts: Float64Array) -> tuple[IntArray, IntArray, IntArray]:
    """Return the number of values in each bin, int64 [bins], and the first and the last bin of each image, [n]."""
    from secondlook.estimators.kernels import N_BINS, count_bins

    bin_sizes = np.zeros(N_BINS, dtype=np.int64)
    first_bin, last_bin = np.empty((2, len(other_mass)), dtype=np.int64)
    count_bins(other_mass, counts, bin_sizes, first_bin, last_bin)
    return bin_sizes, first_bin, last_bin


def _may_have_values(other_mass: Float64Array, counts: Array, low: int, high: int) -> BoolArray:
    """Return which images can have values in bins low..high-1: a value lies between those of equal views. bool [n]"""
    from secondlook.estimators.kernels import LOW_BITS

    draws = counts.sum(axis=0)
    smallest, largest = other_mass.min(axis=1) * draws.min(), other_mass.max(axis=1) * draws.max()
    first, last = (
        # Not negative zero, whose bits are above those of all other values.
        np.asarray(bound + 0.0, dtype=np.float32).view(np.uint32) >> LOW_BITS
        for bound in (smallest * (1 - _ROUNDING), largest * (1 + _ROUNDING))
    )
    return (first < high) & (last >= low)


def spread_confidences(order: IntArray, candidates: IntArray, group: IntArray) -> Float64Array:
    """Return confidences from 1 for the first in order to 0 for the last, averaged over groups of images. float64 [N]

    `candidates` are the positions of the images that are in a group, and `group` numbers it. int64 [N], [n], [n]
    """
    confidences = _space_evenly(order)
    if len(candidates):
        averaged = np.bincount(group, weights=confidences[candidates]) / np.bincount(group)
        confidences[candidates] = averaged[group]
    return confidences


def _space_evenly(order: IntArray) -> Float64Array:
    """Return confidences evenly spaced from 1 (first in order) to 0 (last); 1 for a single image. int64 [N] -> [N]"""
    confidences = np.empty(len(order))
    confidences[order] = np.linspace(1.0, 0.0, len(order))
    return confidences


def _find_equal_images(other_mass: Float64Array) -> tuple[IntArray, IntArray]:
    """Return the positions of images that may equal others in every view, and a group for each. int64 [n] each

    The ranking leaves equal images in their original order, on which the confidence must not depend.
    """
    _, first_view = np.unique(other_mass[:, 0], return_inverse=True)
    candidates = np.flatnonzero(np.bincount(first_view)[first_view] > 1)  # mostly none, and then nothing is sorted
    if len(candidates) == 0:
        return candidates, candidates
    _, group = np.unique(other_mass[candidates], axis=0, return_inverse=True)
    return candidates, group.reshape(-1)


class Shard:
    """The images of one thread, and the bins of their values."""

    def __init__(self, first_image: int, other_mass: Float64Array) -> None:
        from secondlook.estimators.kernels import N_BINS

        self.first_image = first_image
        self.other_mass = other_mass
        self.bin_sizes = np.zeros(N_BINS, dtype=np.int64)
        self.first_bin = np.empty(len(other_mass), dtype=np.int64)
        self.last_bin = np.empty(len(other_mass), dtype=np.int64)

    def count(self, counts: Float64Array) -> None:
        """Count the values in each bin."""
        from secondlook.estimators.kernels import count_bins

        count_bins(self.other_mass, counts, self.bin_sizes, self.first_bin, self.last_bin)

    def scatter(self, counts: Float64Array, low: int, next_free: IntArray, entries: Array) -> None:
        """Write the entries of bins low, low + 1, ... to their places."""
        from secondlook.estimators.kernels import scatter_entries

        bins = (self.first_bin, self.last_bin, low, low + len(next_free))
        scatter_entries(self.other_mass, counts, self.first_image, *bins, next_free, entries)


def _iter_sorted_segments(other_mass: Float64Array, counts: Float64Array, threads: int) -> Iterator[Array]:
    """Yield the sorted list by segments: uint64 [n], the bits of the float32 value above those of the image.

    All segments share one buffer.
    """
    shards = [Shard(start, other_mass[start:stop]) for start, stop in _split_images(len(other_mass), threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda shard: shard.count(counts), shards))
        bin_sizes = np.array([shard.bin_sizes for shard in shards])
        segments = list(_split_bins(bin_sizes.sum(axis=0), ENTRIES_PER_SEGMENT))
        # Allocating new pages for each segment would take as long as sorting it.
        buffer = np.empty(max(bin_sizes[:, low:high].sum() for low, high in segments), dtype=np.uint64)
        for low, high in segments:
            yield _sort_segment(shards, counts, bin_sizes[:, low:high], low, buffer, pool.map)


def _sort_segment(
    shards: list[Shard], counts: Float64Array, bin_sizes: IntArray, low: int, buffer: Array, run: Map
) -> Array:
    """Compute and sort the entries of bins low, low + 1, ... bin_sizes [shards, bins] -> uint64 [n]"""
    from secondlook.estimators.kernels import sort_bins

    starts = np.concatenate([[0], np.cumsum(bin_sizes.sum(axis=0))])
    entries: Array = buffer[: starts[-1]]
    # In each bin the shards write one after the other, so that equal values are in the order of the images.
    next_free = starts[:-1] + np.cumsum(bin_sizes, axis=0) - bin_sizes
    list(run(lambda shard, places: shard.scatter(counts, low, places, entries), shards, next_free))
    list(run(lambda bins: sort_bins(entries, bins), _balance_bins(starts, len(shards))))
    return entries


def _balance_bins(starts: IntArray, threads: int) -> list[IntArray]:
    """Divide the bins among threads, with about equally many entries each. int64 [bins + 1] -> starts for each"""
    cuts = np.searchsorted(starts, np.linspace(0, starts[-1], threads + 1)[1:-1])
    edges = np.unique([0, *cuts, len(starts) - 1])
    return [starts[a : b + 1] for a, b in itertools.pairwise(edges)]


def _split_bins(bin_sizes: IntArray, most: int) -> Iterator[tuple[int, int]]:
    """Yield (low, high) so that bins low..high-1 hold at most so many entries, or are a single bin."""
    cumulative = np.cumsum(bin_sizes)
    low, done = 0, 0
    while done < cumulative[-1]:
        high = max(int(np.searchsorted(cumulative, done + most, side="right")), low + 1)
        if cumulative[high - 1] > done:
            yield low, high
        low, done = high, int(cumulative[high - 1])


def _split_images(n_images: int, threads: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(np.unique(np.linspace(0, n_images, threads + 1).astype(int)).tolist())


def _check_arrays(other_mass: Array, counts: Array) -> tuple[Float64Array, Float64Array]:
    other_mass = np.ascontiguousarray(other_mass, dtype=np.float64)
    counts = np.ascontiguousarray(counts, dtype=np.float64)
    if other_mass.ndim != 2 or counts.ndim != 2 or other_mass.shape[1] != counts.shape[0] or counts.size == 0:
        raise ConfidenceError(
            f"other_mass has shape {list(other_mass.shape)} and counts {list(counts.shape)}; "
            "expected [images, views] and [views, resamplings]."
        )
    if not (np.all(other_mass >= 0) and np.all(counts >= 0) and np.isfinite(other_mass.sum() + counts.sum())):
        raise ConfidenceError("other_mass or counts holds NaN, infinite or negative values; expected values >= 0.")
    return other_mass, counts
