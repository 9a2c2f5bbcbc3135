"""Softmax responses: the baseline MSR(x), the paper's MSR(D), a single view, and the ensemble's own."""

from typing import Literal

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.estimators.registry import method
from secondlook.estimators.shares import predicted_classes, share, top_class_mass
from secondlook.estimators.temperature import Temperature, chosen_temperature, tempered_blocks
from secondlook.predictions import PredictFrom, Predictions
from secondlook.views import View, ViewsLike

On = Literal["image", "views"]


@method("msr", symbol="MSR(x)", summary="largest softmax output of the image itself; the baseline", is_probability=True)
def msr(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return max_c s_c(x), for k > 1 the sum of the k largest, also where the class is predicted by D. [N]"""
    return _largest_of_view(preds, View(), top_k, chosen_temperature(preds, temperature, tune_on))


@method(
    "mean",
    symbol="MSR(D)",
    summary="mean over the views of the predicted class's softmax output; the paper's own",
    is_probability=True,
)
def mean(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    views: ViewsLike | None = None,
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return s_c(D) at the predicted class, for k > 1 summed over the k predicted ones. [N]

    `views` averages over some views only, the identity always among them; the class stays the one predicted by all.
    """
    looked_at = preds if views is None else preds.select(views=views)
    classes = predicted_classes(preds, predict_from, top_k)
    values = np.empty(preds.n_images)
    for rows, block in tempered_blocks(looked_at, chosen_temperature(preds, temperature, tune_on)):
        values[rows] = share(block.mean(axis=1), classes[rows])
    return values


@method(
    "view",
    symbol="MSR(t(x))",
    summary="largest softmax output of one single view",
    parameter="TEXT",
    is_probability=True,
)
def view(
    preds: Predictions,
    text: str,
    *,
    predict_from: PredictFrom,
    top_k: int,
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return max_c s_c(t(x)) for the view t of that text, for k > 1 the sum of the k largest. [N]"""
    return _largest_of_view(preds, View.parse(text), top_k, chosen_temperature(preds, temperature, tune_on))


@method(
    "nn-ensemble",
    symbol="NN-Ens",
    summary="largest mean output of an ensemble's members, no views",
    needs=("members",),
    is_probability=True,
)
def nn_ensemble(preds: Predictions, *, predict_from: PredictFrom, top_k: int) -> Float64Array:
    """Return what `msr` is for an ensemble, and refuse a single classifier. [N]"""
    return _largest_of_view(preds, View(), top_k, None)


def _largest_of_view(preds: Predictions, seen: View, top_k: int, temperature: float | None) -> Float64Array:
    values = np.empty(preds.n_images)
    for rows, block in tempered_blocks(preds.select(views=[seen]), temperature):
        values[rows] = top_class_mass(block[:, -1], top_k)
    return values
