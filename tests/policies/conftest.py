"""Predictions with errors where the confidence is low."""

import numpy as np
import pytest

from secondlook.predictions import Predictions


@pytest.fixture(scope="session")
def preds() -> Predictions:
    """800 images x 4 views x 5 classes; the logits scatter around the label, more so for some images."""
    rng = np.random.default_rng(7)
    labels = rng.integers(5, size=800)
    margin = rng.gamma(2.0, 3.0, size=800)
    logits = rng.normal(size=(800, 4, 5)) + 0.7 * rng.normal(size=(800, 1, 5))
    logits[np.arange(800), :, labels] += margin[:, None]
    return Predictions(logits=logits, views="identity hflip shift:1,0 shift:0,1", labels=labels)
