"""Noisy color images of ten classes, and linear classifiers that were trained with any preprocessing."""

from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing

N_CLASSES = 10


class LinearModel:
    """An estimator that assigns images to the nearest prototype, in pixels as they were preprocessed in training."""

    classes_ = np.arange(N_CLASSES)

    def __init__(self, prototypes: Array, trained_with: Preprocessing, noise: float = 60.0) -> None:
        features = trained_with.normalize(trained_with.fit(prototypes))
        self.weights = features.reshape(len(features), -1).T.astype(np.float64)
        self.sharpness = 1 / (noise * trained_with.scale / min(trained_with.std)) ** 2

    def fit(self) -> None: ...

    def predict(self) -> None: ...

    def predict_proba(self, features: Array) -> Array:
        logits = self.sharpness * (features @ self.weights - 0.5 * (self.weights**2).sum(axis=0))
        outputs: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
        outputs /= outputs.sum(axis=1, keepdims=True)
        return outputs


class Photos:
    """Images uint8 [N, 8, 8, 3] of ten prototypes with noise, sorted by class as in folders, and their labels."""

    def __init__(self, n_images: int = 600, contrast: float = 70.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pixels = rng.normal(0, contrast / 6, (N_CLASSES, 8, 8, 3)) + rng.normal(0, contrast / 6, (N_CLASSES, 1, 1, 3))
        self.prototypes = np.clip(110 + pixels, 0, 255).astype(np.uint8)
        self.labels = np.sort(rng.integers(N_CLASSES, size=n_images))
        noisy = self.prototypes[self.labels] + rng.normal(0, 60, (n_images, 8, 8, 3))
        self.images = np.clip(noisy, 0, 255).astype(np.uint8)

    def train(self, **settings: Any) -> LinearModel:
        """Return a model that was trained with these preprocessing settings."""
        return LinearModel(self.prototypes, Preprocessing(layout=settings.pop("layout", "NHWC"), **settings))


@pytest.fixture(scope="session")
def photos() -> Photos:
    return Photos()
