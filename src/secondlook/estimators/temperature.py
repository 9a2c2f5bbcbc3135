"""Temperature: probabilities made softer or sharper before they are scored, by one number for the whole classifier."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError
from secondlook.predictions import Predictions

Temperature = float | Literal["fit"] | None

SHARPEST, SOFTEST = 0.01, 100.0
"""The range in which a temperature is looked for; without any error the likelihood alone would go on to 0."""
_LEAST_LOG = -745.0  # about the log of the least float64: a probability stored as 0 stays comparable


def tempered(probabilities: Float64Array, temperature: float) -> Float64Array:
    """Return softmax(log(probabilities) / temperature), [..., C] -> [..., C]; for logits z this is softmax(z / T)."""
    scaled: Float64Array = (probabilities / probabilities.max(axis=-1, keepdims=True)) ** (1.0 / temperature)
    scaled /= scaled.sum(axis=-1, keepdims=True)
    return scaled


def tempered_blocks(preds: Predictions, temperature: float | None) -> Iterator[tuple[slice, Float64Array]]:
    """Yield (images, float64 [n, V, C]), each view at that temperature; of an ensemble, the mean over its members."""
    for rows, block in preds.blocks():
        yield rows, block if temperature is None else tempered(block, temperature)


def chosen_temperature(preds: Predictions, asked: Temperature, tune_on: object = None) -> float | None:
    """Return the temperature to use: as given, fitted for 'fit', None where none is asked for."""
    if asked is None:
        return None
    if isinstance(asked, float | int) and 0 < asked < np.inf:
        return float(asked)
    if asked != "fit":
        raise ConfidenceError(f"temperature is {asked!r}; expected a number above 0, or 'fit' to fit it to the labels.")
    return fit_temperature(preds, tune_on)


def fit_temperature(preds: Predictions, tune_on: object = None) -> float:
    """Return the temperature with the greatest likelihood of the labels, by the untransformed images.

    `tune_on` (positions or a mask) names the images to fit to, all by default. With b = 1 / T the log-likelihood is
    concave, so T is where its slope changes sign; each step of the search reads the predictions once.
    """
    from scipy.optimize import brentq

    if not preds.has_labels:
        raise ConfidenceError(
            "temperature='fit' needs labels; give the temperature as a number, or labeled predictions."
        )
    tuning = preds.select(views="identity", images=tune_on)
    if _slope(tuning, 1 / SHARPEST) <= 0:
        return SHARPEST
    if _slope(tuning, 1 / SOFTEST) >= 0:
        return SOFTEST
    log_inverse = brentq(lambda log_b: _slope(tuning, np.exp(log_b)), -np.log(SOFTEST), -np.log(SHARPEST), xtol=1e-6)
    return float(np.exp(-log_inverse))


def _slope(tuning: Predictions, inverse_temperature: float) -> float:
    """Return the slope of the mean negative log-likelihood of the labels in 1 / T."""
    total = 0.0
    for rows, block in tuning.blocks():
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(block[:, 0]), _LEAST_LOG)
        expected = (logs * tempered(block[:, 0], 1 / inverse_temperature)).sum(axis=1)
        total += float((expected - np.take_along_axis(logs, tuning.labels[rows, None], axis=1)[:, 0]).sum())
    return total / tuning.n_images
