"""Learned weights: the better view counts more, the pull makes all equal, the confidence is the weighted mean."""

from collections.abc import Callable

import numpy as np
import pytest

from secondlook.errors import SearchError
from secondlook.estimators import confidence
from secondlook.predictions import Predictions
from secondlook.search import learned_weights, weighted_confidence


def test_a_view_that_knows_more_counts_more() -> None:
    generator = np.random.default_rng(0)
    wrong = (generator.random(2000) < 0.2).astype(float)
    noise = np.array([0.05, 0.3, 0.3, 0.3])[:, None]
    shares = np.clip(0.8 - 0.3 * wrong + noise * generator.normal(size=(4, 2000)), 0.01, 0.99)
    weights = learned_weights(shares, wrong, pull=0.001)
    assert weights.sum() == pytest.approx(1)
    assert weights[0] > 2 * weights[1:].max()
    np.testing.assert_allclose(learned_weights(shares, wrong, pull=1e3), 0.25, atol=1e-3)


def test_equal_weights_are_the_mean(made_pool: Callable[..., Predictions]) -> None:
    preds = made_pool(50)
    equal = np.full(preds.n_views, 1 / preds.n_views)
    np.testing.assert_allclose(weighted_confidence(preds, equal), confidence(preds, "mean"), rtol=1e-12)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ((0.5, 0.5), "2 weights for 11 views"),
        ((2.0, *[-0.1] * 10), "add up to 1"),
        ((0.2,) * 11, "add up to 2.2"),
        ((float("nan"),) * 11, "add up to nan"),
    ],
)
def test_bad_weights_are_refused(
    made_pool: Callable[..., Predictions], weights: tuple[float, ...], sentence: str
) -> None:
    with pytest.raises(SearchError, match=sentence):
        weighted_confidence(made_pool(20), weights)
