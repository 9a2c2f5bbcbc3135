"""Warnings about labeled predictions that suggest a wrong setup, without another forward pass."""

import math
import warnings
from weakref import WeakSet

import numpy as np

from secondlook.diagnosis.class_order import is_guessing
from secondlook.diagnosis.diagnosis import list_first
from secondlook.diagnosis.setup_check import SetupWarning
from secondlook.predictions import Predictions

MIN_IMAGES = 50
"""Smallest number of images for a check."""
MAX_IMAGES = 10_000
BY_CHANCE = 1e-4
"""P-value above which classes may be missing by chance, if all classes are equally frequent."""
LARGE_GAP = 0.25
"""Limit for mean confidence minus accuracy, beyond two standard errors; none of 14 classifiers exceeds 0.1."""
GUESSING_GAP = 0.1
"""The same limit if the accuracy is no better than guessing."""

_warned: WeakSet[Predictions] = WeakSet()


def warn_about_setup(preds: Predictions) -> tuple[str, ...]:
    """Warn of suspicious labeled predictions, once per `Predictions` object; return the new warnings."""
    if preds in _warned or not preds.has_labels or preds.n_images < MIN_IMAGES:
        return ()
    _warned.add(preds)
    found = filter(None, (_describe_missing_classes(preds), _describe_accuracy(preds)))
    sentences = tuple(f"{SetupWarning.START}{sentence}." for sentence in found)
    for sentence in sentences:
        warnings.warn(sentence, SetupWarning, stacklevel=3)
    return sentences


def _describe_missing_classes(preds: Predictions) -> str:
    """Describe classes without images, unless their number is plausible by chance."""
    from scipy.special import gammainc

    if preds.class_names is None:
        return ""
    missing = np.flatnonzero(np.bincount(preds.labels, minlength=preds.n_classes) == 0).tolist()
    expected = preds.n_classes * (1 - 1 / preds.n_classes) ** preds.n_images
    if not missing or gammainc(len(missing), expected) > BY_CHANCE:  # approximate probability of at least this number
        return ""
    names = list_first([preds.class_names[index] for index in missing])
    found = f"{len(missing):,} of the {preds.n_classes:,} classes have no labeled image ({names})"
    return f"{found}, so the results hold for the other classes only"


def _describe_accuracy(preds: Predictions) -> str:
    """Describe an accuracy that is far below the confidence."""
    n_images = min(preds.n_images, MAX_IMAGES)
    sample = preds.select(views="identity", images=np.arange(n_images) * preds.n_images // n_images)
    accuracy = float(sample.correct().mean())
    confidence = sum(float(block.max(axis=2).sum()) for _, block in sample.blocks()) / n_images
    is_guessed = is_guessing(round(accuracy * n_images), n_images, preds.n_classes)
    limit = GUESSING_GAP if is_guessed else LARGE_GAP + 2 * math.sqrt(accuracy * (1 - accuracy) / n_images)
    if confidence - accuracy <= limit:
        return ""
    level = "no better than guessing" if is_guessed else "far below"
    seen = f"the accuracy, {100 * accuracy:.1f} % on {n_images:,} images, is {level}"
    seen += (
        f", although the mean confidence is {100 * confidence:.1f} %"
        if is_guessed
        else (f" the mean confidence, {100 * confidence:.1f} %")
    )
    return f"{seen}; check the preprocessing, the labels and the order of the classes"
