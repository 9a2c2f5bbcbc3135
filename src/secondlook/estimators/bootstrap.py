"""The bootstrap over views: the ranking BS(D), and an interval around each image's confidence."""

from collections.abc import Iterator

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import ConfidenceError
from secondlook.estimators.plurality import plurality_scores
from secondlook.estimators.registry import method
from secondlook.estimators.resampling import checked_resamplings, view_resampling_counts
from secondlook.estimators.shares import other_class_mass, shares_of_views
from secondlook.predictions import PredictFrom, Predictions

BLOCK_BYTES = 16 * 2**20
"""About how much of the matrix of resampled confidences is held at once."""


@method(
    "bootstrap",
    symbol="BS(D)",
    summary="rank by bootstrapping the views and sliding-window plurality, spaced from 1 to 0",
    needs=("two views",),
    is_rank=True,
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
    """Return each image's place in the ranking among these images: 1 for the surest, 0 for the last. [N]

    `resamplings` is N_BS (the paper's rule by default), `window` is W_BS (N_BS by default). What is sorted is the
    doubt, the sum over all other classes: the complement of MSR(D) with all its digits where MSR(D) is near 1. Images
    that nothing tells apart share the mean of their places.
    """
    counts, doubts = _counts(preds, resamplings, seed), other_class_mass(preds, predict_from, top_k)
    return plurality_scores(doubts, counts, window)


@method(
    "bootstrap-lower",
    symbol="low(D)",
    summary="lower end of the bootstrap interval; also works for one image alone",
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
    """Return the lower end of `interval`. [N]"""
    return _interval(preds, level, seed, predict_from, top_k, resamplings)[0]


def confidence_interval(
    preds: Predictions,
    level: float = 0.95,
    *,
    seed: int = 0,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    resamplings: int | None = None,
) -> tuple[Float64Array, Float64Array]:
    """Return the lower and upper end of each image's confidence MSR(D), float64 [N] each.

    Percentiles of the bootstrapped confidences: of all resamplings `level` lie within, and as many below as above.
    """
    from secondlook.estimators.named_confidence import check_question

    check_question(preds, predict_from, top_k)
    return _interval(preds, level, seed, predict_from, top_k, resamplings)


def bootstrap_confidences(
    preds: Predictions,
    *,
    seed: int = 0,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    resamplings: int | None = None,
    rows: int | None = None,
) -> Iterator[tuple[slice, Float64Array]]:
    """Yield the bootstrapped confidences piece by piece: the images as a slice, and float64 [n, N_BS] for them."""
    from secondlook.estimators.named_confidence import check_question

    check_question(preds, predict_from, top_k)
    return _confidences(preds, seed, predict_from, top_k, resamplings, rows)


def _interval(
    preds: Predictions, level: float, seed: int, predict_from: PredictFrom, top_k: int, resamplings: int | None
) -> tuple[Float64Array, Float64Array]:
    if not 0 < level < 1:
        raise ConfidenceError(f"level is {level!r}; expected the share of resamplings inside, between 0 and 1.")
    ends = np.empty((2, preds.n_images))
    for rows, block in _confidences(preds, seed, predict_from, top_k, resamplings, None):
        ends[:, rows] = np.quantile(block, ((1 - level) / 2, (1 + level) / 2), axis=1, overwrite_input=True)
    return ends[0], ends[1]


def _confidences(
    preds: Predictions, seed: int, predict_from: PredictFrom, top_k: int, resamplings: int | None, rows: int | None
) -> Iterator[tuple[slice, Float64Array]]:
    from secondlook.estimators.sorting_kernels import resample_means

    counts = _counts(preds, resamplings, seed).astype(np.float64)
    shares = shares_of_views(preds, predict_from, top_k)
    step = max(1, BLOCK_BYTES // (8 * counts.shape[1])) if rows is None else rows
    if step < 1:
        raise ConfidenceError(f"rows is {rows}; expected the number of images in a block, at least 1.")
    for start in range(0, preds.n_images, step):
        chosen = slice(start, min(start + step, preds.n_images))
        block = np.empty((chosen.stop - chosen.start, counts.shape[1]))
        resample_means(shares[chosen], counts, block)
        yield chosen, block


def _counts(preds: Predictions, resamplings: int | None, seed: int) -> IntArray:
    if preds.n_outputs < 2:
        raise ConfidenceError(
            "the bootstrap needs at least two views, and these predictions have one; collect with more."
        )
    n_resamplings = checked_resamplings(resamplings, preds.n_views, preds.n_members)
    return view_resampling_counts(preds.n_outputs, n_resamplings, seed)
