"""Tuning images: which ones are set apart, and what is fitted to them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import ConfidenceError
from secondlook.estimators.methods import (
    TO_FIT,
    check_arguments,
    check_needs,
    find_method,
    resolve_method,
    split_method,
)
from secondlook.estimators.temperature import fit_temperature
from secondlook.predictions import PredictFrom, Predictions

MAX_TUNING_IMAGES = 1000


def tuning_positions(n_images: int, seed: int = 0) -> IntArray:
    """Return the positions of the tuning images: a random quarter of all images, at most 1,000. int64 [n], sorted"""
    n_tuning = min(MAX_TUNING_IMAGES, n_images // 4)
    return np.sort(np.random.default_rng(seed).permutation(n_images)[:n_tuning])


def needs_fitting(method: str, options: Mapping[str, object] | None = None) -> bool:
    """Return whether some option of a method is still to be fitted to labeled images."""
    plain, merged = split_method(method, options)
    is_incomplete = any(merged.get(name) is None for name in find_method(plain).fitted)
    return is_incomplete or merged.get("temperature") == TO_FIT


def fit_method(
    preds: Predictions, method: str, *, predict_from: PredictFrom = "image", top_k: int = 1, **options: object
) -> dict[str, Any]:
    """Return the options of a method, with everything that can be fitted fitted to these labeled images.

    Fitted are the weights of `learned`, `p` of `max-logit-pnorm` and `temperature="fit"`, each unless it is given. The
    result also has the options of the text, so that `confidence(other_preds, name, **fitted)` is complete. Evaluate and
    certify on other images than these.

    Parameters
    ----------
    preds
        Labeled predictions: the tuning images.
    method
        Name of a method in `METHODS`; options may follow it, as in 'max-logit-pnorm?on=views'.
    predict_from, top_k, **options
        As in `confidence`.

    Returns
    -------
    dict
        Options of the method; whatever was fitted is a plain number or text.
    """
    check_arguments(preds, predict_from, top_k)
    found, plain, merged = resolve_method(method, options)
    if not needs_fitting(plain, merged):
        return merged
    check_needs(found, preds, merged)
    if not preds.has_labels:
        raise ConfidenceError(f"method {method!r} is fitted to labeled images; pass labeled predictions.")
    tuning = preds.select(images=merged.pop("tune_on", None))
    if merged.get("temperature") == TO_FIT:
        merged["temperature"] = fit_temperature(tuning)
    if found.fit is not None and needs_fitting(plain, merged):
        merged |= found.fit(tuning, predict_from=predict_from, top_k=top_k, **merged)
    return merged


def default_method(preds: Predictions) -> str:
    """Return the default method: 'blend', or 'msr' if there is only one view.

    By certified coverage it beats 'mean' and 'learned' on average (docs/results.md), and it spends no labels.
    """
    return "msr" if preds.n_outputs < 2 else "blend"
