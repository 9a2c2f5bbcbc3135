"""Methods that need only the outputs of the classifier: softmax responses, ZERO, and normalized logits."""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray, is_number
from secondlook.errors import ANY, ConfidenceError, Repair
from secondlook.estimators.methods import Combine, method
from secondlook.estimators.probability_mass import (
    Block,
    Temperature,
    apply_temperature,
    average_members,
    class_mass,
    list_members,
    predicted_classes,
    resolve_temperature,
    sum_over_classes,
    top_class_mass,
)
from secondlook.predictions import PredictFrom, Predictions
from secondlook.views import View, ViewSet, ViewsLike

IDENTITY = ViewSet([View()])

NORM_EXPONENTS = tuple(range(1, 11))
"""The exponents p from which `max-logit-pnorm` chooses."""

NO_NORM: Literal["none"] = "none"
"""The value of `p` for the softmax response instead of a normalized logit."""


@method(
    "msr",
    symbol="MSR(x)",
    summary="maximum softmax response of the image itself; the baseline",
    words="confidence in the image itself",
    is_probability=True,
)
def msr(preds: Predictions, *, top_k: int, temperature: Temperature = None) -> Float64Array:
    """Return max_c s_c(x), for k > 1 the sum of the k largest. [N]"""
    return _compute_response(preds, IDENTITY, top_k, temperature)


def _compute_class_mass(block: Block, temperature: float | None = None, **_: object) -> tuple[Float64Array, Combine]:
    outputs = block.outputs
    if temperature is not None:  # scales the mean over the members, like `mean`
        outputs = [apply_temperature(average_members(outputs), temperature)]
    mass = np.stack([class_mass(one, block.classes) for one in outputs], axis=1)
    return mass[None], lambda means: means[0]


@method(
    "mean",
    symbol="MSR(D)",
    summary="mean softmax output of the predicted class over the views; the method of the paper",
    words="mean confidence over views",
    is_probability=True,
    takes_block=True,
    view_means=_compute_class_mass,
)
def mean(block: Block, *, views: ViewsLike | None = None, temperature: float | None = None) -> Float64Array:
    """Return s_c(D) of the predicted class c, for k > 1 summed over the k predicted classes. [n]

    `views` restricts the mean to some views and the identity; the block then has only these. The predicted class does
    not change.
    """
    outputs = apply_temperature(average_members(block.outputs), temperature)
    return sum_over_classes(outputs.mean(axis=1), block.classes)


@method(
    "view",
    symbol="MSR(t(x))",
    summary="maximum softmax response of a single view",
    words="confidence in one view",
    parameter="TEXT",
    is_probability=True,
)
def view(preds: Predictions, text: str, *, top_k: int, temperature: Temperature = None) -> Float64Array:
    """Return max_c s_c(t(x)) for the view t of this text, for k > 1 the sum of the k largest. [N]"""
    return _compute_response(preds, [preds.views.resolve(text)], top_k, temperature)


@method(
    "zero",
    symbol="ZERO(D)",
    summary="share of the most confident views that vote for the predicted class; mean output breaks ties",
    words="share of confident views that agree",
    takes_block=True,
)
def zero(block: Block, *, share: float = 0.1) -> Float64Array:
    """Return (votes + s) / (m + 1) over the m outputs with the smallest entropy, a fraction `share` of all. [n]

    An output votes for its largest class. `votes` is the number of votes for the predicted class, and s <= 1 is the
    mean output of that class, which breaks ties. For k > 1, both are for the k predicted classes.
    Farina et al. (2024), "Frustratingly Easy Test-Time Adaptation of Vision-Language Models".
    """
    if not is_number(share) or not 0 < share <= 1:
        expected = "is invalid; expected the fraction of the views to keep, above 0 and at most 1"
        raise ConfidenceError(expected, argument="share", value=share)
    outputs = np.concatenate(block.outputs, axis=1)
    entropies = -(outputs * np.log(np.where(outputs > 0, outputs, 1.0))).sum(axis=2)
    n_kept = max(1, int(share * outputs.shape[1]))  # rounded down, like the authors' code
    kept = np.take_along_axis(outputs, entropies.argsort(axis=1, kind="stable")[:, :n_kept, None], axis=1)
    votes = (kept.argmax(axis=2)[:, :, None] == block.classes[:, None, :]).any(axis=2).sum(axis=1)
    scores: Float64Array = (votes + class_mass(kept, block.classes).mean(axis=1)) / (n_kept + 1)
    return scores


def fit_exponent(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    on: PredictFrom = "image",
    temperature: Temperature = None,
    **_: object,
) -> dict[str, object]:
    """Return p of `max-logit-pnorm`: the exponent with the best AUROC among those that beat the softmax response.

    An exponent must be better by more than two standard errors of the paired difference. Otherwise it may be better by
    chance, and much worse on other images.
    """
    selected = _select_views(preds, on)
    classes = predicted_classes(preds, predict_from, top_k)
    correct = preds.correct(predict_from=predict_from, top_k=top_k)
    if correct.all() or not correct.any():
        return {"p": NO_NORM}
    response = _compute_placements(correct, _compute_mean_mass(selected, classes, temperature))
    gains: dict[float, float] = {}
    for p, values in zip(NORM_EXPONENTS, _compute_normalized_logits(selected, classes, NORM_EXPONENTS), strict=True):
        gain, error = _compare_placements(_compute_placements(correct, values), response)
        if gain > 2 * error:
            gains[p] = gain
    return {"p": max(gains, key=lambda p: gains[p]) if gains else NO_NORM}


@method(
    "max-logit-pnorm",
    symbol="z_c / |z|_p",
    summary="centered logit of the predicted class divided by the p-norm of all logits, p tuned on labeled images",
    words="normalized score of the image itself",
    needs=("logits",),
    fitted=("p",),
    fit=fit_exponent,
)
def max_logit_pnorm(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    on: PredictFrom = "image",
    p: float | Literal["none"] | None = None,
    temperature: Temperature = None,
) -> Float64Array:
    """Return the sum over the predicted classes of z_c / |z|_p, with z centered to mean 0. [N]

    By default, p is the exponent from 1 to 10 with the best AUROC of error detection on these images, which must be
    labeled. If none beats the softmax response by more than two standard errors, or for p='none', the softmax response
    is returned. `temperature` only applies to this fallback.
    """
    chosen: object = p
    if p is None:
        if not preds.has_labels:
            repair = Repair("pass labeled predictions, or {p}", p=ANY)
            raise ConfidenceError("method 'max-logit-pnorm' needs labels to tune p", repair=repair)
        chosen = fit_exponent(preds, predict_from=predict_from, top_k=top_k, on=on, temperature=temperature)["p"]
    selected = _select_views(preds, on)
    classes = predicted_classes(preds, predict_from, top_k)
    if chosen == NO_NORM:
        return _compute_mean_mass(selected, classes, temperature)
    if not is_number(chosen) or chosen <= 0:
        expected = "is invalid; expected the exponent of the norm, above 0, or 'none' for the softmax response"
        raise ConfidenceError(expected, argument="p", value=p)
    values: Float64Array = _compute_normalized_logits(selected, classes, (float(chosen),))[0]
    return values


def _compute_by_block(
    preds: Predictions, temperature: Temperature, compute: Callable[[slice, Float64Array], Array]
) -> Float64Array:
    """Apply `compute` to blocks: a slice of images and their scaled probabilities float64 [n, V, C]. -> [N]"""
    scale = resolve_temperature(preds, temperature)
    values = np.empty(preds.n_images)
    for rows, block in preds.blocks():
        values[rows] = compute(rows, apply_temperature(block, scale))
    return values


def _compute_response(preds: Predictions, views: ViewsLike, top_k: int, temperature: Temperature) -> Float64Array:
    """Return the sum of the k largest probabilities of the last of the given views. [N]"""
    return _compute_by_block(
        preds.select(views=views), temperature, lambda _, block: top_class_mass(block[:, -1], top_k)
    )


def _compute_mean_mass(preds: Predictions, classes: IntArray, temperature: Temperature) -> Float64Array:
    """Return the probability of the classes, averaged over the views. int64 [N, k] -> [N]"""
    return _compute_by_block(
        preds, temperature, lambda rows, block: sum_over_classes(block.mean(axis=1), classes[rows])
    )


def _select_views(preds: Predictions, on: PredictFrom) -> Predictions:
    if on not in ("image", "views"):
        expected = "is unknown; expected 'image', or 'views' for the mean over all views"
        raise ConfidenceError(expected, argument="on", value=on)
    return preds.select(views=IDENTITY) if on == "image" else preds


def _iter_mean_logits(preds: Predictions) -> Iterator[tuple[slice, Float64Array]]:
    """Yield blocks of images and their mean logits over members and views, float64 [n, C]."""
    rows = preds.block_rows
    for blocks in zip(*(member.logit_blocks(rows) for member in list_members(preds)), strict=True):
        yield blocks[0][0], np.mean([block.mean(axis=1) for _, block in blocks], axis=0)


def _compute_normalized_logits(preds: Predictions, classes: IntArray, exponents: tuple[float, ...]) -> Float64Array:
    """Return the centered logits of the classes over each norm of all logits, float64 [len(exponents), N]."""
    values = np.empty((len(exponents), preds.n_images))
    for rows, logits in _iter_mean_logits(preds):
        logits -= logits.mean(axis=1, keepdims=True)
        for index, p in enumerate(exponents):
            values[index, rows] = sum_over_classes(logits / _compute_norm(logits, p), classes[rows])
    return values


def _compute_norm(values: Float64Array, p: float) -> Float64Array:
    """Return the p-norm of each row, 1 for a row of zeros; scaled to prevent overflow. [n, C] -> [n, 1]"""
    largest: Array = np.abs(values).max(axis=1, keepdims=True)
    largest[largest == 0] = 1.0
    norm: Float64Array = largest * (np.abs(values / largest) ** p).sum(axis=1, keepdims=True) ** (1 / p)
    return np.where(norm > 0, norm, 1.0)


def _compute_placements(correct: BoolArray, confidence: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return the fraction of errors below each correct prediction, and of correct predictions above each error.

    Ties count half; there must be both. The mean of each is the AUROC; the variances give its standard error (DeLong).
    """
    from scipy.stats import rankdata

    own_correct, own_errors = confidence[correct], confidence[~correct]
    ranks = rankdata(confidence)
    errors_below = (ranks[correct] - rankdata(own_correct)) / len(own_errors)
    correct_above = 1 - (ranks[~correct] - rankdata(own_errors)) / len(own_correct)
    return errors_below, correct_above


def _compare_placements(
    first: tuple[Float64Array, Float64Array], second: tuple[Float64Array, Float64Array]
) -> tuple[float, float]:
    """Return the difference of two AUROCs on the same images, and its standard error; infinite for a single one."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    if min(map(len, differences)) < 2:
        return float(differences[0].mean()), np.inf
    variance = sum(float(one.var(ddof=1)) / len(one) for one in differences)
    return float(differences[0].mean()), float(np.sqrt(variance))
