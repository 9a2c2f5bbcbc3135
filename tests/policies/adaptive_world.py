"""A world with views that agree more or less, for tests of adaptive looking."""

import numpy as np

from secondlook.predictions import Predictions

VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1", "shift:-1,0", "shift:0,-1")
NOISE = (1.5, 1.0, 3.0, 0.5, 2.0, 1.0)
"""How much each view scatters: some tell more about the mean over all than others."""


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
