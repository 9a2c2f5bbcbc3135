"""The first look at an image, and the disagreement between all looks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook import Predictions
from secondlook.estimators import compute_look_statistics, confidence


def make_predictions(n_images: int, n_views: int, seed: int) -> Predictions:
    probabilities = np.random.default_rng(seed).dirichlet(np.full(4, 0.5), size=(n_images, n_views))
    return Predictions(probabilities=probabilities, views=["identity", *(f"shift:{n},0" for n in range(1, n_views))])


@given(n_views=st.integers(2, 5), n_images=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_is_the_mean_distance_from_the_mean(n_views: int, n_images: int, seed: int) -> None:
    preds = make_predictions(n_images, n_views, seed)
    for found, outputs in zip(
        compute_look_statistics(preds).disagreement, preds.probabilities.astype(np.float64), strict=True
    ):
        mean = [sum(output[label] for output in outputs) / n_views for label in range(4)]
        distances = [sum(max(output[label] - mean[label], 0) for label in range(4)) for output in outputs]
        assert found == pytest.approx(sum(distances) / n_views, abs=1e-6)


def test_equal_views_agree_and_opposite_ones_do_not() -> None:
    probabilities = np.array([[[0.7, 0.3], [0.7, 0.3]], [[1.0, 0.0], [0.0, 1.0]]])
    preds = Predictions(probabilities=probabilities, views=["identity", "hflip"])
    assert compute_look_statistics(preds).disagreement.tolist() == [0.0, 0.5]


def test_members_of_an_ensemble_disagree_too() -> None:
    members = [Predictions(probabilities=np.array([[row]]), views=["identity"]) for row in ([1.0, 0.0], [0.0, 1.0])]
    first_look, disagreement = compute_look_statistics(Predictions(members=members, views=["identity"]))
    assert (first_look.tolist(), disagreement.tolist()) == ([0.5], [0.5])


@pytest.mark.parametrize("top_k", [1, 2])
def test_first_look_is_the_softmax_response(top_k: int) -> None:
    preds = make_predictions(20, 3, seed=1)
    first_look = compute_look_statistics(preds, top_k).first_look
    assert first_look.tolist() == confidence(preds, "msr", top_k=top_k).tolist()


def test_one_look_cannot_disagree() -> None:
    assert np.isnan(compute_look_statistics(make_predictions(3, 1, seed=2)).disagreement).all()
