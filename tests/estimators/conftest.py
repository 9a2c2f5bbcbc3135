from collections.abc import Callable

import numpy as np
import pytest

from secondlook.predictions import Predictions

VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1", "shift:-1,0", "shift:0,-1")


def make_predictions(
    n: int = 40, v: int = 4, c: int = 6, *, seed: int = 0, members: int = 0, labels: bool = True, logits: bool = True
) -> Predictions:
    """Random logits around one leading class per image, the same for all views and members."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, c, n)
    strength = generator.uniform(0, 8, n)

    def table() -> Predictions:
        values = generator.normal(size=(n, v, c))
        values[np.arange(n), :, truth] += strength[:, None]
        names = VIEWS[:v]
        if logits:
            return Predictions(logits=values, views=names, labels=truth if labels else None)
        shares = np.exp(values) / np.exp(values).sum(axis=2, keepdims=True)
        return Predictions(probabilities=shares, views=names, labels=truth if labels else None)

    if not members:
        return table()
    tables = [table() for _ in range(members)]
    return Predictions(members=tables, views=tables[0].views)


@pytest.fixture
def predictions() -> Callable[..., Predictions]:
    return make_predictions
