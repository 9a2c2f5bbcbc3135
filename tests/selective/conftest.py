"""Predictions and a classifier with errors where it is unsure."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.predictions import Predictions

VIEWS = "identity hflip shift:1,0 shift:0,1"


@pytest.fixture(scope="session")
def preds() -> Predictions:
    """800 images x 4 views x 5 classes; the answers wander around the truth, more so for some images."""
    rng = np.random.default_rng(7)
    labels = rng.integers(5, size=800)
    clear = rng.gamma(2.0, 3.0, size=800)
    logits = rng.normal(size=(800, 4, 5)) + 0.7 * rng.normal(size=(800, 1, 5))
    logits[np.arange(800), :, labels] += clear[:, None]
    return Predictions(logits=logits, views=VIEWS, labels=labels)


@pytest.fixture(scope="session")
def bright_or_dark() -> tuple[Array, Array]:
    """600 gray-ish images uint8 [600, 6, 6, 3] with labels 0 (dark) and 1 (bright), some hard to tell."""
    rng = np.random.default_rng(11)
    labels = rng.integers(2, size=600)
    mean = 128 + np.where(labels == 1, 1, -1) * rng.gamma(2.0, 25.0, size=600) + rng.normal(0, 30, size=600)
    pixels = mean[:, None, None, None] + rng.normal(0, 30, size=(600, 6, 6, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="session")
def brightness() -> Callable[[Any], Any]:
    """Return a function from images to the probabilities of dark and bright."""

    def probabilities(batch: Any) -> Any:
        bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 128.0) / 12.0))
        return np.stack([1 - bright, bright], axis=1)

    return probabilities
