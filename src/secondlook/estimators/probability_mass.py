"""Probability mass of the predicted classes, of all other classes, and how much the looks at an image disagree."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.predictions import PredictFrom, Predictions, block_rows


def list_members(preds: Predictions) -> tuple[Predictions, ...]:
    """Return the predictions of each member of an ensemble, or of the single classifier."""
    return preds.members or (preds,)


def has_logits(preds: Predictions) -> bool:
    """Return whether the outputs of all members are logits."""
    return all(member.has_logits for member in list_members(preds))


def iter_member_blocks(preds: Predictions) -> Iterator[tuple[slice, list[Float64Array]]]:
    """Yield blocks of images, and the probabilities of each member for them, float64 [n, V, C] each."""
    if not preds.members:
        for images, block in preds.blocks():
            yield images, [block]
        return
    rows = block_rows(preds.n_views, preds.n_classes)
    for blocks in zip(*(member.blocks(rows) for member in preds.members), strict=True):
        yield blocks[0][0], [block for _, block in blocks]


def predicted_classes(preds: Predictions, predict_from: PredictFrom, top_k: int) -> IntArray:
    """Return the top-k predicted classes, also for k = 1 with two axes. int64 [N, k]"""
    return preds.predicted(predict_from=predict_from, top_k=top_k).reshape(preds.n_images, top_k)


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

    For confident outputs it is precise where 1 - `predicted_class_mass` has lost all digits.
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
    classes = predicted_classes(preds, predict_from, top_k)
    mass = np.empty((preds.n_images, preds.n_members, preds.n_views))
    for number, member in enumerate(list_members(preds)):
        for rows, block in member.blocks():
            mass[rows, number] = compute(block, classes[rows])
    return mass.reshape(preds.n_images, -1)


class LookStatistics(NamedTuple):
    """The first look at each of N images, and how much all looks disagree."""

    first_look: Float64Array
    """Probability of the predicted class, or classes, after the first look: MSR(x). float64 [N]"""
    disagreement: Float64Array
    """0 if all outputs are equal, up to 1; NaN if there is only one output. float64 [N]

    It is the share of probability that an output gives to other classes than the mean over all outputs does (the total
    variation distance), averaged over the outputs: all views, and all members of an ensemble.
    """


def compute_look_statistics(preds: Predictions, top_k: int = 1) -> LookStatistics:
    """Compute the statistics of the looks at each image, in one pass over the predictions."""
    first_look, disagreement = np.empty(preds.n_images), np.full(preds.n_images, np.nan)
    for rows, blocks in iter_member_blocks(preds):
        first_look[rows] = top_class_mass(np.mean([block[:, 0] for block in blocks], axis=0), top_k)
        if preds.n_outputs > 1:
            outputs = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
            distances = np.abs(outputs - outputs.mean(axis=1, keepdims=True)).sum(axis=2) / 2
            disagreement[rows] = distances.mean(axis=1)
    return LookStatistics(first_look, disagreement)
