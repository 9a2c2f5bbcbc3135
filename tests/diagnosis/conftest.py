"""Synthetic pools with views of known quality; noisy images of ten classes, and classifiers trained on them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing
from secondlook.predictions import Predictions

MakePool = Callable[..., Predictions]
HARMLESS = "identity hflip shift:1,0 shift:-1,0 shift:0,1 shift:0,-1 rotate:2 rotate:-2 zoom:1.04 gamma:0.85"
CLASSES = 5


@pytest.fixture
def make_pool() -> MakePool:
    """Return a factory of labeled predictions: equally good views with independent noise, and a random 'vflip'."""

    def make(
        n_images: int = 400, *, views: list[str] | None = None, seed: int = 0, lift: float = 4.0, labeled: bool = True
    ) -> Predictions:
        texts = [*HARMLESS.split(), "vflip"] if views is None else views
        generator = np.random.default_rng(seed)
        labels = generator.integers(CLASSES, size=n_images)
        logits = generator.normal(0, 1.6, (n_images, 1, CLASSES)) + generator.normal(
            0, 0.5, (n_images, len(texts), CLASSES)
        )
        logits[np.arange(n_images), :, labels] += lift
        for position, text in enumerate(texts):
            if "vflip" in text:
                logits[:, position] = generator.normal(0, 2.5, (n_images, CLASSES))
        return Predictions(logits=logits.astype(np.float32), views=texts, labels=labels if labeled else None)

    return make


@pytest.fixture
def weak_pool() -> Predictions:
    """400 images: the rotations lower 20 and 10 of the 90 uncertain correct predictions, 'vflip' loses all."""
    mass = np.tile(np.where(np.arange(400) < 300, 0.99, 0.6), (5, 1))
    mass[:, 390:] = 0.4  # errors in every view
    mass[2, 370:390] = 0.55
    mass[3, 380:390] = 0.55
    mass[4] = 0.1
    return Predictions(
        probabilities=np.stack([mass.T, 1 - mass.T], axis=2),
        views="identity hflip rotate:8 rotate:6 vflip",
        labels=np.zeros(400, dtype=np.int64),
    )


@pytest.fixture
def misleading_pool() -> MakePool:
    """Return a factory of views with the classes and the doubt of the image itself, but at other images.

    No view is harmful, and each of them makes the mean confidence worse. `share` is the weight of that doubt.
    """

    def make(n_images: int = 1000, *, seed: int = 0, share: float = 1.0, labeled: bool = True) -> Predictions:
        generator = np.random.default_rng(seed)
        wrong = np.arange(n_images) % 10 == 0
        image = np.clip(np.where(wrong, 0.6, 0.9) + generator.normal(0, 0.1, n_images), 0.51, 0.99)
        views = [share * generator.permutation(image) + (1 - share) * image for _ in range(6)]
        mass = np.stack([image, *views], axis=1)
        texts = ["identity", *(f"shift:{pixels},0" for pixels in range(1, 7))]
        labels = wrong.astype(np.int64) if labeled else None
        return Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views=texts, labels=labels)

    return make


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
