"""The bootstrap over views: a confidence interval for each image, and the ranking BS(D) by sliding-window plurality.

The list of all bootstrapped values is never stored or sorted as a whole. It is processed in stages, each up to the
first entry of a later image. Once an image is ranked, its other entries are skipped, and at most W images have entries
in the window. A stage therefore computes and sorts only the entries of about W images, see
docs/background/design-notes.md.
"""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from secondlook.arrays import Array, Float64Array, IntArray, is_number, is_whole_number
from secondlook.errors import ConfidenceError
from secondlook.estimators.methods import CompiledMethod, compile_for, compile_method, method
from secondlook.estimators.probability_mass import other_class_mass
from secondlook.predictions import PredictFrom, Predictions

MIN_RESAMPLES, MAX_RESAMPLES = 100, 1000
RESAMPLED_FRACTION = 0.001
"""The paper draws this fraction of all distinct resamples, within the bounds above."""

BLOCK_BYTES = 16 * 2**20
"""Approximate size of a block of bootstrapped confidences."""
ROWS_IN_CACHE = 32
MIN_IMAGES_PER_STAGE = 256
"""Smallest number of images that enter the ranking in one stage."""
PRODUCT_SIZE = 2**18
"""Largest number of multiplications in a matrix product; BLAS computes larger products in threads, which is slower."""
_IMAGE_BITS = np.uint64(2**32 - 1)


@method(
    "bootstrap",
    symbol="BS(D)",
    summary="rank by bootstrapping the views and sliding-window plurality, evenly spaced from 1 to 0",
    words="rank over resampled views",
    needs=("two views",),
    is_rank=True,
)
def bootstrap(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    resamples: int | None = None,
    window: int | None = None,
    seed: int = 0,
) -> Float64Array:
    """Return the rank of each image among these images: 1 for the most confident, 0 for the least. [N]

    `resamples` is N_BS (by default the rule of the paper), `window` is W_BS (by default N_BS). Images are sorted by the
    mass of the other classes, which is 1 - MSR(D) without rounding errors near 1. Images with equal outputs share the
    mean of their ranks.
    """
    counts = _draw_counts(preds.n_members, preds.n_views, resamples, seed)
    return plurality_confidence(other_class_mass(preds, predict_from, top_k), counts, window)


def confidence_interval(
    preds: Predictions,
    level: float = 0.95,
    method: str | None = None,
    *,
    seed: int = 0,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    resamples: int | None = None,
    **options: object,
) -> tuple[Float64Array, Float64Array]:
    """Return the lower and upper ends of a bootstrap interval of the confidence of each image, float64 [N] each.

    The ends are percentiles of the confidences bootstrapped over the views: a fraction `level` of the resamples lies
    between them, the rest equally below and above. The confidence is `method` with its `options`, by default
    `default_method(preds)`, if it is a function of means over the views (`METHODS[name].is_mean_over_views`), otherwise
    MSR(D).
    """
    if not is_number(level) or not 0 < level < 1:
        expected = "is invalid; expected a confidence level between 0 and 1, such as 0.95"
        raise ConfidenceError(expected, argument="level", value=level)
    compiled = compile_for(preds, method, options, predict_from, top_k)
    if not compiled.method.is_mean_over_views:
        compiled = compile_method("mean", predict_from=predict_from, top_k=top_k)
    ends = np.empty((2, preds.n_images))
    for rows, block in bootstrap_confidences(preds, compiled, resamples, seed):
        ends[:, rows] = np.quantile(block, ((1 - level) / 2, (1 + level) / 2), axis=1, overwrite_input=True)
    return ends[0], ends[1]


def bootstrap_confidences(
    preds: Predictions, compiled: CompiledMethod, resamples: int | None = None, seed: int = 0
) -> Iterator[tuple[slice, Float64Array]]:
    """Yield blocks of images, as slices, and their confidences bootstrapped over the views, float64 [n, N_BS]."""
    counts: Float64Array | None = None
    for first, values, combine in compiled.iter_view_means(preds):
        n_statistics, n_images, n_members, n_views = values.shape
        if counts is None:  # options of the method may average the members or select views
            counts = _draw_counts(n_members, n_views, resamples, seed).astype(np.float64)
        step = max(1, BLOCK_BYTES // (8 * n_statistics * counts.shape[1]))
        for start in range(0, n_images, step):
            part = values[:, start : start + step].reshape(-1, n_members * n_views)
            means = add_views(part, counts)
            means /= len(counts)
            stop = min(start + step, n_images)
            confidences = combine(means.reshape(n_statistics, stop - start, counts.shape[1]))
            yield slice(first.start + start, first.start + stop), confidences


def add_views(values: Float64Array, counts: Float64Array) -> Float64Array:
    """Return values [n, V] @ counts [V, B]. float64 [n, B]

    The views are added one by one, so sums do not depend on blocks, threads or the BLAS library: images with equal
    values have bitwise equal sums.
    """
    sums = np.zeros((len(values), counts.shape[1]))
    for start in range(0, len(values), ROWS_IN_CACHE):
        block = sums[start : start + ROWS_IN_CACHE]
        products = np.empty_like(block)
        for view, draws in enumerate(counts):
            block += np.multiply(values[start : start + ROWS_IN_CACHE, view, None], draws, out=products)
    return sums


def default_resamples(n_views: int, n_members: int = 1) -> int:
    """Return N_BS = min(1000, max(100, 0.001 g)) of the paper, both bounds times the number of ensemble members.

    g = (2n - 1)! / (n! (n - 1)!) is the number of distinct resamples of n = members * views outputs.
    """
    n_outputs = n_members * n_views
    distinct = math.comb(2 * n_outputs - 1, n_outputs)
    # Compare before multiplying: g of many views is too large for a float.
    if distinct >= n_members * MAX_RESAMPLES / RESAMPLED_FRACTION:
        return n_members * MAX_RESAMPLES
    return max(n_members * MIN_RESAMPLES, int(RESAMPLED_FRACTION * distinct))


def view_resampling_counts(n_outputs: int, resamples: int, seed: int) -> IntArray:
    """Return the counts of outputs in resamples, int64 [n_outputs, resamples]; columns sum to n_outputs."""
    generator = np.random.default_rng(_check_seed(seed))
    return generator.multinomial(n_outputs, np.full(n_outputs, 1 / n_outputs), size=resamples).T


def _draw_counts(n_members: int, n_views: int, resamples: int | None, seed: int) -> IntArray:
    if n_members * n_views < 2:
        raise ConfidenceError("the bootstrap needs at least two views, got one; collect with more views.")
    if resamples is None:
        return _draw_default_counts(n_views, n_members, _check_seed(seed))
    if resamples < 1:
        expected = "is invalid; expected an integer of at least 1, or None for the rule of the paper"
        raise ConfidenceError(expected, argument="resamples", value=resamples)
    return view_resampling_counts(n_members * n_views, int(resamples), seed)


@lru_cache(maxsize=32)
def _draw_default_counts(n_views: int, n_members: int, seed: int) -> IntArray:
    """Return cached counts: drawing them takes longer than using them for a single image."""
    counts = view_resampling_counts(n_members * n_views, default_resamples(n_views, n_members), seed)
    counts.setflags(write=False)
    return counts


def _check_seed(seed: int) -> int:
    if not is_whole_number(seed) or seed < 0:
        raise ConfidenceError("is invalid; expected an integer of at least 0", argument="seed", value=seed)
    return int(seed)


def plurality_order(other_mass: Float64Array, counts: Array, window: int | None = None) -> IntArray:
    """Return the images, most confident first. [N, V] >= 0, counts [V, B] -> int64 [N]

    The value of image n in resample b is the float32 of sum_v other_mass[n, v] * counts[v, b], summed in float64.
    `window` is W, by default B.
    """
    other_mass, counts = _check_arrays(other_mass, counts)
    n_images, length = len(other_mass), counts.shape[1] if window is None else window
    if length < 1:
        expected = "is invalid; expected the number of entries in the window, at least 1"
        raise ConfidenceError(expected, argument="window", value=length)
    if n_images == 0:
        return np.empty(0, dtype=np.int64)
    first_entries = np.empty(n_images, dtype=np.uint64)
    for block, entries in _iter_entries(other_mass, np.arange(n_images), counts):
        first_entries[block] = entries.min(axis=1)
    by_first_entry = np.argsort(first_entries)
    step = max(MIN_IMAGES_PER_STAGE, length // 2)
    edges = [np.uint64(0), *first_entries[by_first_entry[step::step]], np.uint64(2**64 - 1)]
    images, n_entries = by_first_entry[:0], np.zeros(0, dtype=np.int64)
    place_of, order = np.empty(n_images, dtype=np.int64), []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        new = by_first_entry[number * step : (number + 1) * step]
        images, n_entries = np.concatenate([images, new]), np.append(n_entries, np.zeros_like(new))
        place_of[images] = np.arange(len(images))
        blocks = (entries for _, entries in _iter_entries(other_mass, images, counts))
        entries = np.sort(np.concatenate([block[(block >= low) & (block < high)] for block in blocks]))
        ranked = _slide_window(place_of[(entries & _IMAGE_BITS).astype(np.int64)], n_entries, length)
        order.append(images[ranked])
        images, n_entries = np.delete(images, ranked), np.delete(n_entries, ranked)
    order.append(images[np.argsort(-n_entries, kind="stable")])
    return np.concatenate(order)


def _slide_window(places: IntArray, n_entries: IntArray, length: int) -> list[int]:
    """Add sorted entries to the window, rank an image whenever it is full, and return the places of the ranked images.

    An entry is the place of its image, int64 [n]; places are in the order of first entries. An entry only leaves the
    window with all other entries of its image, so the number of entries per image, int64 [images], is the whole state.
    It is updated here.
    """
    is_ranked = np.zeros(len(n_entries), dtype=np.bool_)
    n_missing, position, ranked = length - int(n_entries.sum()), 0, []
    while position < len(places):
        ahead = places[position : position + 8 * n_missing + 64]
        added = np.flatnonzero(~is_ranked[ahead])[:n_missing]
        np.add.at(n_entries, ahead[added], 1)
        if len(added) < n_missing:
            n_missing -= len(added)
            position += len(ahead)
            continue
        position += int(added[-1]) + 1
        best = int(n_entries.argmax())
        n_missing = int(n_entries[best])
        n_entries[best] = 0
        is_ranked[best] = True
        ranked.append(best)
    return ranked


def _iter_entries(other_mass: Float64Array, images: IntArray, counts: Float64Array) -> Iterator[tuple[IntArray, Array]]:
    """Yield blocks of images and their entries: float32 bits, then those of the image. uint64 [n, B]"""
    rows = max(1, PRODUCT_SIZE // counts.size)
    error = 4 * len(counts) * np.finfo(np.float64).eps
    for start in range(0, len(images), rows):
        block = images[start : start + rows]
        mass = other_mass[block]
        sums = mass @ counts
        values = (sums * (1 - error)).astype(np.float32)
        # A matrix product is fast, but adds in another order; if that could change the float32, add again.
        row, draw = np.nonzero(values != (sums * (1 + error)).astype(np.float32))
        if len(row):
            values[row, draw] = np.cumsum(mass[row].T * counts[:, draw], axis=0)[-1]
        yield block, values.view(np.uint32).astype(np.uint64) << np.uint64(32) | block.astype(np.uint64)[:, None]


def plurality_confidence(other_mass: Float64Array, counts: Array, window: int | None = None) -> Float64Array:
    """Return the rank of each image as a confidence: 1 for the first in order, 0 for the last. float64 [N]

    The ranking keeps images that are equal in every view in their original order. The confidence must not depend on
    this order, so they share the mean of their ranks.
    """
    order = plurality_order(other_mass, counts, window)
    confidences = np.empty(len(order))
    confidences[order] = np.linspace(1.0, 0.0, len(order))
    _, first_view = np.unique(other_mass[:, 0], return_inverse=True)
    candidates = np.flatnonzero(np.bincount(first_view)[first_view] > 1)  # usually empty, which saves sorting
    if len(candidates):
        group = np.unique(other_mass[candidates], axis=0, return_inverse=True)[1].reshape(-1)
        averaged = np.bincount(group, weights=confidences[candidates]) / np.bincount(group)
        confidences[candidates] = averaged[group]
    return confidences


def _check_arrays(other_mass: Array, counts: Array) -> tuple[Float64Array, Float64Array]:
    other_mass = np.ascontiguousarray(other_mass, dtype=np.float64)
    counts = np.ascontiguousarray(counts, dtype=np.float64)
    if other_mass.ndim != 2 or counts.ndim != 2 or other_mass.shape[1] != counts.shape[0] or counts.size == 0:
        shapes = f"other_mass has shape {list(other_mass.shape)} and counts {list(counts.shape)}"
        raise ConfidenceError(f"{shapes}; expected [images, views] and [views, resamples].")
    if not (np.all(other_mass >= 0) and np.all(counts >= 0) and np.isfinite(other_mass.sum() + counts.sum())):
        raise ConfidenceError("other_mass or counts holds NaN, infinite or negative values; expected values >= 0.")
    return other_mass, counts
