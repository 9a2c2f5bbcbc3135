"""Learned weights: the better view counts more, the pull makes all equal, the confidence is the weighted mean."""

from collections.abc import Callable

import numpy as np
import pytest

from secondlook.arrays import Float64Array
from secondlook.diagnosis import learned_weights, weighted_confidence
from secondlook.diagnosis.expected_errors import fit_error_model
from secondlook.errors import DiagnosisError
from secondlook.estimators import confidence
from secondlook.predictions import Predictions


def test_a_view_that_knows_more_counts_more() -> None:
    generator = np.random.default_rng(0)
    correct = generator.random(2000) < 0.8
    noise = np.array([0.05, 0.3, 0.3, 0.3])[:, None]
    shares = np.clip(0.5 + 0.3 * correct + noise * generator.normal(size=(4, 2000)), 0.01, 0.99)
    weights = learned_weights(shares, correct, pull=0.001)
    assert weights.sum() == pytest.approx(1)
    assert weights[0] > 2 * weights[1:].max()
    np.testing.assert_allclose(learned_weights(shares, correct, pull=1e3), 0.25, atol=1e-3)


@pytest.mark.parametrize("pull", [0.003, 0.03])
def test_the_weights_are_the_best_of_a_fine_grid(pull: float) -> None:
    generator = np.random.default_rng(1)
    correct = generator.random(400) < 0.7
    noise = np.array([0.1, 0.2, 0.3])[:, None]
    shares = np.clip(0.5 + 0.2 * correct + noise * generator.normal(size=(3, 400)), 0.02, 0.98)
    model = fit_error_model(shares.mean(axis=0), correct)

    def loss(weights: Float64Array) -> float:
        chance = model.chance(weights @ shares)
        likelihood = np.where(correct, np.log(1 - chance), np.log(chance))
        return float(-likelihood.mean() + pull * np.sum(weights * np.log(3 * weights)))

    steps = np.arange(0.01, 0.99, 0.01)
    grid = [np.array([one, two, 1 - one - two]) for one in steps for two in steps if one + two < 0.995]
    best = min(grid, key=loss)
    np.testing.assert_allclose(learned_weights(shares, correct, pull), best, atol=0.015)


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
    with pytest.raises(DiagnosisError, match=sentence):
        weighted_confidence(made_pool(20), weights)
