"""Familiarity: against a loop over images, and its weights against the regression of scikit-learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from secondlook.arrays import Array
from secondlook.errors import ConfidenceError
from secondlook.estimators import compute_familiarity, confidence, fit_familiarity
from secondlook.predictions import Predictions
from tests.estimators.conftest import make_predictions

KINDS: list[dict[str, Any]] = [{}, {"members": 3}, {"logits": False}, {"v": 1}]


def list_features(preds: Predictions) -> Array:
    """Return `gen` and the mean log-probability of each class over members and views, image by image. [N, 1 + C]"""
    members = preds.members or (preds,)
    outputs = np.stack([np.concatenate([block for _, block in one.blocks(rows=7)]) for one in members])
    logs = np.log(outputs.astype(np.float64))
    return np.array([[gen, *logs[:, image].mean(axis=(0, 1))] for image, gen in enumerate(confidence(preds, "gen"))])


@pytest.mark.parametrize("kind", KINDS)
def test_familiarity_is_the_weighted_sum_of_features(kind: dict[str, Any]) -> None:
    preds = make_predictions(**kind)
    weights = np.random.default_rng(0).normal(size=7).tolist()
    np.testing.assert_allclose(compute_familiarity(preds, weights), list_features(preds) @ weights, rtol=1e-5)
    np.testing.assert_array_equal(compute_familiarity(preds), confidence(preds, "gen"))
    alone = [compute_familiarity(preds.select(images=[image]), weights)[0] for image in range(5)]
    assert alone == compute_familiarity(preds, weights)[:5].tolist(), "to the last bit"
    with pytest.raises(ConfidenceError, match=r"7 classes.*6"):
        compute_familiarity(preds, [*weights, 1.0])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_scikit_learn(kind: dict[str, Any]) -> None:
    known, unknown = make_predictions(n=150, **kind), make_predictions(n=60, seed=1, **kind)
    features, is_known = np.concatenate([list_features(known), list_features(unknown)]), np.arange(210) < 150
    regression = LogisticRegression(C=0.05, class_weight="balanced", tol=1e-8, max_iter=10_000)
    expected = make_pipeline(StandardScaler(), regression).fit(features, is_known).decision_function(features)
    weights = fit_familiarity(known, unknown)
    found = np.concatenate([compute_familiarity(one, weights) for one in (known, unknown)])
    np.testing.assert_allclose(found - found.mean(), expected - expected.mean(), atol=1e-3)
