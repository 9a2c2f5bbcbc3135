"""Objectives against the metrics themselves, and labels drawn by weight."""

import numpy as np
import pytest

from secondlook.errors import SearchError
from secondlook.metrics import known_metrics
from secondlook.search.objective import DRAWS, LIKE_AUROC, DrawnLabels, PairsInOrder, objective_measure, objective_of

PARAMETERS = {"risk_at": ":0.8", "coverage_at": ":0.1"}
OBJECTIVES = [one.name + PARAMETERS.get(one.name, "") for one in known_metrics() if one.name != "accuracy"]


@pytest.mark.parametrize("text", OBJECTIVES)
def test_with_plain_labels_every_objective_orders_as_its_metric(text: str) -> None:
    generator = np.random.default_rng(0)
    correct = generator.random(120) < 0.8
    shares = np.clip(0.55 + 0.25 * correct + generator.normal(0, 0.25, (6, 120)), 0, 1)
    metric = objective_measure(text)
    ours = objective_of(metric, (~correct).astype(float), seed=0).with_each(shares[0], shares, np.arange(1, 6), 2)
    sign = 1 if metric.metric.better == "higher" else -1
    theirs = [sign * metric.metric(correct, (shares[0] + one) / 2, *metric.arguments) for one in shares[1:]]
    if metric.metric.name in LIKE_AUROC:
        assert np.argsort(ours).tolist() == np.argsort(theirs).tolist()
    else:
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_drawn_labels_agree_with_their_weights_on_average() -> None:
    wrong = np.array([0.0, 0.125, 0.25, 0.5, 0.875, 1.0])
    draws = DrawnLabels(objective_measure("aurc"), wrong, seed=3)._draws
    np.testing.assert_allclose(np.mean(draws, axis=0), wrong, atol=1 / DRAWS)


def test_the_like_of_auroc_are_compiled() -> None:
    for name in LIKE_AUROC:
        assert isinstance(objective_of(objective_measure(name), np.array([0.1, 0.9]), 0), PairsInOrder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("aurok", "unknown objective 'aurok'.*Did you mean 'auroc'"),
        ("accuracy", "unknown objective 'accuracy'"),
        ("coverage_at", "objective 'coverage_at' cannot be used.*lacks its risk"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SearchError, match=sentence):
        objective_measure(text)
