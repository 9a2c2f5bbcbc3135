"""Blocks of images in memory, the probability mass of their classes, temperatures, and the disagreement of looks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from secondlook.arrays import Array, Float64Array, IntArray, Output, softmax, top_classes
from secondlook.errors import ANY, ConfidenceError, Repair
from secondlook.predictions import PredictFrom, Predictions, check_prediction
from secondlook.views import ViewsLike

TO_FIT = "fit"
"""The value of an option to fit to labeled images: temperature='fit'."""

Temperature = float | Literal["fit"] | None
"""A temperature, 'fit' to fit it to the labels, or None for no scaling."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
"""Range of fitted temperatures; if there are no errors, the likelihood alone has no maximum above 0."""
_MIN_LOG = -745.0  # about the log of the smallest float64, for probabilities stored as 0


class Block(NamedTuple):
    """The probabilities of a few images in memory, which a method may modify, and the classes predicted for them."""

    outputs: list[Float64Array]
    """Probabilities of each member of an ensemble, or of the single classifier. float64 [n, V, C] each"""
    kinds: Sequence[Output]
    """Kind of output of each member."""
    classes: IntArray
    """The top-k predicted classes, int64 [n, k]."""

    @classmethod
    def predict(cls, outputs: Array, kinds: Sequence[Output], predict_from: PredictFrom, top_k: int) -> "Block":
        """Return the block for validated outputs, with the members side by side. float32 [n, V, members * C]"""
        if top_k > 1:
            check_prediction(predict_from, top_k, outputs.shape[2] // len(kinds))
        pairs = zip([outputs] if len(kinds) == 1 else np.split(outputs, len(kinds), axis=2), kinds, strict=True)
        members = [softmax(one) if kind == "logits" else one.astype(np.float64) for one, kind in pairs]
        views = members if predict_from == "views" else [one[:, :1] for one in members]
        return cls(members, kinds, top_classes(average_members(views).mean(axis=1), top_k))


def average_members(outputs: Sequence[Float64Array]) -> Float64Array:
    """Return the mean over the members, added up in their order. float64 [n, V, C] each -> [n, V, C]"""
    if len(outputs) == 1:
        return outputs[0]
    total = outputs[0] + outputs[1]
    for one in outputs[2:]:
        total += one
    total /= len(outputs)
    return total


def iter_blocks(
    preds: Predictions, predict_from: PredictFrom, top_k: int, views: ViewsLike | None = None
) -> Iterator[tuple[slice, Block]]:
    """Yield the images of predictions block by block; `views` restricts the outputs, but not the predicted classes."""
    classes = predicted_classes(preds, predict_from, top_k)
    kinds: list[Output] = ["logits" if member.has_logits else "probabilities" for member in list_members(preds)]
    for rows, outputs in _iter_member_blocks(preds if views is None else preds.select(views=views)):
        yield rows, Block(outputs, kinds, classes[rows])


def list_members(preds: Predictions) -> tuple[Predictions, ...]:
    """Return the predictions of each member of an ensemble, or of the single classifier."""
    return preds.members or (preds,)


def _iter_member_blocks(preds: Predictions) -> Iterator[tuple[slice, list[Float64Array]]]:
    rows = preds.block_rows if preds.members else None
    for blocks in zip(*(member.blocks(rows) for member in list_members(preds)), strict=True):
        yield blocks[0][0], [block for _, block in blocks]


# --- Mass ---


def predicted_classes(preds: Predictions, predict_from: PredictFrom, top_k: int) -> IntArray:
    """Return the top-k predicted classes, with two axes even for k = 1. int64 [N, k]"""
    return preds.predicted(predict_from, top_k).reshape(preds.n_images, top_k)


def sum_over_classes(outputs: Float64Array, classes: IntArray) -> Float64Array:
    """Sum the values of some classes in each output. [n, C], [n, k] -> [n]"""
    sums: Float64Array = np.take_along_axis(outputs, classes, axis=1).sum(axis=1)
    return sums


def top_class_mass(outputs: Float64Array, top_k: int) -> Float64Array:
    """Sum the k largest values of each output. [n, C] -> [n]"""
    sums: Float64Array = np.partition(outputs, -top_k, axis=1)[:, -top_k:].sum(axis=1)
    return sums


def class_mass(outputs: Float64Array, classes: IntArray) -> Float64Array:
    """Sum the probabilities of some classes in each view, clipped to 1. [n, V, C], [n, k] -> [n, V]"""
    mass: Float64Array = np.minimum(np.take_along_axis(outputs, classes[:, None, :], axis=2).sum(axis=2), 1.0)
    return mass


def predicted_class_mass(preds: Predictions, predict_from: PredictFrom, top_k: int) -> Float64Array:
    """Return the mass of the predicted classes in each view, member by member. float64 [N, members * V]"""
    return _compute_mass(preds, predict_from, top_k, class_mass)


def other_class_mass(preds: Predictions, predict_from: PredictFrom, top_k: int) -> Float64Array:
    """Return the mass of all other classes in each view, member by member. float64 [N, members * V]

    For confident outputs, it remains precise, while 1 - `predicted_class_mass` loses all digits.
    """
    return _compute_mass(preds, predict_from, top_k, _sum_other_classes)


def _sum_other_classes(outputs: Float64Array, classes: IntArray) -> Float64Array:
    """Sum the probabilities of all other classes in each view. [n, V, C], [n, k] -> [n, V]; modifies `outputs`"""
    np.put_along_axis(outputs, classes[:, None, :], 0.0, axis=2)
    mass: Float64Array = outputs.sum(axis=2)
    return mass


def _compute_mass(
    preds: Predictions,
    predict_from: PredictFrom,
    top_k: int,
    compute: Callable[[Float64Array, IntArray], Float64Array],
) -> Float64Array:
    mass = np.empty((preds.n_images, preds.n_outputs))
    for rows, block in iter_blocks(preds, predict_from, top_k):
        mass[rows] = np.concatenate([compute(outputs, block.classes) for outputs in block.outputs], axis=1)
    return mass


def iter_view_statistics(
    preds: Predictions, predict_from: PredictFrom, top_k: int
) -> Iterator[tuple[slice, Float64Array, Float64Array, Float64Array, IntArray]]:
    """Yield blocks of images, their probabilities [n, V, C], and statistics of each view.

    These are the mass of the predicted classes and the sum of the k largest probabilities, float64 [n, V] each, and the
    k classes with the largest probabilities, int64 [n, V, k]; for an ensemble, from the mean over its members.
    """
    classes = predicted_classes(preds, predict_from, top_k)
    for rows, block in preds.blocks():
        views, shape = block.reshape(-1, preds.n_classes), block.shape[:2]
        top_mass, top = top_class_mass(views, top_k).reshape(shape), top_classes(views, top_k).reshape(*shape, top_k)
        yield rows, block, class_mass(block, classes[rows]), top_mass, top


# --- Temperature ---


def apply_temperature(probabilities: Float64Array, temperature: float | None) -> Float64Array:
    """Return softmax(log(probabilities) / temperature), [..., C] -> [..., C]; for logits z this is softmax(z / T)."""
    if temperature is None:
        return probabilities
    scaled: Float64Array = (probabilities / probabilities.max(axis=-1, keepdims=True)) ** (1.0 / temperature)
    scaled /= scaled.sum(axis=-1, keepdims=True)
    return scaled


def resolve_temperature(preds: Predictions, temperature: Temperature) -> float | None:
    """Return the temperature as a number, fitted to predictions if 'fit', or None for no scaling."""
    return fit_temperature(preds) if isinstance(temperature, str) else temperature


def fit_temperature(preds: Predictions) -> float:
    """Return the temperature that maximizes the likelihood of the labels, given the outputs for the image itself.

    The log-likelihood is concave in 1 / T, so T is the root of its slope; each step of the search reads the predictions
    once.
    """
    from scipy.optimize import brentq

    if not preds.has_labels:
        repair = Repair("pass labeled predictions, or a number as {temperature}", temperature=ANY)
        raise ConfidenceError("needs labels", argument="temperature", value=TO_FIT, repair=repair)
    tuning = preds.select(views="identity")
    if _compute_slope(tuning, 1 / MIN_TEMPERATURE) <= 0:
        return MIN_TEMPERATURE
    if _compute_slope(tuning, 1 / MAX_TEMPERATURE) >= 0:
        return MAX_TEMPERATURE
    bounds = -np.log(MAX_TEMPERATURE), -np.log(MIN_TEMPERATURE)
    return float(np.exp(-brentq(lambda log_b: _compute_slope(tuning, np.exp(log_b)), *bounds, xtol=1e-6)))


def _compute_slope(tuning: Predictions, inverse_temperature: float) -> float:
    """Return the derivative of the mean negative log-likelihood of the labels with respect to 1 / T."""
    total = 0.0
    for rows, block in tuning.blocks():
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(block[:, 0]), _MIN_LOG)
        expected = (logs * apply_temperature(block[:, 0], 1 / inverse_temperature)).sum(axis=1)
        total += float((expected - np.take_along_axis(logs, tuning.labels[rows, None], axis=1)[:, 0]).sum())
    return total / tuning.n_images


# --- Looks ---


class LookStatistics(NamedTuple):
    """The first look at each of N images, and the disagreement of all looks."""

    first_look: Float64Array
    """Probability of the predicted class, or classes, after the first look: MSR(x). float64 [N]"""
    disagreement: Float64Array
    """Disagreement of the outputs, from 0 (all equal) to 1; NaN for a single output. float64 [N]

    It is the total variation distance between an output and the mean over all outputs, averaged over the outputs: all
    views, and all members of an ensemble.
    """


def compute_look_statistics(preds: Predictions, top_k: int = 1) -> LookStatistics:
    """Compute the statistics of the looks at each image, in one pass over the predictions."""
    parts = [compare_looks(outputs, top_k) for _, outputs in _iter_member_blocks(preds)]
    return LookStatistics(*np.concatenate(parts, axis=1))


def compare_looks(members: Sequence[Float64Array], top_k: int) -> LookStatistics:
    """Compute the statistics from the probabilities of each member, float64 [n, V, C] each."""
    if len(members) == 1:
        outputs, first = members[0], members[0][:, 0]
    else:
        outputs, first = np.concatenate(members, axis=1), np.mean([one[:, 0] for one in members], axis=0)
    first_look = first.max(axis=1) if top_k == 1 else top_class_mass(first, top_k)
    if outputs.shape[1] == 1:
        return LookStatistics(first_look, np.full(len(outputs), np.nan))
    distances = np.abs(outputs - outputs.mean(axis=1, keepdims=True)).sum(axis=2) / 2
    return LookStatistics(first_look, distances.mean(axis=1))
