"""Tuning images, what is fitted to them, and temperature scaling against divided logits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secondlook.arrays import softmax
from secondlook.errors import ConfidenceError
from secondlook.estimators import (
    METHODS,
    compile_method,
    confidence,
    default_method,
    fit_method,
    needs_fitting,
    tuning_positions,
)
from secondlook.estimators.fitting import describe_shortage
from secondlook.estimators.probability_mass import MAX_TEMPERATURE, MIN_TEMPERATURE, apply_temperature, fit_temperature
from secondlook.predictions import Predictions
from tests.estimators.conftest import make_predictions

WEIGHTS = METHODS["learned"].fitted


@pytest.mark.parametrize(("n_images", "expected"), [(0, 0), (3, 0), (4, 1), (800, 200), (4003, 1000), (50_000, 1000)])
def test_a_quarter_of_the_images_but_at_most_a_thousand_is_set_apart(n_images: int, expected: int) -> None:
    positions = tuning_positions(n_images)
    assert positions.dtype == np.int64
    assert len(positions) == len(set(positions.tolist())) == expected
    assert (np.diff(positions) > 0).all()
    assert ((positions >= 0) & (positions < n_images)).all()
    np.testing.assert_array_equal(positions, tuning_positions(n_images))
    if n_images >= 800:
        assert abs(positions.mean() / n_images - 0.5) < 0.05, "spread"
        assert not np.array_equal(positions, tuning_positions(n_images, seed=1))


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        *((name, {}, False) for name in METHODS if name not in ("learned", "max-logit-pnorm", "view")),
        ("mean", {"temperature": "fit"}, True),
        ("mean?temperature=fit", {}, True),
        ("mean?temperature=fit", {"temperature": 2.0}, False),
        ("mean", {"temperature": 2.0}, False),
        ("view:hflip?temperature=fit", {}, True),
        ("max-logit-pnorm", {}, True),
        ("max-logit-pnorm?on=views", {}, True),
        ("max-logit-pnorm?p=3", {}, False),
        ("max-logit-pnorm", {"p": "none"}, False),
        ("max-logit-pnorm?p=none&temperature=fit", {}, True),
        ("learned", {}, True),
        ("learned", dict.fromkeys(WEIGHTS, 0.0), False),
        ("learned", dict.fromkeys(WEIGHTS[1:], 0.0), True),
    ],
)
def test_methods_that_need_fitting_are_listed(method: str, options: dict[str, Any], expected: bool) -> None:
    assert needs_fitting(method, options) is expected
    if not expected:  # nothing is fitted, so neither labels nor many images are needed
        compiled = compile_method(method, options)
        plain, merged = compiled.name, compiled.options
        assert fit_method(make_predictions(labels=False, n=3), method, **options) == merged
        assert fit_method(make_predictions(labels=False, n=3), plain, **merged) == merged


def test_fitted_options_complete_the_method() -> None:
    tuning, judged = make_predictions(n=400, seed=1), make_predictions(n=50, seed=2, labels=False)
    for text in ("mean?temperature=fit", "max-logit-pnorm?on=views&temperature=fit", "max-logit-pnorm", "msr"):
        fitted = fit_method(tuning, text)
        plain = compile_method(text).name
        assert not needs_fitting(plain, fitted)
        assert not needs_fitting(text, fitted)
        assert all(isinstance(value, float | int | str) for value in fitted.values())
        np.testing.assert_array_equal(confidence(judged, plain, **fitted), confidence(judged, text, **fitted))
    assert fit_method(tuning, "mean", temperature="fit") == {"temperature": fit_temperature(tuning)}


def test_invalid_requests_are_rejected() -> None:
    preds = make_predictions(n=400)
    for method in ("learned", "max-logit-pnorm", "mean?temperature=fit"):
        with pytest.raises(ConfidenceError, match="label"):
            fit_method(make_predictions(labels=False), method)
    with pytest.raises(ConfidenceError, match=r"'max-logit-pnorm'.*logits"):
        fit_method(make_predictions(logits=False), "max-logit-pnorm")
    with pytest.raises(ConfidenceError, match="'q'"):
        fit_method(preds, "max-logit-pnorm", q=3)
    with pytest.raises(ConfidenceError, match=r"log_odds.*all"):
        fit_method(preds, "learned", log_odds=1.0)
    with pytest.raises(ConfidenceError, match="'lerned'"):
        needs_fitting("lerned")


def make_tuning(n_images: int, n_errors: int, n_views: int = 2) -> Predictions:
    logits = np.random.default_rng(0).normal(size=(n_images, n_views, 3))
    labels = logits[:, 0].argmax(axis=1)
    labels[:n_errors] = (labels[:n_errors] + 1) % 3
    return Predictions(logits=logits, views=["identity", "hflip"][:n_views], labels=labels)


def test_the_default_method_needs_no_labels_and_their_shortage_is_noted() -> None:
    assert default_method(make_predictions(labels=False, n=400)) == "blend"
    assert default_method(make_tuning(400, 60)) == "blend"
    assert default_method(make_tuning(400, 60, n_views=1)) == "msr"
    assert describe_shortage(make_tuning(400, 60), "image", 1) is None
    for tuning, top_k in ((make_tuning(400, 10), 1), (make_tuning(150, 60), 1), (make_tuning(400, 60), 3)):
        assert "at least 200 labeled images" in str(describe_shortage(tuning, "image", top_k))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.05, 20))
@example(seed=0, temperature=0.01)
def test_scaled_probabilities_are_those_of_divided_logits(seed: int, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(size=(5, 3, 4)) * 3
    scaled = apply_temperature(softmax(logits), temperature)
    np.testing.assert_allclose(scaled, softmax(logits / temperature), rtol=1e-9)
    np.testing.assert_allclose(apply_temperature(np.array([0.5, 0.5, 0.0]), temperature), [0.5, 0.5, 0.0])


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


def test_methods_apply_the_temperature_which_is_bounded_when_fitted() -> None:
    preds = make_predictions(labels=False)
    softer = Predictions(logits=preds.logits / np.float32(3), views=preds.views)
    for name in ("msr", "view:hflip", "mean"):
        values = confidence(preds, name, temperature=3)
        np.testing.assert_allclose(values, confidence(softer, name), rtol=1e-4, atol=1e-6)
    labeled = make_predictions()
    fitted = confidence(labeled, "msr", temperature="fit")
    np.testing.assert_array_equal(fitted, confidence(labeled, "msr", temperature=fit_temperature(labeled)))
    certain = 2 * np.eye(3)[:, None, :]
    assert fit_temperature(Predictions(logits=certain, views="identity", labels=np.arange(3))) == MIN_TEMPERATURE
    assert fit_temperature(Predictions(logits=certain, views="identity", labels=np.array([1, 2, 0]))) == MAX_TEMPERATURE
    # A probability of zero at the label is no problem.
    probabilities = np.array([[[1.0, 0.0]], [[0.9, 0.1]], [[0.2, 0.8]]])
    impossible = Predictions(probabilities=probabilities, views="identity", labels=np.array([1, 0, 1]))
    assert MIN_TEMPERATURE <= fit_temperature(impossible) <= MAX_TEMPERATURE
