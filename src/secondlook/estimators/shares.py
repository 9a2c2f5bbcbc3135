"""What the predicted classes hold of each output: pure functions on arrays, and one pass over the predictions."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.estimators.logits import lone_tables
from secondlook.predictions import PredictFrom, Predictions


def predicted_classes(preds: Predictions, predict_from: PredictFrom, top_k: int) -> IntArray:
    """Return the k leading classes of the predicting output, int64 [N, k], for k = 1 too."""
    return preds.predicted(predict_from=predict_from, top_k=top_k).reshape(preds.n_images, top_k)


def share(outputs: Float64Array, classes: IntArray) -> Float64Array:
    """Sum over some classes of each output. [n, C], [n, k] -> [n]"""
    held: Float64Array = np.take_along_axis(outputs, classes, axis=1).sum(axis=1)
    return held


def top_class_mass(outputs: Float64Array, top_k: int) -> Float64Array:
    """Sum of the k largest values of each output. [n, C] -> [n]"""
    held: Float64Array = np.partition(outputs, -top_k, axis=1)[:, -top_k:].sum(axis=1)
    return held


def class_mass(outputs: Float64Array, classes: IntArray) -> Float64Array:
    """Sum over some classes of the output of each view, at most 1 despite rounding. [n, V, C], [n, k] -> [n, V]"""
    held: Float64Array = np.minimum(np.take_along_axis(outputs, classes[:, None, :], axis=2).sum(axis=2), 1.0)
    return held


def share_left(outputs: Float64Array, classes: IntArray) -> Float64Array:
    """Sum over all other classes of the output of each view. [n, V, C], [n, k] -> [n, V]; the outputs are spent

    Near certainty this keeps its digits, where 1 - share has none left.
    """
    np.put_along_axis(outputs, classes[:, None, :], 0.0, axis=2)
    left: Float64Array = outputs.sum(axis=2)
    return left


def shares_of_views(preds: Predictions, predict_from: PredictFrom, top_k: int) -> Float64Array:
    """Return what the predicted classes hold in each view, of each member in turn. float64 [N, members * V]"""
    classes = predicted_classes(preds, predict_from, top_k)
    shares = np.empty((preds.n_images, len(lone_tables(preds)), preds.n_views))
    for member, table in enumerate(lone_tables(preds)):
        for rows, block in table.blocks():
            shares[rows, member] = class_mass(block, classes[rows])
    return shares.reshape(preds.n_images, -1)


def other_class_mass(preds: Predictions, predict_from: PredictFrom, top_k: int) -> Float64Array:
    """Return what the other classes hold in each view, of each member in turn. float64 [N, members * V]"""
    classes = predicted_classes(preds, predict_from, top_k)
    doubts = np.empty((preds.n_images, len(lone_tables(preds)), preds.n_views))
    for member, table in enumerate(lone_tables(preds)):
        for rows, block in table.blocks():
            doubts[rows, member] = share_left(block, classes[rows])
    return doubts.reshape(preds.n_images, -1)
