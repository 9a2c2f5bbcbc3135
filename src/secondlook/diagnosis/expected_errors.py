"""What a confidence says about the chance of an error."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array

_LEAST_DOUBT = 1e-12
_STEPS = 100


@dataclass(frozen=True)
class ErrorModel:
    """The chance of an error as a logistic function of the log odds of the confidence."""

    slope: float
    offset: float

    def chance(self, confidence: Float64Array) -> Float64Array:
        """Return the chance of an error at each confidence. [N] -> [N]"""
        return logistic(self.slope * log_odds(confidence) + self.offset)


def fit_error_model(confidence: Float64Array, correct: BoolArray) -> ErrorModel:
    """Fit the two numbers of the model by maximum likelihood; some twenty errors are enough. [N], bool [N]

    As Platt proposed, the labels are first moved a little towards one half, so that the fit stays finite where the
    confidence separates right from wrong without a fault.
    """
    features = np.stack([log_odds(confidence), np.ones(len(confidence))])
    n_right = int(correct.sum())
    n_wrong = len(correct) - n_right
    targets = np.where(correct, 1 / (n_right + 2), (n_wrong + 1) / (n_wrong + 2))
    fitted = np.zeros(2)
    for _ in range(_STEPS):
        chance = logistic(fitted @ features)
        curvature = (features * (chance * (1 - chance))) @ features.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, features @ (targets - chance))
        # A full Newton step may leave the region that its curvature was computed from.
        fitted += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    if fitted[0] >= 0:  # more confidence never means more errors: such a fit says that nothing is known
        return ErrorModel(0.0, float(np.log(n_wrong / n_right)))
    return ErrorModel(float(fitted[0]), float(fitted[1]))


def log_odds(chance: Float64Array) -> Float64Array:
    """Return log(p / (1 - p)), finite at 0 and 1 too."""
    odds: Float64Array = np.log(np.maximum(chance, _LEAST_DOUBT)) - np.log(np.maximum(1.0 - chance, _LEAST_DOUBT))
    return odds


def logistic(values: Float64Array) -> Float64Array:
    """Return 1 / (1 + exp(-values)), without overflow."""
    chance: Float64Array = 0.5 * (1.0 + np.tanh(0.5 * values))
    return chance
