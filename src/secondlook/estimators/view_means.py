"""Methods that are functions of means over the views: the label-free `blend`, and `learned`, fitted to labels.

Both use a few statistics of each output (view, or member and view). Their means over the outputs give the confidence,
and their means over resampled outputs its interval.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from secondlook.arrays import PROBABILITY_FLOORS, Float64Array, IntArray, is_number, sigmoid
from secondlook.errors import ConfidenceError
from secondlook.estimators.fitting import describe_shortage
from secondlook.estimators.methods import method
from secondlook.estimators.probability_mass import Block, iter_blocks
from secondlook.predictions import PredictFrom, Predictions

WEIGHTS = ("intercept", "log_odds", "log_margin", "margin", "logit_norm", "image_log_odds")
"""The parameters of `learned`: the intercept, and the weight of each feature."""
INVERSE_REGULARIZATION = 0.1


def _combine_blend(means: Float64Array) -> Float64Array:
    """Return the sigmoid of half the sum of the log-odds and the mean log-margin. [3, n, B] -> [n, B]"""
    return sigmoid((np.log(means[0] / means[1]) + means[2]) / 2)


@method(
    "blend",
    symbol="B(D)",
    summary="log-odds of MSR(D) and mean log-margin over the views, in equal parts; needs no labels",
    words="mean confidence and margin over views",
    takes_block=True,
    view_means=lambda block: (_compute_margins(block), _combine_blend),
)
def blend(block: Block) -> Float64Array:
    """Return sigmoid((log(s / (1 - s)) + mean over views of (log s_c - log of the largest other output)) / 2). [n]

    s is MSR(D), and 1 - s is summed from the other classes. For k > 1, s_c is the sum over the k predicted classes. The
    score is between 0 and 1, but not a probability.
    """
    return _combine_blend(_average_outputs(_compute_margins(block)))[:, 0]


def _combine_learned(weights: Mapping[str, float | None], means: Float64Array) -> Float64Array:
    """Return the sigmoid of the intercept plus the weighted features. [6, n, B] -> [n, B]"""
    intercept, *others = _check_weights(weights)
    total = np.full(means.shape[1:], intercept)
    # Not a matrix product, since its order of summation depends on the number of images.
    for weight, feature in zip(others, _compute_features(means), strict=True):
        total += weight * feature
    return sigmoid(total)


def _compute_features(means: Float64Array) -> Float64Array:
    """Return the features of `learned`, in the order of `WEIGHTS`. [6, n, B] -> [5, n, B]"""
    return np.stack([np.log(means[0] / means[1]), *means[2:]])


def fit_weights(
    preds: Predictions, *, predict_from: PredictFrom, top_k: int, **given: float | None
) -> dict[str, object]:
    """Return the weights of `learned` for labeled images: logistic regression on the standardized features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    present = [name for name in WEIGHTS if given.get(name) is not None]
    if present:
        fault = f"method 'learned' has {', '.join(present)}, but not all of {', '.join(WEIGHTS)}"
        raise ConfidenceError(fault, repair="pass all of them, or none to fit them")
    shortage = describe_shortage(preds, predict_from, top_k)
    if shortage:
        raise ConfidenceError(shortage)
    features = np.empty((preds.n_images, len(WEIGHTS) - 1))
    for rows, block in iter_blocks(preds, predict_from, top_k):
        features[rows] = _compute_features(_average_outputs(_compute_learned_statistics(block)))[:, :, 0].T
    scaler = StandardScaler().fit(features)
    regression = LogisticRegression(C=INVERSE_REGULARIZATION, tol=1e-8, max_iter=10_000)
    regression.fit(scaler.transform(features), preds.correct(predict_from=predict_from, top_k=top_k))
    weights = regression.coef_[0] / scaler.scale_
    intercept = regression.intercept_[0] - (weights * scaler.mean_).sum()
    return dict(zip(WEIGHTS, map(float, (intercept, *weights)), strict=True))


@method(
    "learned",
    symbol="L(D)",
    summary="logistic regression on five means over the views, fitted to labeled images set apart",
    words="confidence learned from views",
    is_probability=True,
    takes_block=True,
    view_means=lambda block, **weights: (_compute_learned_statistics(block), partial(_combine_learned, weights)),
    fitted=WEIGHTS,
    fit=fit_weights,
)
def learned(block: Block, **weights: float | None) -> Float64Array:
    """Return sigmoid(intercept + sum of weight * feature); `fit_method` fits the weights. [n]

    The features are log(s / (1 - s)) of MSR(D), and the means over views of log s_c - log s_next, of s_c - s_next and
    of the centered log s_c over the 2-norm of all, where s_next is the largest output of another class; and the
    log-odds of c on the image itself. For k > 1, s_c is the sum over the k predicted classes.
    """
    return _combine_learned(weights, _average_outputs(_compute_learned_statistics(block)))[:, 0]


def _compute_margins(block: Block) -> Float64Array:
    """Return the mass of the predicted classes, the mass of all others, and the log-margin. [3, n, members, V]"""
    mass = _divide_mass(block)
    mass[2] = np.log(mass[0] / mass[2])
    return mass


def _compute_learned_statistics(block: Block) -> Float64Array:
    """Return `_compute_margins`, margins, normalized log-probabilities and log-odds. [6, n, members, V]

    The log-odds are those on the image itself, repeated for all views, so that every resample has the same mean.
    """
    pairs = zip(block.outputs, block.kinds, strict=True)
    normalized = [_normalize_logs(outputs, block.classes, PROBABILITY_FLOORS[kind]) for outputs, kind in pairs]
    own, other, next_mass = _divide_mass(block)
    image_own, image_other = (mass[:, :, :1].mean(axis=1, keepdims=True) for mass in (own, other))
    image_log_odds = np.broadcast_to(np.log(image_own / image_other), own.shape)
    margins = np.log(own / next_mass), own - next_mass
    return np.stack([own, other, *margins, np.stack(normalized, axis=1), image_log_odds])


def _normalize_logs(outputs: Float64Array, classes: IntArray, floor: float) -> Float64Array:
    """Return the centered logs of the classes over the 2-norm of all. [n, V, C], [n, k] -> [n, V]"""
    logs = np.log(np.maximum(outputs, floor))
    logs -= logs.mean(axis=2, keepdims=True)
    norm = np.sqrt((logs**2).sum(axis=2))
    own: Float64Array = np.take_along_axis(logs, classes[:, None, :], axis=2).sum(axis=2)
    return own / np.where(norm > 0, norm, 1.0)


def _divide_mass(block: Block) -> Float64Array:
    """Return the mass of the predicted classes, of all others, and of the largest other class. [3, n, members, V]

    All are at least the floor of the member. The outputs are modified.
    """
    n_images, n_views = block.outputs[0].shape[:2]
    mass = np.empty((3, n_images, len(block.outputs), n_views))
    index = (np.arange(n_images)[:, None, None], np.arange(n_views)[:, None], block.classes[:, None, :])
    for member, (outputs, kind) in enumerate(zip(block.outputs, block.kinds, strict=True)):
        own = mass[:, :, member]
        outputs[index].sum(axis=2, out=own[0])
        outputs[index] = 0.0
        outputs.sum(axis=2, out=own[1])
        outputs.max(axis=2, out=own[2])
        np.maximum(own, PROBABILITY_FLOORS[kind], out=own)
    return mass


def _average_outputs(values: Float64Array) -> Float64Array:
    """Return the mean over members and views. [S, n, members, V] -> [S, n, 1]"""
    means: Float64Array = values.reshape(*values.shape[:2], -1).mean(axis=2, keepdims=True)
    return means


def _check_weights(weights: Mapping[str, float | None]) -> list[float]:
    """Return the weights in the order of `WEIGHTS`, or raise an error."""
    checked: list[float] = []
    for name in WEIGHTS:
        value = weights.get(name)
        if value is None:
            repair = "fit them to other labeled images with fit_method(preds, 'learned') and pass them as options"
            raise ConfidenceError(f"method 'learned' has no weights ({name} is missing)", repair=repair)
        if not is_number(value):
            raise ConfidenceError("is invalid; expected the weight as a finite number", argument=name, value=value)
        checked.append(float(value))
    return checked
