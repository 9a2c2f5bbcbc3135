"""Choosing the best of several methods on the same images: the guarantee holds if they share delta, else it fails."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

from secondlook.errors import ConfidenceError, DecisionError
from secondlook.estimators import FittedMethods
from secondlook.policies import Guarantee, certify, certify_confidence
from secondlook.predictions import Predictions

RISK, DELTA = 0.05, 0.1
CORRELATION = 0.7
"""Between the confidences of two methods; each is a standard normal variable."""
DIFFICULTY, SLOPE = -2.5, 2.0
"""An image of quality z is wrong with probability Phi(DIFFICULTY - SLOPE * z), so that methods see a noisy quality."""


def error_rate(confidence: float) -> float:
    """Return the probability of an error, given the confidence of one method."""
    quality = math.sqrt(CORRELATION) * confidence
    return float(norm.cdf((DIFFICULTY - SLOPE * quality) / math.sqrt(1 + SLOPE**2 * (1 - CORRELATION))))


def smallest_good_threshold() -> float:
    """Return the threshold above which the error rate is exactly RISK; it is the same for all methods."""

    def excess(threshold: float) -> float:
        errors, _ = quad(lambda value: error_rate(value) * norm.pdf(value), threshold, 10)
        return float(errors / norm.sf(threshold)) - RISK

    return float(brentq(excess, -4, 4))


def draw(rng: np.random.Generator, n_images: int, n_methods: int) -> tuple[Any, Any]:
    """Draw whether predictions are correct, bool [N], and their confidences by each method, float64 [M, N]."""
    quality = rng.normal(size=n_images)
    noise = rng.normal(size=(n_methods, n_images))
    confidences = math.sqrt(CORRELATION) * quality + math.sqrt(1 - CORRELATION) * noise
    return rng.random(n_images) >= norm.cdf(DIFFICULTY - SLOPE * quality), confidences


@pytest.mark.parametrize(("n_methods", "draws"), [(5, 300), (20, 100)])
def test_best_of_several_methods_keeps_the_guarantee(
    monkeypatch: pytest.MonkeyPatch, n_methods: int, draws: int
) -> None:
    n_images, limit, rng = 500, smallest_good_threshold(), np.random.default_rng(0)
    names = [f"view:shift:{number},0" for number in range(n_methods)]
    failures = {"shared": 0, "separate": 0}
    for _ in range(draws):
        correct, confidences = draw(rng, n_images, n_methods)
        by_name = dict(zip(names, confidences, strict=True))
        monkeypatch.setattr(FittedMethods, "compute", lambda _, __, name, by_name=by_name: by_name[name])
        # Class 0 is predicted for every image, and the label of wrong predictions is 1.
        preds = Predictions(
            probabilities=np.tile([1.0, 0.0], (n_images, 1, 1)), views="identity", labels=(~correct).astype(int)
        )
        separate = [certify_confidence(correct, values, risk=RISK, delta=DELTA) for values in confidences]
        chosen = {
            "shared": certify(preds, names, risk=RISK, delta=DELTA),
            "separate": max(separate, key=lambda rule: rule.coverage),
        }
        for way, rule in chosen.items():
            failures[way] += rule.threshold < limit
    # By chance alone, one test in ten thousand may fail.
    assert failures["shared"] <= binom.ppf(1 - 1e-4, draws, DELTA)
    assert failures["separate"] > binom.ppf(1 - 1e-4, draws, DELTA), "the attack"


def test_delta_is_shared_and_the_largest_coverage_wins(preds: Predictions) -> None:
    methods = ["msr", "mean", "bootstrap-lower", "view:shift:1,0"]
    rules = [certify(preds, method, risk=0.1, delta=0.05 / 4) for method in methods]
    best = certify(preds, methods, risk=0.1, delta=0.05)
    assert best.certified
    assert best.coverage == max(rule.coverage for rule in rules)
    alone = rules[methods.index(best.method)]
    assert (best.threshold, best.calibration) == (alone.threshold, alone.calibration)
    assert best.guarantee == Guarantee(risk=0.1, delta=0.05)
    assert certify(preds, methods[::-1], risk=0.1, delta=0.05).coverage == best.coverage


def test_one_method_in_a_list_is_that_method(preds: Predictions) -> None:
    assert certify(preds, ["mean"], risk=0.1, delta=0.05) == certify(preds, "mean", risk=0.1, delta=0.05)


def test_shortfall_of_several_methods_is_the_smallest(preds: Predictions) -> None:
    rule = certify(preds, ["msr", "mean"], risk=0.002, delta=0.05)
    alone = [certify(preds, method, risk=0.002, delta=0.025).shortfall for method in ("msr", "mean")]
    assert not rule.certified
    assert rule.shortfall is not None
    assert rule.shortfall.requested == Guarantee(risk=0.002, delta=0.05)
    assert rule.shortfall.smallest_risk == min(one.smallest_risk for one in alone if one and one.smallest_risk)


def test_suggested_delta_of_several_methods_is_the_one_that_they_share() -> None:
    perfect = np.tile([0.9, 0.1], (300, 2, 1)) + np.linspace(0, 0.05, 300)[:, None, None] * [1, -1]
    certain = Predictions(probabilities=perfect, views=["identity", "hflip"], labels=np.zeros(300, dtype=int))
    shortfall = certify(certain, ["msr", "mean"], risk=0.02, delta=0.001).shortfall
    assert shortfall is not None
    assert shortfall.larger_delta is not None
    assert shortfall.larger_delta > 0.001
    assert certify(certain, ["msr", "mean"], risk=0.02, delta=shortfall.larger_delta).certified


@pytest.mark.parametrize(
    ("method", "offending"), [([], r"\[\]"), (["mean", "mean"], "'mean'"), (["mean", 3], "3"), (7, "7")]
)
def test_invalid_lists_of_methods_are_rejected(preds: Predictions, method: Any, offending: str) -> None:
    with pytest.raises(DecisionError, match=offending):
        certify(preds, method, risk=0.1)


def test_every_method_of_a_list_is_checked(preds: Predictions) -> None:
    with pytest.raises(DecisionError, match="'bootstrap'"):
        certify(preds, ["mean", "bootstrap"], risk=0.1)
    with pytest.raises(ConfidenceError, match="meen"):
        certify(preds, ["mean", "meen"], risk=0.1)
