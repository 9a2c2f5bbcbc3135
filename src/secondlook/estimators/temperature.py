"""Temperature scaling: softer or sharper probabilities, by one number for the whole classifier."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError
from secondlook.predictions import Predictions

Temperature = float | Literal["fit"] | None
"""A temperature, 'fit' to fit it to the labels, or None for no scaling."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
"""Range of fitted temperatures; if there are no errors, the likelihood alone has no maximum above 0."""
_MIN_LOG = -745.0  # about the log of the smallest float64: a probability stored as 0 stays finite


def apply_temperature(probabilities: Float64Array, temperature: float) -> Float64Array:
    """Return softmax(log(probabilities) / temperature), [..., C] -> [..., C]; for logits z this is softmax(z / T)."""
    scaled: Float64Array = (probabilities / probabilities.max(axis=-1, keepdims=True)) ** (1.0 / temperature)
    scaled /= scaled.sum(axis=-1, keepdims=True)
    return scaled


def iter_scaled_blocks(preds: Predictions, temperature: float | None) -> Iterator[tuple[slice, Float64Array]]:
    """Yield blocks of images and their scaled probabilities float64 [n, V, C]; an ensemble is averaged first."""
    for rows, block in preds.blocks():
        yield rows, block if temperature is None else apply_temperature(block, temperature)


def resolve_temperature(preds: Predictions, temperature: Temperature, tune_on: object = None) -> float | None:
    """Return the temperature as a number, fitted if 'fit', or None for no scaling."""
    if temperature is None:
        return None
    if isinstance(temperature, float | int) and 0 < temperature < np.inf:
        return float(temperature)
    if temperature != "fit":
        raise ConfidenceError(
            f"temperature is {temperature!r}; expected a number above 0, or 'fit' to fit it to the labels."
        )
    return fit_temperature(preds, tune_on)


def fit_temperature(preds: Predictions, tune_on: object = None) -> float:
    """Return the temperature that maximizes the likelihood of the labels, given the outputs for the image itself.

    `tune_on` (positions or a mask) selects the images to fit to; all by default. The log-likelihood is concave in
    1 / T, so T is the root of its slope; each step of the search reads the predictions once.
    """
    from scipy.optimize import brentq

    if not preds.has_labels:
        raise ConfidenceError("temperature='fit' needs labels; pass labeled predictions, or a number as temperature=.")
    tuning = preds.select(views="identity", images=tune_on)
    if _compute_slope(tuning, 1 / MIN_TEMPERATURE) <= 0:
        return MIN_TEMPERATURE
    if _compute_slope(tuning, 1 / MAX_TEMPERATURE) >= 0:
        return MAX_TEMPERATURE
    log_inverse = brentq(
        lambda log_b: _compute_slope(tuning, np.exp(log_b)),
        -np.log(MAX_TEMPERATURE),
        -np.log(MIN_TEMPERATURE),
        xtol=1e-6,
    )
    return float(np.exp(-log_inverse))


def _compute_slope(tuning: Predictions, inverse_temperature: float) -> float:
    """Return the derivative of the mean negative log-likelihood of the labels with respect to 1 / T."""
    total = 0.0
    for rows, block in tuning.blocks():
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(block[:, 0]), _MIN_LOG)
        expected = (logs * apply_temperature(block[:, 0], 1 / inverse_temperature)).sum(axis=1)
        total += float((expected - np.take_along_axis(logs, tuning.labels[rows, None], axis=1)[:, 0]).sum())
    return total / tuning.n_images
