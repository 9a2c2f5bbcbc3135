"""Scores that practitioners use on a black box, of the image itself (on="x") or of the mean over views (on="D")."""

from collections.abc import Iterator

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray, softmax
from secondlook.errors import ConfidenceError
from secondlook.estimators.logits import mean_logit_blocks
from secondlook.estimators.registry import method
from secondlook.estimators.responses import On
from secondlook.estimators.shares import predicted_classes, share
from secondlook.estimators.temperature import Temperature, chosen_temperature, tempered, tempered_blocks
from secondlook.predictions import PredictFrom, Predictions, resolve_positions

NORMS = tuple(range(1, 11))
"""The exponents p from which `max-logit-pnorm` chooses."""


@method("entropy", symbol="-H(s)", summary="negative entropy of the output, in nats")
def entropy(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    on: On = "image",
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return sum_c s_c log s_c: of the whole output, whatever class is predicted and however many count. [N]"""
    values = np.empty(preds.n_images)
    for rows, outputs in _outputs(preds, on, chosen_temperature(preds, temperature, tune_on)):
        values[rows] = (outputs * np.log(np.where(outputs > 0, outputs, 1.0))).sum(axis=1)
    return values


@method("margin", symbol="s_c - s_next", summary="predicted class's output less the largest of the other classes")
def margin(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    on: On = "image",
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return the least output of the k predicted classes less the largest other one; below 0 where they lose. [N]"""
    classes = predicted_classes(preds, predict_from, top_k)
    values = np.empty(preds.n_images)
    for rows, outputs in _outputs(preds, on, chosen_temperature(preds, temperature, tune_on)):
        least = np.take_along_axis(outputs, classes[rows], axis=1).min(axis=1)
        np.put_along_axis(outputs, classes[rows], 0.0, axis=1)
        values[rows] = least - outputs.max(axis=1)
    return values


@method("doctor", symbol="sum s^2", summary="DOCTOR's probability that two draws from the output agree (1 - Gini)")
def doctor(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    on: On = "image",
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return sum_c s_c^2, which orders images as DOCTOR's D_alpha: of the whole output, whatever is predicted. [N]"""
    values = np.empty(preds.n_images)
    for rows, outputs in _outputs(preds, on, chosen_temperature(preds, temperature, tune_on)):
        values[rows] = (outputs**2).sum(axis=1)
    return values


@method(
    "mean-logit",
    symbol="softmax(z(D))",
    summary="softmax of the mean logits over the views",
    needs=("logits",),
    is_probability=True,
)
def mean_logit(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return softmax(mean of z(x_i)) at the predicted class, for k > 1 summed over the k predicted ones. [N]"""
    scale = chosen_temperature(preds, temperature, tune_on)
    classes = predicted_classes(preds, predict_from, top_k)
    values = np.empty(preds.n_images)
    for rows, logits in mean_logit_blocks(preds):
        outputs = softmax(logits)
        values[rows] = share(outputs if scale is None else tempered(outputs, scale), classes[rows])
    return values


@method(
    "max-logit-pnorm",
    symbol="z_c / |z|_p",
    summary="predicted class's centerd logit over the p-norm of all, p chosen on labeled images",
    needs=("logits",),
)
def max_logit_pnorm(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    on: On = "image",
    p: float | None = None,
    temperature: Temperature = None,
    tune_on: object = None,
) -> Float64Array:
    """Return sum over the predicted classes of z_c / |z|_p, z centerd to mean 0. [N]

    Where `p` is not given, the one of 1 to 10 is taken that best detects errors (AUROC) among the labeled images of
    `tune_on`, or the softmax response where none beats that. `temperature` matters to this fallback alone.
    """
    looked_at = _looked_at(preds, on)
    classes = predicted_classes(preds, predict_from, top_k)
    if p is not None:
        values: Float64Array = _normed(looked_at, classes, (_checked_norm(p),))[0]
        return values
    if not preds.has_labels:
        raise ConfidenceError("confidence 'max-logit-pnorm' needs labels to choose p; give p= or labeled predictions.")
    fallback = _responses(looked_at, classes, chosen_temperature(preds, temperature, tune_on))
    candidates: list[Float64Array] = [fallback, *_normed(looked_at, classes, NORMS)]
    tuning = slice(None) if tune_on is None else resolve_positions(tune_on, preds.n_images)
    correct = preds.correct(predict_from=predict_from, top_k=top_k)[tuning]
    detection = [error_detection(correct, values[tuning]) for values in candidates]
    return candidates[int(np.argmax(detection))]


def error_detection(correct: BoolArray, confidence: Float64Array) -> float:
    """Probability that a right answer is surer than a wrong one, ties half (AUROC); 1/2 where one kind is missing."""
    from scipy.stats import rankdata

    n_right, n_wrong = int(correct.sum()), int((~correct).sum())
    if not n_right or not n_wrong:
        return 0.5
    return float((rankdata(confidence)[correct].sum() - n_right * (n_right + 1) / 2) / (n_right * n_wrong))


def _looked_at(preds: Predictions, on: On) -> Predictions:
    if on not in ("image", "views"):
        raise ConfidenceError(f"on is {on!r}; expected 'x' (the image itself) or 'D' (the mean over all views).")
    return preds.select(views="identity") if on == "image" else preds


def _outputs(preds: Predictions, on: On, temperature: float | None) -> Iterator[tuple[slice, Float64Array]]:
    """Yield (images, float64 [n, C]): s(x), or s(D)."""
    for rows, block in tempered_blocks(_looked_at(preds, on), temperature):
        yield rows, block.mean(axis=1)


def _responses(looked_at: Predictions, classes: IntArray, temperature: float | None) -> Float64Array:
    values = np.empty(looked_at.n_images)
    for rows, block in tempered_blocks(looked_at, temperature):
        values[rows] = share(block.mean(axis=1), classes[rows])
    return values


def _normed(looked_at: Predictions, classes: IntArray, norms: tuple[float, ...]) -> Float64Array:
    """Return the predicted classes' part of the centerd logits for each norm, float64 [len(norms), N]."""
    values = np.empty((len(norms), looked_at.n_images))
    for rows, logits in mean_logit_blocks(looked_at):
        logits -= logits.mean(axis=1, keepdims=True)
        for place, p in enumerate(norms):
            values[place, rows] = share(logits / _norm(logits, p), classes[rows])
    return values


def _norm(values: Float64Array, p: float) -> Float64Array:
    """Return the p-norm of each row, 1 for a row of zeros; scaled, so that no power overflows. [n, C] -> [n, 1]"""
    largest: Array = np.abs(values).max(axis=1, keepdims=True)
    largest[largest == 0] = 1.0
    norm: Float64Array = largest * (np.abs(values / largest) ** p).sum(axis=1, keepdims=True) ** (1 / p)
    return np.where(norm > 0, norm, 1.0)


def _checked_norm(p: object) -> float:
    if not isinstance(p, int | float) or not 0 < p < np.inf:
        raise ConfidenceError(f"p is {p!r}; expected the exponent of the norm, a number above 0.")
    return float(p)
