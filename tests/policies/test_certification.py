"""Choosing thresholds: what rules accept and guarantee, the images set apart, and the best of several methods."""

import contextlib
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

from secondlook.errors import ConfidenceError, DecisionError, MetricError
from secondlook.estimators import confidence, fit_method, tuning_positions
from secondlook.policies import (
    DEFAULT_DELTA,
    Guarantee,
    PolicyWarning,
    certify,
    certify_confidence,
    read_policy,
    threshold_for,
)
from secondlook.predictions import PredictFrom, Predictions
from tests.policies.conftest import known, relabel


@pytest.fixture(scope="module")
def unlabeled(preds: Predictions) -> Predictions:
    return Predictions(probabilities=preds.probabilities, views=preds.views)


@pytest.mark.parametrize(("predict_from", "top_k"), [("image", 1), ("views", 1), ("image", 2), ("views", 2)])
def test_certified_rule_matches_its_calibration(preds: Predictions, predict_from: PredictFrom, top_k: int) -> None:
    rule = certify(preds, "mean", risk=0.1, delta=0.05, predict_from=predict_from, top_k=top_k)
    accepted = rule.accept(confidence(preds, "mean", predict_from=predict_from, top_k=top_k), method=rule.method)
    assert rule.certified
    assert rule.coverage == pytest.approx(accepted.mean())
    counts = known(rule.calibration)
    assert counts.errors == np.sum(~preds.correct(predict_from=predict_from, top_k=top_k)[accepted])
    assert known(counts.errors) < 0.1 * counts.accepted
    assert (rule.method, rule.predict_from, rule.top_k) == ("mean", predict_from, top_k)
    assert rule.guarantee == Guarantee(risk=0.1, delta=0.05)


def test_delta_has_one_default(preds: Predictions) -> None:
    expected = Guarantee(risk=0.2, delta=DEFAULT_DELTA)
    assert certify(preds, "mean", risk=0.2).guarantee == expected
    assert certify_confidence(preds.correct(), confidence(preds, "mean"), risk=0.2).guarantee == expected


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


def test_equal_confidences_are_accepted_together() -> None:
    correct, values = np.ones(200, dtype=bool), np.repeat([0.9, 0.5], [150, 50])
    rule = certify_confidence(correct, values, risk=0.05, delta=0.05)
    assert (rule.threshold, rule.coverage) == (0.5, 1.0)


def test_rule_accepts_nothing_if_nothing_can_be_guaranteed() -> None:
    rng = np.random.default_rng(3)
    correct, values = rng.random(400) < 0.98, rng.random(400)
    rule = certify_confidence(correct, values, risk=0.015, delta=0.01)
    assert not rule.certified
    assert (rule.threshold, rule.coverage) == (math.inf, 0.0)
    assert not rule.accept(values, method=rule.method).any()
    shortfall = known(rule.shortfall)
    assert shortfall.requested == Guarantee(risk=0.015, delta=0.01)
    smallest = known(shortfall.smallest_risk)
    assert 0.015 < smallest < 0.1
    assert certify_confidence(correct, values, risk=smallest, delta=0.01).certified
    assert str(rule).startswith(f"accept nothing: {shortfall}")


def test_suggestions_pass_on_the_same_images() -> None:
    correct, values = np.ones(300, dtype=bool), np.arange(300.0)
    shortfall = known(certify_confidence(correct, values, risk=0.02, delta=0.001).shortfall)
    assert certify_confidence(correct, values, risk=known(shortfall.smallest_risk), delta=0.001).certified
    assert certify_confidence(correct, values, risk=0.02, delta=known(shortfall.larger_delta)).certified
    assert "guarantees nothing" in str(shortfall)


def draw_mostly_wrong(n: int) -> np.ndarray:
    """Return predictions of which the most confident one is right, which says nothing about the others."""
    correct = np.random.default_rng(n).random(n) >= 0.53
    correct[:2] = True, False
    return correct


@pytest.mark.parametrize(
    ("correct", "risk", "delta", "is_bad_everywhere"),
    [
        (draw_mostly_wrong(92), 0.05, DEFAULT_DELTA, True),
        (draw_mostly_wrong(500), 0.05, DEFAULT_DELTA, True),
        (np.zeros(500, dtype=bool), 0.1, 0.1, True),
        (np.arange(400) % 10 > 0, 0.10001, 0.1, False),
    ],
    ids=["mostly wrong", "more of them", "all wrong", "absurdly many"],
)
def test_images_that_would_not_help_are_not_requested(
    correct: np.ndarray, risk: float, delta: float, is_bad_everywhere: bool
) -> None:
    rule = certify_confidence(correct, -np.arange(float(len(correct))), risk=risk, delta=delta)
    shortfall = known(rule.shortfall)
    assert shortfall.additional_images is None
    closest = known(shortfall.closest)
    assert (known(closest.errors) > risk * closest.accepted) == is_bad_everywhere
    assert "would not help" in str(rule)


def test_estimate_states_its_number_of_images() -> None:
    rule = certify_confidence([True, *[False] * 19], -np.arange(20.0), risk=0.05)
    assert "0 of 1 accepted" in str(rule)
    assert "if this error rate holds" in str(rule)


def test_number_of_additional_images_is_about_right() -> None:
    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(n)
        quantile = rng.random(n)
        return rng.random(n) >= 0.06 * quantile**2, -quantile

    rule = certify_confidence(*draw(300), risk=0.01, delta=0.01)
    additional = known(known(rule.shortfall).additional_images)
    assert certify_confidence(*draw(300 + 4 * additional), risk=0.01, delta=0.01).certified
    assert f"{additional:,}" in str(rule)


def test_threshold_for_coverage_has_no_guarantee(preds: Predictions, unlabeled: Predictions) -> None:
    rule = threshold_for(preds, "mean", coverage=0.7)
    assert rule.coverage == pytest.approx(0.7)
    assert not rule.certified
    assert "guarantee: none" in str(rule)
    without_labels = threshold_for(unlabeled, "mean", coverage=0.7)
    assert without_labels.threshold == pytest.approx(rule.threshold)
    assert known(without_labels.calibration).errors is None
    assert "no labels" in str(without_labels)


def choose_on_average(correct: list[bool], values: list[float], risk: float) -> int:
    """Return the largest number of images above a threshold with (errors + 1) / (accepted + 1) <= risk, 0 if none."""
    accepted = 0
    for threshold in values:
        above = [right for right, value in zip(correct, values, strict=True) if value >= threshold]
        if (above.count(False) + 1) / (len(above) + 1) <= risk + 1e-12:
            accepted = max(accepted, len(above))
    return accepted


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=40), st.floats(0.05, 0.9))
@settings(max_examples=80)
def test_average_risk_takes_the_lowest_threshold_that_passes(images: list[tuple[bool, int]], risk: float) -> None:
    correct, values = [right for right, _ in images], [0.5 + level / 14 for _, level in images]
    preds = Predictions(
        probabilities=[[[value, 1 - value]] for value in values], views=["identity"], labels=1 - np.array(correct)
    )
    assume(preds.correct().tolist() == correct)
    expected = choose_on_average(correct, values, risk)
    if not expected:
        with pytest.raises(DecisionError, match="on average"):
            threshold_for(preds, "msr", average_risk=risk)
        return
    rule = threshold_for(preds, "msr", average_risk=risk)
    assert known(rule.calibration).accepted == expected == rule.accept(preds).sum()
    assert (rule.certified, rule.average_risk) == (False, risk)


def test_average_risk_counts_wrong_copies_only(preds: Predictions) -> None:
    wrong = preds.ids[int(np.flatnonzero(~preds.correct())[0])]
    right = preds.ids[int(np.flatnonzero(preds.correct())[0])]
    plain = threshold_for(preds, average_risk=0.05)
    with_copies = threshold_for(preds, average_risk=0.05, duplicates=[wrong, right])
    assert (known(with_copies.calibration).images, known(with_copies.calibration).duplicates) == (799, 1)
    assert with_copies.threshold >= plain.threshold


def test_average_risk_is_never_taken_for_a_guarantee(preds: Predictions, tmp_path: Path) -> None:
    rule = threshold_for(preds, average_risk=0.1)
    assert not rule.certified
    assert "on average" in rule.guarantee_text
    rule.save(tmp_path / "policy.json")
    loaded = read_policy(tmp_path / "policy.json")
    assert (loaded.average_risk, loaded.certified) == (0.1, False)
    content = (
        (tmp_path / "policy.json").read_text(encoding="utf-8").replace('"average_risk": 0.1', '"average_risk": 0.01')
    )
    (tmp_path / "policy.json").write_text(content, encoding="utf-8")
    with pytest.warns(PolicyWarning):
        assert read_policy(tmp_path / "policy.json").average_risk is None
    with pytest.raises(DecisionError, match="average_risk"):
        threshold_for(preds, coverage=0.5, average_risk=0.1)
    with pytest.raises(DecisionError, match="average_risk=2"):
        threshold_for(preds, average_risk=2)
    with pytest.raises(DecisionError, match="guarantee"):
        rule.replace(guarantee=Guarantee(risk=0.1, delta=0.1))


@pytest.mark.parametrize(
    "value", ["0.1", None, True, np.bool_(True), 0, 0.0, 1.0, math.nan, 1.5, 1j, [0.1], np.array([0.1, 0.2])]
)
def test_values_outside_0_to_1_are_rejected(preds: Predictions, value: Any) -> None:
    for name in ("risk", "delta"):
        given, offending = {"risk": 0.1, name: value}, f"{name}={re.escape(repr(value))}"
        with pytest.raises(DecisionError, match=offending):
            certify(preds, "mean", **given)
        with pytest.raises(DecisionError, match=offending):
            certify_confidence([True], [0.5], **given)
    if not isinstance(value, float) or value != 1.0:
        with pytest.raises(DecisionError, match=f"coverage={re.escape(repr(value))}"):
            threshold_for(preds, coverage=value)


def test_confidence_level_is_rejected_as_delta(preds: Predictions) -> None:
    for certify_with in (partial(certify, preds), partial(certify_confidence, [True], [0.5])):
        with pytest.raises(DecisionError, match=re.escape("delta=0.05")) as caught:
            certify_with(risk=0.1, delta=0.95)
        assert (caught.value.argument, caught.value.value) == ("delta", 0.95)
    assert certify(preds, risk=0.4, delta=0.5).certified


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
        ([True, False], [0.1, np.nan], "NaN at index 1"),
        ([True, False], [0.5, math.inf], "inf at index 1"),
        ([True] * 100, [math.inf] * 100, "inf at index 0"),
        ([True] * 100, [0.5] * 99 + [-math.inf], "-inf at index 99"),
    ],
)
def test_invalid_arrays_are_rejected(correct: Any, confidence: Any, offending: str) -> None:
    with pytest.raises(DecisionError, match=offending):
        certify_confidence(correct, confidence, risk=0.1, delta=0.1)


def test_labels_are_needed(unlabeled: Predictions) -> None:
    with pytest.raises(DecisionError, match="labels"):
        certify(unlabeled, "mean", risk=0.1, delta=0.1)


def test_options_in_the_text_of_a_method_become_options_of_the_rule(preds: Predictions) -> None:
    rule = certify(preds, "max-logit-pnorm?p=3&on=views", risk=0.1, delta=0.1)
    assert (rule.method, rule.options) == ("max-logit-pnorm", {"p": 3, "on": "views"})
    assert rule.threshold == certify(preds, "max-logit-pnorm", risk=0.1, delta=0.1, p=3, on="views").threshold


# --------------------------------------------------------------------------------------- images set apart, and copies


@pytest.mark.parametrize(
    ("method", "options", "fitted"),
    [("learned", {}, None), ("max-logit-pnorm?on=views", {}, "p"), ("msr", {"temperature": "fit"}, "temperature")],
)
def test_fitted_method_is_certified_on_the_other_images(
    world: Predictions, method: str, options: Any, fitted: str | None
) -> None:
    rule = certify(world, method, risk=0.1, delta=0.1, **options)
    apart = tuning_positions(world.n_images)
    others = np.setdiff1d(np.arange(world.n_images), apart)
    judged, weights = world.select(images=others), fit_method(world.select(images=apart), method, **options)
    expected = certify_confidence(judged.correct(), confidence(judged, method, **weights), risk=0.1, delta=0.1)
    assert rule.threshold == expected.threshold
    assert (known(rule.calibration).images, known(rule.calibration).tuning) == (2250, 750)
    assert "750 other images were set apart" in str(rule)
    assert (rule.options if fitted is None else rule.options[fitted]) == (
        weights if fitted is None else weights[fitted]
    )
    relabeled = certify(relabel(world, others), method, risk=0.999, **options)
    assert relabeled.options == rule.options, "labels of judged images do not change the fit"


@pytest.mark.parametrize(("n_views", "method"), [(6, "blend"), (1, "msr")])
def test_default_is_certified_on_all_images(world: Predictions, n_views: int, method: str) -> None:
    some = world.select(views=list(world.views.texts[:n_views]))
    rule = certify(some, risk=0.1, delta=0.1)
    assert rule.method == method
    assert (known(rule.calibration).images, known(rule.calibration).tuning) == (3000, 0)
    unlabeled = Predictions(logits=some.logits, views=some.views)
    assert threshold_for(unlabeled, coverage=0.8).method == method


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("power", [0, 1, 3])
def test_error_rate_is_at_most_the_average_risk_on_average(n: int, power: int) -> None:
    """An image at quantile u is wrong in 0.6 u^power of all cases, so the risk up to u is 0.6 u^power / (power + 1)."""
    rng, risk, draws = np.random.default_rng(0), 0.1, 400
    risks = np.zeros(draws)
    for draw in range(draws):
        u = rng.random(n)
        wrong = rng.random(n) < (0.6 if power else 0.11) * u**power
        preds = Predictions(
            probabilities=np.stack([1 - u / 2, u / 2], axis=1)[:, None], views=["identity"], labels=wrong.astype(int)
        )
        with contextlib.suppress(DecisionError):
            quantile = 2 * (1 - threshold_for(preds, "msr", average_risk=risk).threshold)
            risks[draw] = (0.6 if power else 0.11) * quantile**power / (power + 1)
    assert risks.mean() <= risk + 4 * risks.std() / np.sqrt(draws)
    if power:
        assert risks.mean() > 0.8 * risk, "no larger risk is possible with so few labels"


def test_given_tuning_images_are_never_certified_on(preds: Predictions) -> None:
    mask = np.arange(800) % 4 == 0
    rule = certify(preds, "mean", risk=0.1, delta=0.1, tuning=np.flatnonzero(mask))
    assert certify(preds, "mean", risk=0.1, delta=0.1, tuning=mask) == rule
    judged = preds.select(images=~mask)
    expected = certify_confidence(judged.correct(), confidence(judged, "mean"), risk=0.1, delta=0.1)
    assert rule.threshold == expected.threshold
    assert (known(rule.calibration).images, known(rule.calibration).tuning) == (600, 200)


def test_nothing_is_fitted_to_duplicates_and_only_wrong_ones_are_certified_on(world: Predictions) -> None:
    rule = certify(world, "learned", risk=0.1, delta=0.1, duplicates=world.ids[100:400])
    is_copy, apart = (np.arange(3000) >= 100) & (np.arange(3000) < 400), tuning_positions(3000)
    fitted = fit_method(world.select(images=apart[~is_copy[apart]]), "learned")
    assert rule.options == fitted
    values, others = confidence(world, "learned", **fitted), np.delete(np.arange(3000), apart)
    expected = certify_confidence(world.correct()[others], values[others], risk=0.1, delta=0.1, is_copy=is_copy[others])
    assert rule.threshold == expected.threshold
    counts = known(rule.calibration)
    assert counts.duplicates == np.sum(world.correct()[others] & is_copy[others]) > 100
    assert (counts.tuning, counts.images) == (750, 2250 - counts.duplicates)


def test_threshold_for_a_coverage_is_chosen_on_the_other_images(world: Predictions) -> None:
    counts = known(threshold_for(world, "learned", coverage=0.8).calibration)
    assert (counts.images, counts.accepted, counts.tuning) == (2250, 1800, 750)


def test_too_few_images_are_rejected(preds: Predictions) -> None:
    some = preds.select(images=np.arange(400))
    with pytest.raises(ConfidenceError, match=r"at least 200 labeled images.*got 100 images.*'blend'"):
        certify(some, "learned", risk=0.1)
    with pytest.raises(MetricError, match=r"tuning= sets all 400 images apart"):
        certify(some, "mean", risk=0.1, tuning=np.arange(400))


# ----------------------------------------------------------------------------------------------------- several methods

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
def test_best_of_several_methods_keeps_the_guarantee(n_methods: int, draws: int) -> None:
    n_images, limit, rng = 500, (1 + norm.cdf(smallest_good_threshold())) / 2, np.random.default_rng(0)
    views = [f"shift:{number},0" for number in range(1, n_methods + 1)]
    failures = {"shared": 0, "separate": 0}
    for _ in range(draws):
        correct, confidences = draw(rng, n_images, n_methods)
        # Every view predicts class 0, with a confidence of its own, and the label of wrong predictions is 1.
        first = np.concatenate([np.ones((1, n_images)), (1 + norm.cdf(confidences)) / 2]).T
        preds = Predictions(
            probabilities=np.stack([first, 1 - first], axis=2),
            views=["identity", *views],
            labels=(~correct).astype(int),
        )
        separate = [certify_confidence(correct, values, risk=RISK, delta=DELTA) for values in first.T[1:]]
        failures["separate"] += max(separate, key=lambda rule: rule.coverage).threshold < limit
        shared = certify(preds, [f"view:{view}" for view in views], risk=RISK, delta=DELTA)
        failures["shared"] += shared.threshold < limit
    # By chance alone, one test in ten thousand may fail.
    assert failures["shared"] <= binom.ppf(1 - 1e-4, draws, DELTA)
    assert failures["separate"] > binom.ppf(1 - 1e-4, draws, DELTA), "the attack"


def test_delta_is_shared_and_the_largest_coverage_wins(preds: Predictions) -> None:
    methods = ["msr", "mean", "zero", "view:shift:1,0"]
    rules = [certify(preds, method, risk=0.1, delta=0.05 / 4) for method in methods]
    best = certify(preds, methods, risk=0.1, delta=0.05)
    assert best.certified
    assert best.coverage == max(rule.coverage for rule in rules)
    alone = rules[methods.index(best.method)]
    assert (best.threshold, best.calibration) == (alone.threshold, alone.calibration)
    assert best.guarantee == Guarantee(risk=0.1, delta=0.05)
    assert certify(preds, methods[::-1], risk=0.1, delta=0.05).coverage == best.coverage
    assert [(one.method, one.threshold, one.coverage, one.chosen) for one in best.compared] == [
        (method, rule.threshold, rule.coverage, rule is alone) for method, rule in zip(methods, rules, strict=True)
    ]


def test_one_method_in_a_list_is_that_method(preds: Predictions) -> None:
    assert certify(preds, ["mean"], risk=0.1, delta=0.05) == certify(preds, "mean", risk=0.1, delta=0.05)


def test_compared_methods_are_listed(preds: Predictions) -> None:
    rule = certify(preds, ["msr", "mean"], risk=0.1, delta=0.1)
    table = str(rule.list_tables()[0])
    assert table.splitlines()[2].split() == [
        *("mean", f"{rule.threshold:.6g}", f"{100 * rule.coverage:.2f}", "%", "chosen")
    ]
    assert table in str(rule)
    assert "best of 2" in str(rule)
    assert len(certify(preds, "mean", risk=0.1, delta=0.1).compared) == 1


def test_shortfall_of_several_methods_is_the_smallest(preds: Predictions) -> None:
    rule = certify(preds, ["msr", "mean"], risk=0.002, delta=0.05)
    alone = [certify(preds, method, risk=0.002, delta=0.025).shortfall for method in ("msr", "mean")]
    assert not rule.certified
    assert [one.threshold for one in rule.compared] == [None, None]
    assert known(rule.shortfall).requested == Guarantee(risk=0.002, delta=0.05)
    assert known(rule.shortfall).smallest_risk == min(one.smallest_risk for one in alone if one and one.smallest_risk)


def test_suggested_delta_of_several_methods_is_the_one_that_they_share() -> None:
    perfect = np.tile([0.9, 0.1], (300, 2, 1)) + np.linspace(0, 0.05, 300)[:, None, None] * [1, -1]
    certain = Predictions(probabilities=perfect, views=["identity", "hflip"], labels=np.zeros(300, dtype=int))
    larger = known(known(certify(certain, ["msr", "mean"], risk=0.02, delta=0.001).shortfall).larger_delta)
    assert larger > 0.001
    assert certify(certain, ["msr", "mean"], risk=0.02, delta=larger).certified


@pytest.mark.parametrize(
    ("method", "offending"),
    [
        ([], r"\[\]"),
        (["mean", "mean"], "'mean'"),
        (["mean", 3], "3"),
        (7, "7"),
        ("bootstrap", r"'bootstrap'.*'blend'"),
        (["mean", "bootstrap"], "'bootstrap'"),
    ],
)
def test_methods_that_cannot_be_certified_are_rejected(preds: Predictions, method: Any, offending: str) -> None:
    """Among them a confidence that depends on other images."""
    with pytest.raises(DecisionError, match=offending):
        certify(preds, method, risk=0.1)


def test_unknown_method_of_a_list_is_rejected(preds: Predictions) -> None:
    with pytest.raises(ConfidenceError, match="meen"):
        certify(preds, ["mean", "meen"], risk=0.1)
