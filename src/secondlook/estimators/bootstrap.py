"""The bootstrap over views: a confidence interval for each image, and the ranking BS(D) by sliding-window plurality.

For the ranking, the other-class mass of all N images in all B resamplings is sorted into one list of N x B entries,
smallest first. The image with most entries among the first W gets the next rank, and all its entries are removed.
Images with equally many entries are ranked by their first entry; equal values are sorted by the position of the image.

The list is never in memory as a whole. Each value is a sum over few views, so computing it twice is cheaper than
storing it: a first pass counts the entries in each bin of float32 values, then one segment of the list after the other
is computed, sorted and passed through the window.
"""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from secondlook.arrays import Array, Float64Array, IntArray, is_number, is_whole_number
from secondlook.errors import ConfidenceError
from secondlook.estimators.methods import CompiledMethod, Resampling, compile_for, compile_method, method
from secondlook.estimators.probability_mass import other_class_mass
from secondlook.predictions import PredictFrom, Predictions
from secondlook.threads import count_threads

MIN_RESAMPLINGS, MAX_RESAMPLINGS = 100, 1000
RESAMPLED_FRACTION = 0.001
"""The paper draws this fraction of all distinct resamplings, within the bounds above."""

BLOCK_BYTES = 16 * 2**20
"""Approximate size of a block of bootstrapped confidences."""
ENTRIES_PER_SEGMENT = 1 << 25
"""Entries of the ranked list in memory at a time, 8 bytes each; a bin is never split, so one bin of equal values may be
larger."""


def resample_outputs(
    n_members: int, n_views: int, *, resamplings: int | None = None, window: int | None = None, seed: int = 0
) -> Resampling:
    """Return how `bootstrap` resamples the outputs of each image."""
    return Resampling(_draw_counts(n_members, n_views, resamplings, seed), window)


@method(
    "bootstrap",
    symbol="BS(D)",
    summary="rank by bootstrapping the views and sliding-window plurality, evenly spaced from 1 to 0",
    needs=("two views",),
    is_rank=True,
    resampling=resample_outputs,
)
def bootstrap(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    resamplings: int | None = None,
    window: int | None = None,
    seed: int = 0,
) -> Float64Array:
    """Return the rank of each image among these images: 1 for the most confident, 0 for the least. [N]

    `resamplings` is N_BS (by default the rule of the paper), `window` is W_BS (by default N_BS). Images are sorted by
    the mass of the other classes, the complement of MSR(D) without its rounding near 1. Images with equal outputs share
    the mean of their ranks.
    """
    sample = resample_outputs(preds.n_members, preds.n_views, resamplings=resamplings, window=window, seed=seed)
    return plurality_confidence(other_class_mass(preds, predict_from, top_k), *sample)


@method(
    "bootstrap-lower",
    symbol="low(D)",
    summary="lower end of the bootstrap interval; needs no other images",
    needs=("two views",),
    is_probability=True,
)
def bootstrap_lower(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    level: float = 0.95,
    resamplings: int | None = None,
    seed: int = 0,
) -> Float64Array:
    """Return the lower end of `confidence_interval` of MSR(D). [N]"""
    return confidence_interval(
        preds, level, "mean", seed=seed, predict_from=predict_from, top_k=top_k, resamplings=resamplings
    )[0]


def confidence_interval(
    preds: Predictions,
    level: float = 0.95,
    method: str | None = None,
    *,
    seed: int = 0,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    resamplings: int | None = None,
    **options: object,
) -> tuple[Float64Array, Float64Array]:
    """Return the lower and upper ends of a bootstrap interval of the confidence of each image, float64 [N] each.

    The ends are percentiles of the confidences bootstrapped over the views: a fraction `level` of the resamplings lies
    between them, the rest equally below and above. They are those of `method`, by default `default_method(preds)`, with
    its `options` where it is a function of means over the views (`METHODS[name].is_mean_over_views`), and those of
    MSR(D) for any other method.
    """
    if not is_number(level) or not 0 < level < 1:
        raise ConfidenceError(
            "is invalid; expected a confidence level between 0 and 1, such as 0.95", argument="level", value=level
        )
    compiled = compile_for(preds, method, options, predict_from, top_k)
    if not compiled.method.is_mean_over_views:
        compiled = compile_method("mean", predict_from=predict_from, top_k=top_k)
    ends = np.empty((2, preds.n_images))
    for rows, block in bootstrap_confidences(preds, compiled, resamplings, seed):
        ends[:, rows] = np.quantile(block, ((1 - level) / 2, (1 + level) / 2), axis=1, overwrite_input=True)
    return ends[0], ends[1]


def bootstrap_confidences(
    preds: Predictions, compiled: CompiledMethod, resamplings: int | None = None, seed: int = 0
) -> Iterator[tuple[slice, Float64Array]]:
    """Yield blocks of images, as slices, and their confidences bootstrapped over the views, float64 [n, N_BS]."""
    from secondlook.estimators.kernels import resample_means

    counts: Float64Array | None = None
    for first, values, combine in compiled.iter_view_means(preds):
        n_statistics, n_images, n_members, n_views = values.shape
        if counts is None:  # options of the method may average the members or select views
            counts = _draw_counts(n_members, n_views, resamplings, seed).astype(np.float64)
        step = max(1, BLOCK_BYTES // (8 * n_statistics * counts.shape[1]))
        for start in range(0, n_images, step):
            part = values[:, start : start + step].reshape(-1, n_members * n_views)
            means = np.empty((len(part), counts.shape[1]))
            resample_means(part, counts, means)
            stop = min(start + step, n_images)
            confidences = combine(means.reshape(n_statistics, stop - start, counts.shape[1]))
            yield slice(first.start + start, first.start + stop), confidences


def default_resamplings(n_views: int, n_members: int = 1) -> int:
    """Return N_BS = min(1000, max(100, 0.001 g)) of the paper, both bounds times the number of ensemble members.

    g = (2n - 1)! / (n! (n - 1)!) is the number of distinct resamplings of n = members * views outputs.
    """
    n_outputs = n_members * n_views
    distinct = math.comb(2 * n_outputs - 1, n_outputs)
    # Compared before it is multiplied: g of many views is too large for a float.
    if distinct >= n_members * MAX_RESAMPLINGS / RESAMPLED_FRACTION:
        return n_members * MAX_RESAMPLINGS
    return max(n_members * MIN_RESAMPLINGS, int(RESAMPLED_FRACTION * distinct))


def view_resampling_counts(n_outputs: int, resamplings: int, seed: int) -> IntArray:
    """Return how often each resampling draws each output, int64 [n_outputs, resamplings]; columns sum to n_outputs."""
    generator = np.random.default_rng(_check_seed(seed))
    return generator.multinomial(n_outputs, np.full(n_outputs, 1 / n_outputs), size=resamplings).T


def _draw_counts(n_members: int, n_views: int, resamplings: int | None, seed: int) -> IntArray:
    if n_members * n_views < 2:
        raise ConfidenceError("the bootstrap needs at least two views, got one; collect with more views.")
    if resamplings is None:
        return _draw_default_counts(n_views, n_members, _check_seed(seed))
    if resamplings < 1:
        raise ConfidenceError(
            f"resamplings is {resamplings!r}; expected an integer of at least 1, or None for the rule of the paper."
        )
    return view_resampling_counts(n_members * n_views, int(resamplings), seed)


@lru_cache(maxsize=32)
def _draw_default_counts(n_views: int, n_members: int, seed: int) -> IntArray:
    """Return the same counts for every image: to draw them takes longer than to use them for a single image."""
    counts = view_resampling_counts(n_members * n_views, default_resamplings(n_views, n_members), seed)
    counts.setflags(write=False)
    return counts


def _check_seed(seed: int) -> int:
    if not is_whole_number(seed) or seed < 0:
        raise ConfidenceError(f"seed is {seed!r}; expected an integer of at least 0.")
    return int(seed)


def plurality_order(
    other_mass: Float64Array, counts: Array, window: int | None = None, *, threads: int | None = None
) -> IntArray:
    """Return the images in order, the most confident first. [N, V] >= 0, counts [V, B] -> int64 [N]

    The value of image n in resampling b is the float32 of sum_v other_mass[n, v] * counts[v, b], summed in float64.
    `window` is W, by default B. The result does not depend on the number of threads.
    """
    from secondlook.estimators.kernels import create_window, rank_remaining, slide_window

    other_mass, counts = _check_arrays(other_mass, counts)
    length = counts.shape[1] if window is None else window
    if length < 1:
        raise ConfidenceError(f"window is {length}; expected the number of entries in the window, at least 1.")
    if len(other_mass) == 0:
        return np.empty(0, dtype=np.int64)
    state = create_window(len(other_mass), length)
    for entries in _iter_sorted_segments(other_mass, counts, threads or count_threads()):
        slide_window(state, entries)
    rank_remaining(state)
    return state.order


def plurality_confidence(other_mass: Float64Array, counts: Array, window: int | None = None) -> Float64Array:
    """Return the rank of each image as a confidence: 1 for the first in order, 0 for the last. float64 [N]

    The ranking leaves images that are equal in every view in their original order, on which the confidence must not
    depend: they share the mean of their ranks.
    """
    order = plurality_order(other_mass, counts, window)
    confidences = np.empty(len(order))
    confidences[order] = np.linspace(1.0, 0.0, len(order))
    _, first_view = np.unique(other_mass[:, 0], return_inverse=True)
    candidates = np.flatnonzero(np.bincount(first_view)[first_view] > 1)  # mostly none, and then nothing is sorted
    if len(candidates):
        group = np.unique(other_mass[candidates], axis=0, return_inverse=True)[1].reshape(-1)
        averaged = np.bincount(group, weights=confidences[candidates]) / np.bincount(group)
        confidences[candidates] = averaged[group]
    return confidences


def _iter_sorted_segments(other_mass: Float64Array, counts: Float64Array, threads: int) -> Iterator[Array]:
    """Yield the sorted list by segments: uint64 [n], the bits of the float32 value above those of the image.

    Each thread computes the entries of its shard of the images. All segments share one buffer.
    """
    from secondlook.estimators.kernels import N_BINS, count_bins, scatter_entries, sort_bins

    edges = np.unique(np.linspace(0, len(other_mass), threads + 1).astype(int)).tolist()
    shards = [slice(*pair) for pair in itertools.pairwise(edges)]
    bin_sizes = np.zeros((len(shards), N_BINS), dtype=np.int64)
    first_bin, last_bin = np.empty((2, len(other_mass)), dtype=np.int64)

    def count(rows: slice, sizes: IntArray) -> None:
        count_bins(other_mass[rows], counts, sizes, first_bin[rows], last_bin[rows])

    def scatter(rows: slice, next_free: IntArray) -> None:
        bins = first_bin[rows], last_bin[rows], low, high
        scatter_entries(other_mass[rows], counts, rows.start, *bins, next_free, entries)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, shards, bin_sizes))
        segments = list(_split_bins(bin_sizes.sum(axis=0), ENTRIES_PER_SEGMENT))
        # Allocating new pages for each segment would take as long as sorting it.
        buffer = np.empty(max(bin_sizes[:, low:high].sum() for low, high in segments), dtype=np.uint64)
        for low, high in segments:
            sizes = bin_sizes[:, low:high]
            starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))])
            entries = buffer[: starts[-1]]
            # In each bin the shards write one after the other, so that equal values are in the order of the images.
            list(pool.map(scatter, shards, starts[:-1] + np.cumsum(sizes, axis=0) - sizes))
            list(pool.map(sort_bins, itertools.repeat(entries), _balance_bins(starts, len(shards))))
            yield entries


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
