"""Made-up pools with known good, useless and harmful views."""

from collections.abc import Callable

import numpy as np
import pytest

from secondlook.predictions import Predictions

Pools = Callable[..., Predictions]
SANE = "identity hflip shift:1,0 shift:-1,0 shift:0,1 shift:0,-1 rotate:2 rotate:-2 zoom:1.04 gamma:0.85"
CLASSES = 5


@pytest.fixture
def made_pool() -> Pools:
    """Return a maker of labeled predictions: views alike but for their own noise, 'vflip' answers at random."""

    def make(
        n_images: int = 400, *, views: list[str] | None = None, seed: int = 0, lift: float = 4.0, labeled: bool = True
    ) -> Predictions:
        texts = [*SANE.split(), "vflip"] if views is None else views
        generator = np.random.default_rng(seed)
        labels = generator.integers(CLASSES, size=n_images)
        logits = generator.normal(0, 1.6, (n_images, 1, CLASSES)) + generator.normal(
            0, 0.5, (n_images, len(texts), CLASSES)
        )
        logits[np.arange(n_images), :, labels] += lift
        for place, text in enumerate(texts):
            if "vflip" in text:
                logits[:, place] = generator.normal(0, 2.5, (n_images, CLASSES))
        return Predictions(logits=logits.astype(np.float32), views=texts, labels=labels if labeled else None)

    return make
