"""The bootstrap over views: the ranking BS(D), and a confidence interval for each image."""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from secondlook.arrays import Float64Array, IntArray, is_number, is_whole_number
from secondlook.errors import ConfidenceError
from secondlook.estimators.methods import (
    METHODS,
    Method,
    Resampling,
    ViewMeans,
    check_arguments,
    method,
    resolve_method,
)
from secondlook.estimators.plurality import plurality_confidence
from secondlook.estimators.probability_mass import other_class_mass
from secondlook.predictions import PredictFrom, Predictions

MIN_RESAMPLINGS, MAX_RESAMPLINGS = 100, 1000
RESAMPLED_FRACTION = 0.001
"""The paper draws this fraction of all distinct resamplings, within the bounds above."""

BLOCK_BYTES = 16 * 2**20
"""Approximate size of a block of bootstrapped confidences."""


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
    """Return the lower end of `confidence_interval`. [N]"""
    return confidence_interval(
        preds, level, seed=seed, predict_from=predict_from, top_k=top_k, resamplings=resamplings
    )[0]


def confidence_interval(
    preds: Predictions,
    level: float = 0.95,
    method: str = "mean",
    *,
    seed: int = 0,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    resamplings: int | None = None,
    **options: object,
) -> tuple[Float64Array, Float64Array]:
    """Return the lower and upper ends of a bootstrap interval of the confidence of each image, float64 [N] each.

    The ends are percentiles of the confidences bootstrapped over the views: a fraction `level` of the resamplings lies
    between them, the rest equally below and above. They are those of `method` with its `options` where it is a function
    of means over the views (`METHODS[name].is_mean_over_views`), and those of MSR(D) for any other method.
    """
    check_arguments(preds, predict_from, top_k)
    if not is_number(level) or not 0 < level < 1:
        raise ConfidenceError(f"level is {level!r}; expected a confidence level between 0 and 1, such as 0.95.")
    found, merged = _find_resampled_method(method, options)
    ends = np.empty((2, preds.n_images))
    blocks = _iter_view_means(found, preds, predict_from, top_k, merged)
    for rows, block in _iter_confidences(blocks, seed, resamplings, None):
        ends[:, rows] = np.quantile(block, ((1 - level) / 2, (1 + level) / 2), axis=1, overwrite_input=True)
    return ends[0], ends[1]


def bootstrap_confidences(
    preds: Predictions,
    *,
    seed: int = 0,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    resamplings: int | None = None,
    rows: int | None = None,
) -> Iterator[tuple[slice, Float64Array]]:
    """Yield blocks of images, as slices, and their bootstrapped confidences MSR(D), float64 [n, N_BS].

    `rows` is the largest number of images in a block; by default a block takes about 16 MiB.
    """
    check_arguments(preds, predict_from, top_k)
    blocks = _iter_view_means(METHODS["mean"], preds, predict_from, top_k, {})
    return _iter_confidences(blocks, seed, resamplings, rows)


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


def _find_resampled_method(text: str, options: Mapping[str, object]) -> tuple[Method, dict[str, Any]]:
    """Return the method whose values are resampled, with its options."""
    found, _, merged = resolve_method(text, options)
    return (found, merged) if found.is_mean_over_views else (METHODS["mean"], {})


def _iter_view_means(
    found: Method, preds: Predictions, predict_from: PredictFrom, top_k: int, options: Mapping[str, object]
) -> Iterator[ViewMeans]:
    assert found.view_means is not None, "only methods that are functions of means over the views are resampled"
    return found.view_means(preds, predict_from=predict_from, top_k=top_k, **options)


def _iter_confidences(
    blocks: Iterator[ViewMeans], seed: int, resamplings: int | None, rows: int | None
) -> Iterator[tuple[slice, Float64Array]]:
    """Yield blocks of at most `rows` images, and their bootstrapped confidences, float64 [n, N_BS]."""
    from secondlook.estimators.kernels import resample_means

    if rows is not None and rows < 1:
        raise ConfidenceError(f"rows is {rows}; expected the number of images in a block, at least 1.")
    counts: Float64Array | None = None
    for first, values, combine in blocks:
        n_statistics, n_images, n_members, n_views = values.shape
        if counts is None:
            counts = _draw_counts(n_members, n_views, resamplings, seed).astype(np.float64)
        step = rows or max(1, BLOCK_BYTES // (8 * n_statistics * counts.shape[1]))
        for start in range(0, n_images, step):
            part = values[:, start : start + step].reshape(-1, n_members * n_views)
            means = np.empty((len(part), counts.shape[1]))
            resample_means(part, counts, means)
            stop = min(start + step, n_images)
            yield (
                slice(first.start + start, first.start + stop),
                combine(means.reshape(n_statistics, stop - start, counts.shape[1])),
            )


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
