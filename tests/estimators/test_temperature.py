"""Temperature scaling: against logits divided by T, and against a search over a grid."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import softmax
from secondlook.estimators import confidence, fit_temperature
from secondlook.estimators.temperature import SHARPEST, SOFTEST, tempered
from secondlook.predictions import Predictions

Maker = Callable[..., Predictions]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.05, 20))
def test_tempered_probabilities_are_those_of_divided_logits(seed: int, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(size=(5, 3, 4)) * 3
    np.testing.assert_allclose(tempered(softmax(logits), temperature), softmax(logits / temperature), rtol=1e-9)


def test_a_class_without_any_probability_keeps_none() -> None:
    np.testing.assert_allclose(tempered(np.array([[0.5, 0.5, 0.0]]), 0.01), [[0.5, 0.5, 0.0]])


def labeled(true_temperature: float) -> Predictions:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4000, 2, 5)) * 2
    odds = softmax(logits[:, 0] / true_temperature).cumsum(axis=1)
    labels = (generator.random((4000, 1)) > odds).sum(axis=1)
    return Predictions(logits=logits, views=["identity", "hflip"], labels=labels)


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 2.5])
def test_the_fitted_temperature_has_the_least_loss(true_temperature: float) -> None:
    preds = labeled(true_temperature)
    logits = preds.logits[:, 0].astype(float)

    def loss(temperature: float) -> float:
        own = np.take_along_axis(softmax(logits / temperature), preds.labels[:, None], axis=1)
        return float(-np.log(own).mean())

    fitted = fit_temperature(preds)
    assert abs(fitted - true_temperature) < 0.15 * true_temperature
    assert all(loss(fitted) <= loss(fitted * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_the_search_ends_where_there_is_no_best_temperature() -> None:
    logits = np.eye(3)[:, None, :]
    assert fit_temperature(Predictions(logits=logits, views="identity", labels=np.arange(3))) == SHARPEST
    assert fit_temperature(Predictions(logits=logits, views="identity", labels=np.array([1, 2, 0]))) == SOFTEST


def test_only_the_named_images_are_fitted_to() -> None:
    preds = labeled(2.5)
    some = np.arange(4000) % 4 == 0
    assert fit_temperature(preds, some) == fit_temperature(preds.select(images=some))
    assert fit_temperature(preds, some) != fit_temperature(preds)


def test_a_zero_at_the_right_class_stays_finite() -> None:
    shares = np.array([[[1.0, 0.0]], [[0.9, 0.1]], [[0.2, 0.8]]])
    preds = Predictions(probabilities=shares, views="identity", labels=np.array([1, 0, 1]))
    assert SHARPEST <= fit_temperature(preds) <= SOFTEST


def test_methods_use_it(predictions: Maker) -> None:
    preds = predictions(labels=False)
    softer = Predictions(logits=preds.logits / np.float32(3), views=preds.views)
    for name in ("msr", "view:hflip", "mean", "entropy", "margin", "doctor", "mean-logit"):
        values = confidence(preds, name, temperature=3)
        np.testing.assert_allclose(values, confidence(softer, name), rtol=1e-4, atol=1e-6)
    given_up = predictions()
    np.testing.assert_array_equal(
        confidence(given_up, "msr", temperature="fit"),
        confidence(given_up, "msr", temperature=fit_temperature(given_up)),
    )
