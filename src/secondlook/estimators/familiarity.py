"""Familiarity: how much the outputs for an image resemble those for known images, from the same looks.

Without examples of unknown images, it is the method `gen`. With examples, it is a logistic regression on `gen` and the
mean log-probability of each class, fitted to the examples and to known images.
"""

from collections.abc import Sequence

import numpy as np

from secondlook.arrays import GEN_CLASSES, GEN_EXPONENT, PROBABILITY_FLOORS, Float64Array
from secondlook.errors import ConfidenceError
from secondlook.estimators.methods import method
from secondlook.estimators.probability_mass import Block, iter_blocks
from secondlook.predictions import Predictions

INVERSE_REGULARIZATION = 0.05
"""Inverse L2 penalty, with standardized features and equal total weight of known and unknown images."""


@method(
    "gen",
    symbol="GEN(D)",
    summary="one minus the generalized entropy of the outputs, averaged over the views; detects unknown images",
    words="certainty over views",
    takes_block=True,
    view_means=lambda block: (_compute_gen(block), lambda means: means[0]),
)
def gen(block: Block) -> Float64Array:
    """Return the mean over the views of 1 - mean over the leading classes of (p (1 - p)) ** 0.1. [n]

    It is between 0 and 1 and does not depend on the predicted class: Liu, Lochman and Zach (2023), "GEN: Pushing the
    Limits of Softmax-Based Out-of-Distribution Detection".
    """
    values: Float64Array = _compute_gen(block)[0].reshape(len(block.classes), -1).mean(axis=1)
    return values


def fit_familiarity(known: Predictions, unknown: Predictions) -> tuple[float, ...]:
    """Return the weight of each feature for separating example unknown images from known images."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    features = np.concatenate([_compute_all_features(one) for one in (known, unknown)], axis=1).T
    is_known = np.arange(len(features)) < known.n_images
    scaler = StandardScaler().fit(features)
    regression = LogisticRegression(C=INVERSE_REGULARIZATION, class_weight="balanced", tol=1e-8, max_iter=10_000)
    regression.fit(scaler.transform(features), is_known)
    return tuple((regression.coef_[0] / scaler.scale_).tolist())


def compute_familiarity(preds: Predictions, weights: Sequence[float] = ()) -> Float64Array:
    """Compute the familiarity of images, with or without the weights of `fit_familiarity`. float64 [N]"""
    values = np.empty(preds.n_images)
    for rows, block in iter_blocks(preds, "views", 1):
        values[rows] = _compute_block(block, weights)
    return values


def _compute_block(block: Block, weights: Sequence[float]) -> Float64Array:
    """Return the familiarity of the images of a block, which is not modified. float64 [n]"""
    if not weights:
        return gen(block)
    features, total = _compute_features(block), np.zeros(len(block.classes))
    if len(weights) != len(features):
        fault = f"the familiarity was learned for {len(weights) - 1} classes, but there are {len(features) - 1}"
        raise ConfidenceError(fault, repair="pass predictions of the same classifier")
    # Not a matrix product, since its order of summation depends on the number of images.
    for weight, feature in zip(weights, features, strict=True):
        total += weight * feature
    return total


def _compute_all_features(preds: Predictions) -> Float64Array:
    """Return the features of all images. float64 [1 + C, N]"""
    return np.concatenate([_compute_features(block) for _, block in iter_blocks(preds, "views", 1)], axis=1)


def _compute_features(block: Block) -> Float64Array:
    """Return `gen` and the mean over members and views of the log-probability of each class. float64 [1 + C, n]"""
    logs = np.zeros((block.outputs[0].shape[2], len(block.classes)))
    for outputs, kind in zip(block.outputs, block.kinds, strict=True):
        logs += np.log(np.maximum(outputs, PROBABILITY_FLOORS[kind])).mean(axis=1).T
    return np.concatenate([gen(block)[None], logs / len(block.outputs)])


def _compute_gen(block: Block) -> Float64Array:
    """Return `gen` of each output. [1, n, members, V]; the outputs are not modified"""
    values = np.empty((1, len(block.classes), len(block.outputs), block.outputs[0].shape[1]))
    for member, outputs in enumerate(block.outputs):
        leading = outputs
        if outputs.shape[2] > GEN_CLASSES:
            leading = np.partition(outputs, -GEN_CLASSES, axis=2)[:, :, -GEN_CLASSES:]
        spread = np.maximum(leading * (1.0 - leading), 0.0)  # rounded probabilities may exceed 1
        values[0, :, member] = 1.0 - (spread**GEN_EXPONENT).mean(axis=2)
    return values
