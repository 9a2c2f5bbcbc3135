"""The objective: the metric itself without shrinkage, the distance to the pool's mean with all of it."""

import math

import numpy as np
import pytest

from secondlook.arrays import BoolArray, Float64Array
from secondlook.diagnosis.objective import LEAST_GAIN, Objective, objective_measure
from secondlook.errors import DiagnosisError
from secondlook.metrics import known_metrics

PARAMETERS = {"risk_at": ":0.8", "coverage_at": ":0.1"}
OBJECTIVES = [one.name + PARAMETERS.get(one.name, "") for one in known_metrics() if one.name != "accuracy"]
OTHERS = np.arange(1, 7)


def made_shares() -> tuple[BoolArray, Float64Array]:
    """Return right answers and what six views hold of them."""
    generator = np.random.default_rng(0)
    correct = generator.random(120) < 0.8
    return correct, np.clip(0.55 + 0.25 * correct + generator.normal(0, 0.25, (7, 120)), 0, 1)


@pytest.mark.parametrize("text", OBJECTIVES)
def test_without_shrinkage_every_objective_orders_as_its_metric(text: str) -> None:
    correct, shares = made_shares()
    metric = objective_measure(text)
    ours = Objective(metric, correct, shares, shrinkage=0.0).with_each(shares[0], OTHERS, 2)
    sign = 1 if metric.metric.better == "higher" else -1
    theirs = [sign * metric.metric(correct, (shares[0] + shares[one]) / 2, *metric.arguments) for one in OTHERS]
    assert np.argsort(ours, kind="stable").tolist() == np.argsort(np.round(theirs, 12), kind="stable").tolist()


def test_the_value_is_the_formula() -> None:
    correct, shares = made_shares()
    metric = objective_measure("aurc")
    anchor = shares.mean(axis=0)
    value = Objective(metric, correct, shares, shrinkage=5.0).with_each(shares[0], np.array([4, 2]), 2)

    def written_out(confidence: Float64Array) -> float:
        gain = abs(metric.metric(correct, anchor) - metric.metric(correct, shares[0]))
        distance = np.mean((confidence - anchor) ** 2) / np.mean((shares[0] - anchor) ** 2)
        return float(-metric.metric(correct, confidence) / max(gain, LEAST_GAIN) - 5.0 * distance)

    assert value == pytest.approx([written_out((shares[0] + shares[one]) / 2) for one in (4, 2)])


def test_with_all_shrinkage_only_the_distance_counts() -> None:
    correct, shares = made_shares()
    objective = Objective(objective_measure("auroc"), correct, shares, shrinkage=math.inf)
    ours = objective.with_each(shares[0], OTHERS, 2)
    distances = [np.mean(((shares[0] + shares[one]) / 2 - shares.mean(axis=0)) ** 2) for one in OTHERS]
    assert np.argsort(ours).tolist() == np.argsort(distances)[::-1].tolist()


def test_a_pool_of_one_and_the_same_view_is_no_division_by_zero() -> None:
    correct = np.array([True, False, True])
    shares = np.tile([0.9, 0.4, 0.6], (3, 1))
    values = Objective(objective_measure("auroc"), correct, shares, 100.0).with_each(shares[0], np.array([1]), 2)
    assert np.isfinite(values).all()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("aurok", "unknown objective 'aurok'.*Did you mean 'auroc'"),
        ("accuracy", "unknown objective 'accuracy'"),
        ("coverage_at", "objective 'coverage_at' cannot be used.*lacks its risk"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(DiagnosisError, match=sentence):
        objective_measure(text)
