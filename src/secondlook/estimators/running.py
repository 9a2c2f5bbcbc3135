"""Running confidences: what a mean over views is after each number of views."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError
from secondlook.estimators.methods import METHODS, Method, check_arguments, check_needs, resolve_method
from secondlook.predictions import PredictFrom, Predictions


class ViewStatistics(NamedTuple):
    """What a method averages over the views of each image."""

    values: Float64Array
    """The statistics of each view, averaged over the members of an ensemble, float64 [S, N, V]."""
    combine: Callable[[Float64Array], Float64Array]
    """From B means for each image to B confidences. [S, N, B] -> [N, B]"""


def running_confidence(
    preds: Predictions, method: str, *, predict_from: PredictFrom = "image", top_k: int = 1, **options: object
) -> Float64Array:
    """Return the confidence after 1, 2, ..., V views, in the order of `preds.views`. float64 [N, V]

    Only methods that are functions of means over the views have it (`METHODS[name].is_mean_over_views`). With
    `predict_from="views"` the class is predicted from the views so far.
    """
    check_arguments(preds, predict_from, top_k)
    found, merged = find_mean_over_views(method, options)
    if predict_from == "image":
        return _accumulate(found, preds, predict_from, top_k, merged)
    texts = preds.views.texts
    parts = (preds.select(views=list(texts[: count + 1])) for count in range(len(texts)))
    return np.stack([_accumulate(found, part, predict_from, top_k, merged)[:, -1] for part in parts], axis=1)


def compute_view_statistics(
    preds: Predictions, method: str, *, predict_from: PredictFrom = "image", top_k: int = 1, **options: object
) -> ViewStatistics:
    """Return what a method averages over the views, for all images at once; classes are predicted from all views."""
    check_arguments(preds, predict_from, top_k)
    found, merged = find_mean_over_views(method, options)
    check_needs(found, preds, merged)
    assert found.view_means is not None, "checked by find_mean_over_views"
    blocks = list(found.view_means(preds, predict_from=predict_from, top_k=top_k, **merged))
    values = np.concatenate([block.values.mean(axis=2) for block in blocks], axis=1)
    return ViewStatistics(values, blocks[0].combine)


def find_mean_over_views(text: str, options: Mapping[str, object]) -> tuple[Method, dict[str, Any]]:
    """Return a method that is a function of means over the views, and its options, or raise `ConfidenceError`."""
    found, _, merged = resolve_method(text, options)
    if not found.is_mean_over_views:
        known = ", ".join(repr(name) for name in METHODS if METHODS[name].is_mean_over_views)
        raise ConfidenceError(
            f"method {text!r} is not a mean over views, so it cannot be computed look by look; use one of: {known}."
        )
    if merged.get("views") is not None:
        raise ConfidenceError(
            f"option 'views' of method {text!r} fixes the views, so it cannot be computed look by look; select the "
            "views of the predictions instead."
        )
    return found, merged


def _accumulate(
    found: Method, preds: Predictions, predict_from: PredictFrom, top_k: int, options: Mapping[str, Any]
) -> Float64Array:
    """Return the confidence after each number of views, of classes that do not depend on it. float64 [N, V]"""
    check_needs(found, preds, options)
    assert found.view_means is not None, "checked by find_mean_over_views"
    confidences = np.empty((preds.n_images, preds.n_views))
    counts = np.arange(1, preds.n_views + 1)
    for rows, values, combine in found.view_means(preds, predict_from=predict_from, top_k=top_k, **options):
        # Added up one view after another, so that further views do not change the last bit of what was known before.
        confidences[rows] = combine(values.mean(axis=2).cumsum(axis=2) / counts)
    return confidences
