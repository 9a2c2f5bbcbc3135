"""Temperature scaling against divided logits, and the fitted temperature against its neighbors."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import softmax
from secondlook.estimators import confidence, fit_temperature
from secondlook.estimators.probability_mass import MAX_TEMPERATURE, MIN_TEMPERATURE, apply_temperature
from secondlook.predictions import Predictions

Maker = Callable[..., Predictions]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.05, 20))
def test_scaled_probabilities_are_those_of_divided_logits(seed: int, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(size=(5, 3, 4)) * 3
    np.testing.assert_allclose(
        apply_temperature(softmax(logits), temperature), softmax(logits / temperature), rtol=1e-9
    )


def test_a_probability_of_zero_stays_zero() -> None:
    np.testing.assert_allclose(apply_temperature(np.array([[0.5, 0.5, 0.0]]), 0.01), [[0.5, 0.5, 0.0]])


def make_labeled(true_temperature: float) -> Predictions:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4000, 2, 5)) * 2
    cumulative = softmax(logits[:, 0] / true_temperature).cumsum(axis=1)
    labels = (generator.random((4000, 1)) > cumulative).sum(axis=1)
    return Predictions(logits=logits, views=["identity", "hflip"], labels=labels)


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 2.5])
def test_the_fitted_temperature_minimizes_the_loss(true_temperature: float) -> None:
    preds = make_labeled(true_temperature)
    logits = preds.logits[:, 0].astype(float)

    def loss(temperature: float) -> float:
        own = np.take_along_axis(softmax(logits / temperature), preds.labels[:, None], axis=1)
        return float(-np.log(own).mean())

    fitted = fit_temperature(preds)
    assert abs(fitted - true_temperature) < 0.15 * true_temperature
    assert all(loss(fitted) <= loss(fitted * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_the_fitted_temperature_is_bounded() -> None:
    logits = np.eye(3)[:, None, :]
    assert fit_temperature(Predictions(logits=logits, views="identity", labels=np.arange(3))) == MIN_TEMPERATURE
    assert fit_temperature(Predictions(logits=logits, views="identity", labels=np.array([1, 2, 0]))) == MAX_TEMPERATURE


def test_a_probability_of_zero_at_the_label_is_no_problem() -> None:
    probabilities = np.array([[[1.0, 0.0]], [[0.9, 0.1]], [[0.2, 0.8]]])
    preds = Predictions(probabilities=probabilities, views="identity", labels=np.array([1, 0, 1]))
    assert MIN_TEMPERATURE <= fit_temperature(preds) <= MAX_TEMPERATURE


def test_methods_apply_the_temperature(predictions: Maker) -> None:
    preds = predictions(labels=False)
    softer = Predictions(logits=preds.logits / np.float32(3), views=preds.views)
    for name in ("msr", "view:hflip", "mean", "entropy", "margin", "doctor", "mean-logit"):
        values = confidence(preds, name, temperature=3)
        np.testing.assert_allclose(values, confidence(softer, name), rtol=1e-4, atol=1e-6)
    labeled = predictions()
    np.testing.assert_array_equal(
        confidence(labeled, "msr", temperature="fit"),
        confidence(labeled, "msr", temperature=fit_temperature(labeled)),
    )
