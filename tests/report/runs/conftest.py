"""A classifier of dark and bright images, images for it, and its run."""

from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array

VIEWS = "identity hflip vflip"
QUIET = sl.Execution(progress=False)


def classify(batch: Array) -> Array:
    """Return probabilities of dark and bright. uint8 [N, H, W, 3] -> float64 [N, 2]"""
    bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 128.0) / 12.0))
    return np.stack([1 - bright, bright], axis=1)


@pytest.fixture(scope="module")
def classifier() -> sl.Classifier:
    return sl.load_classifier(classify, output="probabilities", name="brightness-v1")


def write_archive(folder: Path, n_images: int) -> str:
    """Write dark and bright images, some hard to distinguish, and return their spec."""
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=n_images)
    mean = 128 + np.where(labels == 1, 1, -1) * rng.gamma(2.0, 25.0, size=n_images) + rng.normal(0, 25, size=n_images)
    pixels = mean[:, None, None, None] + rng.normal(0, 25, size=(n_images, 6, 6, 3))
    images = np.clip(pixels, 0, 255).astype(np.uint8)
    np.savez(folder / "data.npz", images=images, labels=labels, class_names=["dark", "bright"])
    return f"npz:{folder / 'data.npz'}"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return write_archive(tmp_path, 500)


@pytest.fixture
def run(classifier: sl.Classifier, archive: str, tmp_path: Path) -> sl.Run:
    return sl.create_run(classifier, archive, out=tmp_path / "run", views=VIEWS, resamples=20, execution=QUIET)
