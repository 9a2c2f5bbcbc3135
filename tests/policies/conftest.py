"""Predictions with errors where the confidence is low, and builders for tests of policies."""

from typing import TypeVar

import numpy as np
import pytest

from secondlook.policies import Schedule
from secondlook.predictions import Predictions

VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1", "shift:-1,0", "shift:0,-1")
NOISE = (1.5, 1.0, 3.0, 0.5, 2.0, 1.0)
"""How much each view scatters: some tell more about the mean over all than others."""

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return a part of a policy that must be there."""
    assert value is not None
    return value


def make_world(n_images: int = 2000, *, seed: int = 0, members: int = 0, labels: bool = True) -> Predictions:
    """Return predictions for images of different difficulty, about 85 % of them correct."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, 5, n_images)
    common = generator.gamma(2.0, 2.5, n_images)[:, None] * np.eye(5)[label] + generator.normal(size=(n_images, 5))

    def make_member() -> Predictions:
        scatter = np.array(NOISE)[:, None] * generator.normal(size=(n_images, len(VIEWS), 5))
        logits = (common[:, None] + scatter).astype(np.float32)
        return Predictions(logits=logits, views=VIEWS, labels=label if labels else None)

    if not members:
        return make_member()
    return Predictions(members=[make_member() for _ in range(members)], views=VIEWS)


def relabel(preds: Predictions, images: np.ndarray) -> Predictions:
    """Return predictions with another label for some images."""
    labels = np.array(preds.labels)
    labels[images] = (labels[images] + 1) % 5
    return Predictions(logits=preds.logits, views=preds.views, labels=labels)


def make_schedule(
    changes: tuple[float, ...] = (-0.5, -0.2, 0.0),
    spreads: tuple[float, ...] = (1.5, 0.7, 0.0),
    margin: float = 1.0,
    full_looks: int | None = None,
) -> Schedule:
    return Schedule(
        views=VIEWS[: len(changes)],
        method="blend",
        changes=changes,
        spreads=spreads,
        margin=margin,
        tolerance=0.01,
        full_looks=full_looks or len(changes),
        images=1000,
        threshold=0.9,
    )


@pytest.fixture(scope="session")
def world() -> Predictions:
    """3,000 images x 6 views x 5 classes, with views that agree more or less."""
    return make_world(3000)


@pytest.fixture(scope="session")
def preds() -> Predictions:
    """800 images x 4 views x 5 classes; the logits scatter around the label, more so for some images."""
    rng = np.random.default_rng(7)
    labels = rng.integers(5, size=800)
    margin = rng.gamma(2.0, 3.0, size=800)
    logits = rng.normal(size=(800, 4, 5)) + 0.7 * rng.normal(size=(800, 1, 5))
    logits[np.arange(800), :, labels] += margin[:, None]
    return Predictions(logits=logits, views="identity hflip shift:1,0 shift:0,1", labels=labels)
