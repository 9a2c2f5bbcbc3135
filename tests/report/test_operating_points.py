"""Thresholds of the sliders against counting by hand, and against the rules of the selective room."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.errors import ReportError
from secondlook.metrics import rank
from secondlook.predictions import Predictions
from secondlook.report.operating_points import (
    Guarantees,
    guarantees_of,
    point_at_coverage,
    point_at_risk,
    risks_to_choose_from,
    shortest_threshold,
    telling_risk,
    thinned,
)
from secondlook.report.study import studied
from secondlook.selective import certify, threshold_for

images = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0])), min_size=1, max_size=40
)


def split(listed: list[tuple[bool, float]]) -> tuple[BoolArray, Float64Array]:
    return np.array([one[0] for one in listed]), np.array([one[1] for one in listed])


def most_accepted(correct: BoolArray, sure: Float64Array, risk: float) -> tuple[float, int, int]:
    """Try every threshold there is."""
    best = (math.inf, 0, 0)
    for threshold in sorted(set(sure.tolist()), reverse=True):
        accepted = sure >= threshold
        errors = int((accepted & ~correct).sum())
        if errors <= risk * accepted.sum() + 1e-9:
            best = (threshold, int(accepted.sum()), errors)
    return best


@settings(deadline=None, max_examples=60)
@given(images, st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0]))
def test_at_a_risk_nothing_more_could_be_accepted(listed: list[tuple[bool, float]], risk: float) -> None:
    correct, sure = split(listed)
    point = point_at_risk(rank(correct, sure), risk)
    assert (point.threshold, point.accepted, point.errors) == most_accepted(correct, sure, risk)


@settings(deadline=None, max_examples=60)
@given(images, st.floats(0.001, 1.0))
def test_the_short_decimal_accepts_the_same_images(listed: list[tuple[bool, float]], coverage: float) -> None:
    correct, sure = split(listed)
    ranking = rank(correct, sure / 3)
    point = point_at_coverage(ranking, coverage)
    text = shortest_threshold(ranking, point)
    np.testing.assert_array_equal(sure / 3 >= float(text), sure / 3 >= point.threshold)


@pytest.mark.parametrize("coverage", [0.001, 0.333, 0.5, 0.999, 1.0])
def test_at_a_coverage_the_rule_is_the_selective_room_s(preds: Predictions, coverage: float) -> None:
    study = studied(preds, ["mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    rule = threshold_for(preds, "mean", coverage=coverage)
    point = point_at_coverage(study.rankings["mean"], coverage)
    assert rule.calibration is not None
    assert (point.threshold, point.accepted, point.errors) == (
        rule.threshold,
        rule.calibration.accepted,
        rule.calibration.errors,
    )


def test_guarantees_are_those_of_certify(preds: Predictions) -> None:
    study = studied(preds, ["mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    risks = np.array([0.0, 0.02, 0.1, 0.15, 0.2, 1.0])
    guarantees = guarantees_of(study, "mean", risks, 0.05)
    assert isinstance(guarantees, Guarantees)
    assert guarantees.accepted[0] == guarantees.accepted[-1] == 0, (
        "no error at all, and any error, are nothing to guarantee"
    )
    for place, risk in enumerate(risks[1:-1].tolist(), start=1):
        rule = certify(preds, "mean", risk=risk, delta=0.05)
        assert rule.calibration is not None
        seen = (rule.threshold, rule.calibration.accepted, rule.calibration.errors)
        assert (guarantees.thresholds[place], guarantees.accepted[place], guarantees.errors[place]) == seen
    assert guarantees.accepted.max() > 0


def test_a_place_among_others_guarantees_nothing(preds: Predictions) -> None:
    study = studied(preds, ["bootstrap"], predict_from="image", top_k=1, seed=0, class_names=None)
    reason = guarantees_of(study, "bootstrap", np.array([0.1]), 0.05)
    assert isinstance(reason, str)
    assert "no threshold carries over" in reason


@pytest.mark.parametrize(
    ("error_rate", "risk"), [(0.0661, 0.01), (0.3, 0.05), (0.24, 0.05), (0.12, 0.02), (0.004, 0.001), (0.0, 0.01)]
)
def test_the_told_risk_is_a_round_number(error_rate: float, risk: float) -> None:
    assert telling_risk(error_rate) == risk


@pytest.mark.parametrize("error_rate", [0.0, 0.00011, 0.0661, 0.3, 0.5, 0.999, 1.0])
def test_the_risks_lead_from_nothing_to_everything(error_rate: float) -> None:
    risks = risks_to_choose_from(error_rate, told=0.013)
    assert risks[0] == 0
    assert error_rate <= risks[-1] <= 1
    assert 0.013 in risks
    assert 5 < len(risks) <= 103
    assert (np.diff(risks) > 0).all()


@pytest.mark.parametrize("told", [0.0, 1.0, -0.1, math.nan])
def test_a_risk_that_is_no_share(told: float) -> None:
    with pytest.raises(ReportError, match="expected a share of errors between 0 and 1"):
        risks_to_choose_from(0.1, told)


@pytest.mark.parametrize("most", [3, 10, 100])
def test_fewer_thresholds_keep_exact_counts(most: int) -> None:
    rng = np.random.default_rng(0)
    correct: Array = rng.random(500) < 0.8
    sure = rng.integers(0, 200, 500) / 200
    whole = rank(correct, sure)
    few = thinned(whole, most)
    assert len(few.accepted) <= most
    assert (few.n_images, few.n_errors) == (whole.n_images, whole.n_errors)
    for threshold, accepted, errors in zip(few.confidences, few.accepted, few.errors, strict=True):
        assert accepted == (sure >= threshold).sum()
        assert errors == ((sure >= threshold) & ~correct).sum()
