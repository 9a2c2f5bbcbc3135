"""Rules from predictions: what they accept, what they guarantee, and what they say where they cannot."""

import math

import numpy as np
import pytest

from secondlook.errors import DecisionError
from secondlook.estimators import confidence
from secondlook.predictions import Predictions
from secondlook.selective import Rule, certify, certify_confidence, threshold_for


@pytest.mark.parametrize(("predict_from", "top_k"), [("image", 1), ("views", 1), ("image", 2), ("views", 2)])
def test_a_certified_rule_accepts_what_it_says(preds: Predictions, predict_from: str, top_k: int) -> None:
    rule = certify(preds, "mean", risk=0.1, delta=0.05, predict_from=predict_from, top_k=top_k)  # type: ignore[arg-type]
    sure = confidence(preds, "mean", predict_from=predict_from, top_k=top_k)  # type: ignore[arg-type]
    accepted = rule.accept(sure)
    assert rule.certified
    assert rule.coverage == pytest.approx(accepted.mean())
    assert rule.calibration is not None
    assert rule.calibration.errors == np.sum(~preds.correct(predict_from=predict_from, top_k=top_k)[accepted])  # type: ignore[arg-type]
    assert rule.calibration.risk is not None
    assert rule.calibration.risk < 0.1
    assert (rule.method, rule.predict_from, rule.top_k) == ("mean", predict_from, top_k)
    assert "at most 10 % errors among the accepted, with certainty 95 %" in str(rule)


def test_shuffling_and_monotone_changes_change_nothing(preds: Predictions) -> None:
    correct, sure = preds.correct(), confidence(preds, "mean").round(2)
    order = np.random.default_rng(0).permutation(len(sure))
    rule = certify_confidence(correct, sure, risk=0.1, delta=0.05)
    assert certify_confidence(correct[order], sure[order], risk=0.1, delta=0.05) == rule
    changed = certify_confidence(correct, np.exp(sure), risk=0.1, delta=0.05)
    assert changed.threshold == np.exp(rule.threshold)
    assert changed.calibration == rule.calibration


def test_equal_confidences_are_accepted_together() -> None:
    correct, sure = np.ones(200, dtype=bool), np.repeat([0.9, 0.5], [150, 50])
    rule = certify_confidence(correct, sure, risk=0.05, delta=0.05)
    assert rule.threshold == 0.5
    assert rule.coverage == 1.0


def test_a_stricter_guarantee_never_accepts_more(preds: Predictions) -> None:
    coverages = [certify(preds, "mean", risk=risk, delta=0.05).coverage for risk in (0.04, 0.08, 0.12, 0.3)]
    assert coverages == sorted(coverages)


def test_what_cannot_be_guaranteed_is_said() -> None:
    rng = np.random.default_rng(3)
    correct, sure = rng.random(400) < 0.98, rng.random(400)
    rule = certify_confidence(correct, sure, risk=0.015, delta=0.01)
    assert not rule.certified
    assert rule.threshold == math.inf
    assert not rule.accept(sure).any()
    assert rule.coverage == 0.0
    assert rule.shortfall is not None
    assert rule.shortfall.smallest_risk is not None
    could = certify_confidence(correct, sure, risk=rule.shortfall.smallest_risk, delta=0.01)
    assert could.certified
    assert 0.015 < rule.shortfall.smallest_risk < 0.1
    assert "accept nothing: no threshold allows at most 1.5 % errors" in str(rule)


def test_the_number_of_further_images_is_about_right() -> None:
    def images(n: int) -> tuple[object, object]:
        rng = np.random.default_rng(n)
        place = rng.random(n)
        return rng.random(n) >= 0.06 * place**2, -place

    rule = certify_confidence(*images(300), risk=0.01, delta=0.01)  # type: ignore[arg-type]
    assert rule.shortfall is not None
    more = rule.shortfall.further_images
    assert more is not None
    assert certify_confidence(*images(300 + 4 * more), risk=0.01, delta=0.01).certified  # type: ignore[arg-type]
    assert f"roughly {more:,} more labeled images" in str(rule)


def test_hopeless_cases_say_that_more_images_do_not_help() -> None:
    rule = certify_confidence(np.zeros(500, dtype=bool), np.arange(500.0), risk=0.1, delta=0.1)
    assert rule.shortfall is not None
    assert rule.shortfall.further_images is None
    assert "more images would not help" in str(rule)
    too_few = certify_confidence([True] * 5, np.arange(5.0), risk=0.1, delta=0.1)
    assert too_few.shortfall is not None
    assert too_few.shortfall.further_images is not None


def test_coverage_gives_a_threshold_without_a_guarantee(preds: Predictions) -> None:
    rule = threshold_for(preds, "mean", coverage=0.7)
    assert rule.coverage == pytest.approx(0.7)
    assert not rule.certified
    assert "guarantee: none" in str(rule)
    unlabeled = Predictions(probabilities=preds.probabilities, views=preds.views)
    assert threshold_for(unlabeled, "mean", coverage=0.7).threshold == pytest.approx(rule.threshold)
    assert "no labels" in str(threshold_for(unlabeled, "mean", coverage=0.7))


def test_a_plain_threshold_guarantees_nothing() -> None:
    rule = Rule(0.9)
    assert not rule.certified
    assert rule.accept([0.95, 0.9, 0.1]).tolist() == [True, True, False]
    assert "guarantee: none" in str(rule)
    with pytest.raises(DecisionError, match="no coverage of its own"):
        rule.coverage  # noqa: B018


@pytest.mark.parametrize(
    ("risk", "delta", "sentence"),
    [(0.0, 0.1, "risk is 0.0"), (1.0, 0.1, "risk is 1.0"), (0.1, 0.0, "delta is 0.0"), (0.1, math.nan, "delta is nan")],
)
def test_shares_outside_their_range(preds: Predictions, risk: float, delta: float, sentence: str) -> None:
    with pytest.raises(DecisionError, match=sentence):
        certify(preds, "mean", risk=risk, delta=delta)


def test_bad_input(preds: Predictions) -> None:
    unlabeled = Predictions(probabilities=preds.probabilities, views=preds.views)
    with pytest.raises(DecisionError, match="these predictions have no labels"):
        certify(unlabeled, "mean", risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="confidence is NaN at index 1"):
        certify_confidence([True, False], [0.1, np.nan], risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="confidence is NaN at index 0"):
        Rule(0.5).accept([np.nan])
    with pytest.raises(DecisionError, match="the threshold is NaN"):
        Rule(np.nan)
    with pytest.raises(DecisionError, match="coverage is 0"):
        threshold_for(preds, coverage=0)


def test_a_confidence_that_needs_other_images_is_refused(preds: Predictions) -> None:
    with pytest.raises(DecisionError, match="use 'bootstrap-lower'"):
        certify(preds, "bootstrap", risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="give p="):
        certify(preds, "max-logit-pnorm", risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="fit_temperature"):
        certify(preds, "entropy", risk=0.1, delta=0.1, temperature="fit")


def test_absurd_numbers_of_further_images_are_not_told() -> None:
    # 200 images are enough to guarantee something; errors among the surest are in the way, not their number.
    correct = np.ones(400, dtype=bool)
    correct[1::3] = False
    rule = certify_confidence(correct, -np.arange(400.0), risk=0.1, delta=0.1)
    assert rule.shortfall is not None
    assert rule.shortfall.further_images is None
