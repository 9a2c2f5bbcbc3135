"""Labeled predictions, and matplotlib without a screen."""

from collections.abc import Iterator

import numpy as np
import pytest

from secondlook.predictions import Predictions


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    """Draw without a screen, and close all figures afterwards."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def preds() -> Predictions:
    """400 images x 4 views x 3 classes; 'vflip' is harmful."""
    rng = np.random.default_rng(3)
    labels = rng.integers(3, size=400)
    logits = rng.normal(size=(400, 4, 3)) + 1.5 * rng.normal(size=(400, 1, 3))
    logits[np.arange(400), :, labels] += 3.0
    logits[:, 3] = rng.normal(0, 3, (400, 3))
    return Predictions(logits=logits, views="identity hflip shift:1,0 vflip", labels=labels)
