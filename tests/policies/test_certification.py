"""Choosing thresholds: what rules accept and guarantee, and what happens if nothing can be guaranteed."""

import math
import re
from typing import Any

import numpy as np
import pytest

from secondlook.errors import DecisionError
from secondlook.estimators import confidence
from secondlook.policies import DEFAULT_DELTA, Guarantee, certify, certify_confidence, threshold_for
from secondlook.predictions import PredictFrom, Predictions


@pytest.fixture
def unlabeled(preds: Predictions) -> Predictions:
    return Predictions(probabilities=preds.probabilities, views=preds.views)


@pytest.mark.parametrize(("predict_from", "top_k"), [("image", 1), ("views", 1), ("image", 2), ("views", 2)])
def test_certified_rule_matches_its_calibration(preds: Predictions, predict_from: PredictFrom, top_k: int) -> None:
    rule = certify(preds, "mean", risk=0.1, delta=0.05, predict_from=predict_from, top_k=top_k)
    accepted = rule.accept(confidence(preds, "mean", predict_from=predict_from, top_k=top_k), method=rule.method)
    assert rule.certified
    assert rule.coverage == pytest.approx(accepted.mean())
    assert rule.calibration is not None
    assert rule.calibration.errors == np.sum(~preds.correct(predict_from=predict_from, top_k=top_k)[accepted])
    assert rule.calibration.errors is not None
    assert rule.calibration.errors < 0.1 * rule.calibration.accepted
    assert (rule.method, rule.predict_from, rule.top_k) == ("mean", predict_from, top_k)
    assert rule.guarantee == Guarantee(risk=0.1, delta=0.05)


def test_delta_has_one_default(preds: Predictions) -> None:
    correct, values = preds.correct(), confidence(preds, "mean")
    expected = Guarantee(risk=0.2, delta=DEFAULT_DELTA)
    assert certify(preds, "mean", risk=0.2).guarantee == expected
    assert certify_confidence(correct, values, risk=0.2).guarantee == expected


def test_shuffling_and_monotone_changes_do_not_matter(preds: Predictions) -> None:
    correct, values = preds.correct(), confidence(preds, "mean").round(2)
    order = np.random.default_rng(0).permutation(len(values))
    rule = certify_confidence(correct, values, risk=0.1, delta=0.05)
    assert certify_confidence(correct[order], values[order], risk=0.1, delta=0.05) == rule
    changed = certify_confidence(correct, np.exp(values), risk=0.1, delta=0.05)
    assert changed.threshold == np.exp(rule.threshold)
    assert changed.calibration == rule.calibration


def test_stricter_guarantee_never_accepts_more(preds: Predictions) -> None:
    coverages = [certify(preds, "mean", risk=risk, delta=0.05).coverage for risk in (0.04, 0.08, 0.12, 0.3)]
    assert coverages == sorted(coverages)


def test_rule_accepts_nothing_if_nothing_can_be_guaranteed() -> None:
    rng = np.random.default_rng(3)
    correct, values = rng.random(400) < 0.98, rng.random(400)
    rule = certify_confidence(correct, values, risk=0.015, delta=0.01)
    assert not rule.certified
    assert rule.threshold == math.inf
    assert not rule.accept(values, method=rule.method).any()
    assert rule.coverage == 0.0
    assert rule.shortfall is not None
    assert rule.shortfall.requested == Guarantee(risk=0.015, delta=0.01)
    assert rule.shortfall.smallest_risk is not None
    assert 0.015 < rule.shortfall.smallest_risk < 0.1
    assert certify_confidence(correct, values, risk=rule.shortfall.smallest_risk, delta=0.01).certified
    assert str(rule).startswith(f"accept nothing: {rule.shortfall}")


@pytest.mark.parametrize("n", [92, 500])
def test_run_that_is_mostly_wrong_is_not_told_a_number_of_images(n: int) -> None:
    """The most confident image of all is right, which says nothing about the others."""
    correct = np.random.default_rng(n).random(n) >= 0.53
    correct[:2] = True, False
    rule = certify_confidence(correct, -np.arange(float(n)), risk=0.05)
    assert rule.shortfall is not None
    assert rule.shortfall.additional_images is None
    assert rule.shortfall.closest is not None
    assert (rule.shortfall.closest.errors or 0) > 0.05 * rule.shortfall.closest.accepted
    assert "would not help" in str(rule)


def test_estimate_tells_how_few_images_it_is_based_on() -> None:
    rule = certify_confidence([True, *[False] * 19], -np.arange(20.0), risk=0.05)
    assert "0 of 1 accepted" in str(rule)
    assert "if this error rate holds" in str(rule)


def test_suggestions_pass_on_the_same_images() -> None:
    correct, values = np.ones(300, dtype=bool), np.arange(300.0)
    shortfall = certify_confidence(correct, values, risk=0.02, delta=0.001).shortfall
    assert shortfall is not None
    assert shortfall.smallest_risk is not None
    assert shortfall.larger_delta is not None
    assert certify_confidence(correct, values, risk=shortfall.smallest_risk, delta=0.001).certified
    assert certify_confidence(correct, values, risk=0.02, delta=shortfall.larger_delta).certified
    assert "guarantees nothing" in str(shortfall)


def test_absurd_number_of_additional_images_is_not_reported() -> None:
    correct = np.ones(400, dtype=bool)
    correct[::10] = False
    rule = certify_confidence(correct, -np.arange(400.0), risk=0.10001, delta=0.1)
    assert rule.shortfall is not None
    assert rule.shortfall.additional_images is None


def test_threshold_for_coverage_has_no_guarantee(preds: Predictions, unlabeled: Predictions) -> None:
    rule = threshold_for(preds, "mean", coverage=0.7)
    assert rule.coverage == pytest.approx(0.7)
    assert not rule.certified
    assert "guarantee: none" in str(rule)
    without_labels = threshold_for(unlabeled, "mean", coverage=0.7)
    assert without_labels.threshold == pytest.approx(rule.threshold)
    assert without_labels.calibration is not None
    assert without_labels.calibration.errors is None
    assert "no labels" in str(without_labels)


@pytest.mark.parametrize(
    "value", ["0.1", None, True, np.bool_(True), 0, math.nan, 1.5, 1j, [0.1], np.array([0.1, 0.2])]
)
def test_values_that_are_not_numbers_are_rejected(preds: Predictions, value: Any) -> None:
    offending = re.escape(repr(value))
    with pytest.raises(DecisionError, match=f"risk={offending}"):
        certify(preds, risk=value)
    with pytest.raises(DecisionError, match=f"delta={offending}"):
        certify_confidence([True], [0.5], risk=0.1, delta=value)
    with pytest.raises(DecisionError, match=f"coverage={offending}"):
        threshold_for(preds, coverage=value)


@pytest.mark.parametrize("number", [np.float32(0.1), np.float64(0.1)])
def test_numbers_of_numpy_are_numbers(preds: Predictions, number: Any) -> None:
    assert certify(preds, risk=number, delta=number).certified


@pytest.mark.parametrize(
    ("correct", "confidence", "offending"),
    [
        ([True, [False]], [0.1, 0.2], "correct"),
        ([True, False], [[0.1], [0.2, 0.3]], "confidence"),
        (np.array([True, None], dtype=object), [0.1, 0.2], "object"),
        ([True, False], np.array([0.1, None], dtype=object), "object"),
        ([True, False], np.array([1, 2], dtype="m8[s]"), "timedelta64"),
        (np.ma.masked_array([True, False], mask=[False, True]), [0.1, 0.2], r"correct is masked at index \[1\]"),
        ([True, False], np.ma.masked_array([0.1, 0.2], mask=[True, False]), r"confidence is masked at index \[0\]"),
        (True, 0.5, r"\[\]"),
        ([True, False], {"a": 1}, r"\[\]"),
        ([True, False], [0.5, math.inf], "inf at index 1"),
        ([True] * 100, [math.inf] * 100, "inf at index 0"),
        ([True] * 100, [0.5] * 99 + [-math.inf], "-inf at index 99"),
    ],
)
def test_invalid_arrays_are_rejected(correct: Any, confidence: Any, offending: str) -> None:
    with pytest.raises(DecisionError, match=offending):
        certify_confidence(correct, confidence, risk=0.1, delta=0.1)


def test_invalid_input_is_rejected(preds: Predictions, unlabeled: Predictions) -> None:
    with pytest.raises(DecisionError, match="labels"):
        certify(unlabeled, "mean", risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="NaN at index 1"):
        certify_confidence([True, False], [0.1, np.nan], risk=0.1, delta=0.1)


def test_confidence_that_depends_on_other_images_is_rejected(preds: Predictions) -> None:
    with pytest.raises(DecisionError, match=r"'bootstrap'.*'bootstrap-lower'"):
        certify(preds, "bootstrap", risk=0.1, delta=0.1)


def test_equal_confidences_are_accepted_together() -> None:
    correct, values = np.ones(200, dtype=bool), np.repeat([0.9, 0.5], [150, 50])
    rule = certify_confidence(correct, values, risk=0.05, delta=0.05)
    assert rule.threshold == 0.5
    assert rule.coverage == 1.0


def test_number_of_additional_images_is_about_right() -> None:
    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(n)
        quantile = rng.random(n)
        return rng.random(n) >= 0.06 * quantile**2, -quantile

    rule = certify_confidence(*draw(300), risk=0.01, delta=0.01)
    assert rule.shortfall is not None
    additional = rule.shortfall.additional_images
    assert additional is not None
    assert certify_confidence(*draw(300 + 4 * additional), risk=0.01, delta=0.01).certified
    assert f"{additional:,}" in str(rule)


def test_additional_images_do_not_help_if_all_predictions_are_wrong() -> None:
    rule = certify_confidence(np.zeros(500, dtype=bool), np.arange(500.0), risk=0.1, delta=0.1)
    assert rule.shortfall is not None
    assert rule.shortfall.additional_images is None


@pytest.mark.parametrize(
    ("risk", "delta", "invalid"),
    [(0.0, 0.1, "risk=0.0"), (1.0, 0.1, "risk=1.0"), (0.1, 0.0, "delta=0.0"), (0.1, math.nan, "delta=nan")],
)
def test_risk_and_delta_out_of_range_are_rejected(preds: Predictions, risk: float, delta: float, invalid: str) -> None:
    with pytest.raises(DecisionError, match=invalid):
        certify(preds, "mean", risk=risk, delta=delta)
