"""Labeled predictions whose views help."""

import numpy as np
import pytest

from secondlook.predictions import Predictions

VIEWS = "identity hflip shift:1,0 shift:0,1"


@pytest.fixture(scope="session")
def preds() -> Predictions:
    """600 images x 4 views x 5 classes."""
    rng = np.random.default_rng(7)
    labels = rng.integers(5, size=600)
    logits = 2.0 * rng.normal(size=(600, 4, 5)) + rng.normal(size=(600, 1, 5))
    logits[np.arange(600), :, labels] += rng.gamma(2.0, 2.0, size=600)[:, None]
    names = ("ant", "bee", "cow", "dog", "elk")
    return Predictions(logits=logits, views=VIEWS, labels=labels, class_names=names)


@pytest.fixture(scope="session")
def unknown() -> Predictions:
    """200 unknown images."""
    rng = np.random.default_rng(8)
    logits = 2.0 * rng.normal(size=(200, 4, 5)) + rng.normal(size=(200, 1, 5))
    return Predictions(logits=logits, views=VIEWS)
