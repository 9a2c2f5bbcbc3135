"""Random predictions, and the options that some methods require."""

from typing import Any

import numpy as np

from secondlook.predictions import Predictions

LEARNED_WEIGHTS = {
    "intercept": -0.5,
    "log_odds": 0.3,
    "log_margin": 0.2,
    "margin": 0.7,
    "logit_norm": 1.1,
    "image_log_odds": 0.1,
}
VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1", "shift:-1,0", "shift:0,-1")


def make_predictions(
    n: int = 40, v: int = 4, c: int = 6, *, seed: int = 0, members: int = 0, labels: bool = True, logits: bool = True
) -> Predictions:
    """Return random outputs around the label of each image, which leads in all views and members alike."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, c, n)
    strength = generator.uniform(0, 8, n)

    def make_member() -> Predictions:
        values = generator.normal(size=(n, v, c))
        values[np.arange(n), :, label] += strength[:, None]
        views = VIEWS[:v]
        if logits:
            return Predictions(logits=values, views=views, labels=label if labels else None)
        probabilities = np.exp(values) / np.exp(values).sum(axis=2, keepdims=True)
        return Predictions(probabilities=probabilities, views=views, labels=label if labels else None)

    if not members:
        return make_member()
    tables = [make_member() for _ in range(members)]
    return Predictions(members=tables, views=tables[0].views)


def make_options(name: str, preds: Predictions) -> dict[str, Any]:
    """Return the options that a method requires."""
    if name == "learned":
        return dict(LEARNED_WEIGHTS)
    return {"p": 3} if name == "max-logit-pnorm" else {}
