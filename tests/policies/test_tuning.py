"""Images set apart to fit a method are never certified on, and the rule states how many they were."""

from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.errors import ConfidenceError, MetricError
from secondlook.estimators import fit_method, tuning_positions
from secondlook.policies import certify, certify_confidence, threshold_for
from secondlook.predictions import Predictions

RISK, DELTA = 0.1, 0.1


def make_predictions(n_images: int = 1200, n_views: int = 4, noise: float = 2.0, seed: int = 0) -> Predictions:
    """Return predictions whose errors rise with the noise; every image has its own difficulty."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 5, n_images)
    difficulty = generator.uniform(0.2, noise, (n_images, 1, 1))
    logits = 3.0 * np.eye(5)[labels][:, None] + difficulty * generator.normal(size=(n_images, n_views, 5))
    views = ["identity", "hflip", "shift:1,0", "shift:0,1"][:n_views]
    return Predictions(logits=logits.astype(np.float32), labels=labels, views=views)


def other_positions(n_images: int, apart: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(n_images), apart)


def test_fitted_method_is_certified_on_the_other_images() -> None:
    preds = make_predictions()
    rule = certify(preds, "learned", risk=RISK, delta=DELTA)
    apart = tuning_positions(preds.n_images)
    judged = preds.select(images=other_positions(preds.n_images, apart))
    weights = fit_method(preds.select(images=apart), "learned")
    expected = certify_confidence(judged.correct(), sl.confidence(judged, "learned", **weights), risk=RISK, delta=DELTA)
    assert rule.method == "learned"
    assert rule.options == weights
    assert rule.threshold == expected.threshold
    assert rule.calibration is not None
    assert (rule.calibration.images, rule.calibration.tuning) == (900, 300)
    assert "300 other images were set apart" in str(rule)


def test_labels_of_judged_images_do_not_change_the_fit() -> None:
    preds = make_predictions()
    apart = tuning_positions(preds.n_images)
    labels = preds.labels.copy()
    others = other_positions(preds.n_images, apart)
    labels[others] = (labels[others] + 1) % 5
    relabeled = Predictions(logits=preds.logits, labels=labels, views=preds.views)
    assert certify(preds, "learned", risk=RISK).options == certify(relabeled, "learned", risk=0.999).options


def test_default_is_blend_on_all_images() -> None:
    rule = certify(make_predictions(), risk=RISK, delta=DELTA)
    assert rule.method == "blend"
    assert rule.calibration is not None
    assert (rule.calibration.images, rule.calibration.tuning) == (1200, 0)


def test_default_of_a_single_view_is_the_softmax_response() -> None:
    rule = certify(make_predictions(n_views=1), risk=RISK, delta=DELTA)
    assert rule.method == "msr"
    assert rule.calibration is not None
    assert rule.calibration.tuning == 0


def test_given_tuning_images_are_never_certified_on() -> None:
    preds = make_predictions()
    apart = np.arange(0, 1200, 3)
    rule = certify(preds, "mean", risk=RISK, delta=DELTA, tuning=apart)
    mask = np.zeros(1200, dtype=bool)
    mask[apart] = True
    assert certify(preds, "mean", risk=RISK, delta=DELTA, tuning=mask) == rule
    judged = preds.select(images=~mask)
    expected = certify_confidence(judged.correct(), sl.confidence(judged, "mean"), risk=RISK, delta=DELTA)
    assert rule.threshold == expected.threshold
    assert rule.calibration is not None
    assert (rule.calibration.images, rule.calibration.tuning) == (800, 400)


def test_duplicates_are_neither_fitted_nor_certified_on() -> None:
    preds = make_predictions()
    copies = preds.ids[100:400]
    rule = certify(preds, "learned", risk=RISK, delta=DELTA, duplicates=copies)
    kept = preds.select(images=[*range(100), *range(400, 1200)])
    expected = certify(kept, "learned", risk=RISK, delta=DELTA)
    assert rule.threshold == expected.threshold
    assert rule.options == expected.options
    assert rule.calibration is not None
    assert (rule.calibration.duplicates, rule.calibration.tuning) == (300, 225)


def test_options_in_the_text_of_a_method_become_options_of_the_rule() -> None:
    preds = make_predictions()
    rule = certify(preds, "max-logit-pnorm?p=3&on=views", risk=RISK, delta=DELTA)
    assert (rule.method, rule.options) == ("max-logit-pnorm", {"p": 3, "on": "views"})
    given = certify(preds, "max-logit-pnorm", risk=RISK, delta=DELTA, p=3, on="views")
    assert rule.threshold == given.threshold


@pytest.mark.parametrize(("method", "option"), [("max-logit-pnorm?on=views", "p"), ("entropy", "temperature")])
def test_numbers_that_have_to_be_fitted_are_fitted_on_images_set_apart(method: str, option: str) -> None:
    preds = make_predictions()
    options: dict[str, Any] = {"temperature": "fit"} if option == "temperature" else {}
    rule = certify(preds, method, risk=RISK, delta=DELTA, **options)
    fitted = fit_method(preds.select(images=tuning_positions(1200)), method, **options)
    assert rule.options[option] == fitted[option]
    assert rule.calibration is not None
    assert rule.calibration.tuning == 300


def test_threshold_for_a_coverage_is_chosen_on_the_other_images() -> None:
    preds = make_predictions()
    rule = threshold_for(preds, "learned", coverage=0.8)
    assert rule.calibration is not None
    assert (rule.calibration.images, rule.calibration.accepted, rule.calibration.tuning) == (900, 720, 300)
    unlabeled = Predictions(logits=preds.logits, views=preds.views)
    assert threshold_for(unlabeled, coverage=0.8).method == "blend"


def test_too_little_to_fit_is_one_sentence() -> None:
    preds = make_predictions(400)
    with pytest.raises(ConfidenceError, match=r"at least 200 labeled images.*got 100 images.*'blend'"):
        certify(preds, "learned", risk=RISK)
    with pytest.raises(MetricError, match=r"tuning= sets all 400 images apart"):
        certify(preds, "mean", risk=RISK, tuning=np.arange(400))
