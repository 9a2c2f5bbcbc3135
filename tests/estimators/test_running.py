"""The running confidence after l views is the confidence of the first l views alone."""

from typing import Any

import numpy as np
import pytest

from secondlook.errors import ConfidenceError
from secondlook.estimators import METHODS, compile_method, confidence
from secondlook.predictions import Predictions
from tests.estimators.conftest import make_options, make_predictions

MEANS = sorted(name for name in METHODS if METHODS[name].is_mean_over_views)
OTHERS = sorted(name for name in METHODS if not METHODS[name].is_mean_over_views and METHODS[name].parameter is None)


def compute_running(
    preds: Predictions, method: str, predict_from: Any = "image", top_k: int = 1, **options: Any
) -> Any:
    return compile_method(method, options, predict_from=predict_from, top_k=top_k).running(preds)


@pytest.mark.parametrize("method", MEANS)
@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("members", [0, 3])
def test_each_column_is_the_confidence_of_the_first_views(
    method: str, predict_from: str, top_k: int, members: int
) -> None:
    preds = make_predictions(v=5, members=members)
    settings = {"predict_from": predict_from, "top_k": top_k, **make_options(method, preds)}
    running = compute_running(preds, method, **settings)
    assert running.shape == (preds.n_images, 5)
    for count in range(1, 6):
        part = preds.select(views=list(preds.views.texts[:count]))
        np.testing.assert_allclose(running[:, count - 1], confidence(part, method, **settings), rtol=1e-12)


@pytest.mark.parametrize("method", MEANS)
@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_further_views_change_no_bit_of_what_was_known(method: str, predict_from: str) -> None:
    # As many views as NumPy adds up in another order than one after another.
    logits = np.random.default_rng(0).normal(0, 3, (40, 20, 6))
    preds = Predictions(logits=logits, views=["identity", *(f"shift:{shift},0" for shift in range(1, 20))])
    settings = {"predict_from": predict_from, **make_options(method, preds)}
    running = compute_running(preds, method, **settings)
    for count in range(1, 21):
        part = preds.select(views=list(preds.views.texts[:count]), images=np.arange(7, 20))
        np.testing.assert_array_equal(compute_running(part, method, **settings), running[7:20, :count])


@pytest.mark.parametrize("method", MEANS)
def test_mean_of_the_statistics_makes_the_confidence(method: str) -> None:
    preds = make_predictions(members=2)
    options = make_options(method, preds)
    values, combine = compile_method(method, options).view_statistics(preds)
    assert values.shape[1:] == (preds.n_images, preds.n_views)
    combined = combine(values.mean(axis=2, keepdims=True))[:, 0]
    np.testing.assert_allclose(combined, confidence(preds, method, **options), rtol=1e-12)


@pytest.mark.parametrize("method", OTHERS)
def test_other_methods_are_refused_and_the_possible_ones_named(method: str) -> None:
    with pytest.raises(ConfidenceError, match="'blend'") as error:
        compute_running(make_predictions(), method)
    assert repr(method) in str(error.value)


def test_fixed_views_are_refused() -> None:
    with pytest.raises(ConfidenceError, match="'views'"):
        compute_running(make_predictions(), "mean", views=["identity", "hflip"])
