"""Operating points against counting by hand, and against the rules of `secondlook.policies`."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.errors import ReportError
from secondlook.metrics import rank
from secondlook.policies import certify, threshold_for
from secondlook.predictions import Predictions
from secondlook.report.operating_points import (
    OperatingPoint,
    certify_methods,
    certify_points,
    choose_headline_risk,
    describe_decisions,
    format_percent,
    point_at_risk,
    slider_risks,
    thin_ranking,
)
from secondlook.report.study import build_study
from tests.report.references import point_at_coverage

images = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0])), min_size=1, max_size=40
)


def split_columns(listed: list[tuple[bool, float]]) -> tuple[BoolArray, Float64Array]:
    return np.array([one[0] for one in listed]), np.array([one[1] for one in listed])


def try_every_threshold(correct: BoolArray, sure: Float64Array, risk: float) -> tuple[float, int, int]:
    best = (math.inf, 0, 0)
    for threshold in sorted(set(sure.tolist()), reverse=True):
        accepted = sure >= threshold
        errors = int((accepted & ~correct).sum())
        if errors <= risk * accepted.sum() + 1e-9:
            best = (threshold, int(accepted.sum()), errors)
    return best


@settings(deadline=None, max_examples=60)
@given(images, st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0]))
def test_point_at_risk_has_the_highest_coverage(listed: list[tuple[bool, float]], risk: float) -> None:
    correct, sure = split_columns(listed)
    point = point_at_risk(rank(correct, sure), risk)
    assert (point.threshold, point.accepted, point.errors) == try_every_threshold(correct, sure, risk)


@pytest.mark.parametrize("coverage", [0.001, 0.333, 0.5, 0.999, 1.0])
def test_point_at_coverage_equals_threshold_for(preds: Predictions, coverage: float) -> None:
    study = build_study(preds, methods=["mean"])
    rule = threshold_for(preds, "mean", coverage=coverage)
    point = point_at_coverage(study.rankings["mean"], coverage)
    assert rule.calibration is not None
    assert (point.threshold, point.accepted, point.errors) == (
        rule.threshold,
        rule.calibration.accepted,
        rule.calibration.errors,
    )


def test_certified_points_equal_certify(preds: Predictions) -> None:
    study = build_study(preds, methods=["mean"])
    risks = np.array([0.0, 0.02, 0.1, 0.15, 0.2, 1.0])
    points = certify_points(study, "mean", risks, 0.05)
    assert points[0].accepted == points[-1].accepted == 0, "risks 0 and 1 cannot be certified"
    for index, risk in enumerate(risks[1:-1].tolist(), start=1):
        rule = certify(preds, "mean", risk=risk, delta=0.05)
        assert rule.calibration is not None
        assert rule.calibration.errors is not None
        assert points[index] == OperatingPoint(rule.threshold, rule.calibration.accepted, rule.calibration.errors)
    assert max(point.accepted for point in points) > 0


def test_rank_based_confidence_has_no_certified_points(preds: Predictions) -> None:
    study = build_study(preds, methods=["bootstrap"])
    reason = certify_methods(study, np.array([0.1]), 0.05)["bootstrap"]
    assert isinstance(reason, str)
    assert "'bootstrap'" in reason


def test_methods_share_delta_as_in_certify(preds: Predictions) -> None:
    study = build_study(preds, methods=["msr", "mean", "bootstrap", "bootstrap-lower"])
    certified = certify_methods(study, np.array([0.15]), 0.1)
    points = {name: one[0] for name, one in certified.items() if not isinstance(one, str)}
    assert set(points) == {"msr", "mean", "bootstrap-lower"}
    rule = certify(preds, list(points), risk=0.15, delta=0.1)
    assert rule.calibration is not None
    assert max(point.accepted for point in points.values()) == rule.calibration.accepted
    assert points[rule.method].threshold == rule.threshold
    alone = certify(preds, rule.method, risk=0.15, delta=0.1)
    assert alone.coverage > rule.coverage, "a method of its own has the whole delta"


def test_only_calibrated_methods_are_certified(preds: Predictions) -> None:
    study = build_study(preds, methods=["msr", "mean"], calibrated=["mean"])
    certified = certify_methods(study, np.array([0.15]), 0.1)
    assert isinstance(certified["msr"], str)
    assert "mean" in certified["msr"]
    points = certified["mean"]
    assert not isinstance(points, str)
    assert points[0].threshold == certify(preds, "mean", risk=0.15, delta=0.1).threshold


def test_copies_of_images_count_once(preds: Predictions) -> None:
    few = Predictions(probabilities=preds.probabilities[:200], views=preds.views, labels=preds.labels[:200])
    tripled = np.repeat(np.arange(200), 3)
    ids = [f"{index}-{copy}" for index in range(200) for copy in range(3)]
    copied = Predictions(
        probabilities=few.probabilities[tripled], views=preds.views, labels=few.labels[tripled], ids=ids
    )
    risks = np.array([0.2])
    study = build_study(copied, methods=["mean"], duplicates=[id_ for id_ in ids if not id_.endswith("-0")])
    point = certify_points(study, "mean", risks, 0.1)[0]
    rule = certify(few, "mean", risk=0.2, delta=0.1)
    assert rule.calibration is not None
    assert point.threshold == rule.threshold
    assert point.accepted == 3 * rule.calibration.accepted, "all images are counted as accepted"
    assert certify_points(build_study(copied, methods=["mean"]), "mean", risks, 0.1)[0].accepted > point.accepted


@settings(deadline=None, max_examples=60)
@given(images, st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_sentence_about_decisions_counts_the_images(listed: list[tuple[bool, float]], risk: float) -> None:
    correct, sure = split_columns(listed)
    point = point_at_risk(rank(correct, sure), risk)
    sentence = describe_decisions(len(correct), int((~correct).sum()), point)
    accept = sure >= point.threshold
    numbers = [len(correct), accept.sum(), (accept & ~correct).sum(), (~accept).sum()]
    numbers += [(~accept & ~correct).sum(), (~correct).sum()] if not correct.all() else []
    assert [int(text) for text in re.findall(r"\d+", sentence)] == numbers


def test_sentence_about_decisions() -> None:
    assert describe_decisions(1000, 112, OperatingPoint(0.8, 775, 15)) == (
        "Of 1,000 images, 775 can be accepted automatically; 15 of those were wrong. "
        "225 go to review, with 97 of the 112 errors among them."
    )
    assert describe_decisions(3, 1, OperatingPoint(0.8, 2, 1)) == (
        "Of 3 images, 2 can be accepted automatically; 1 of those was wrong. "
        "1 goes to review, with 0 of the 1 error among them."
    )
    assert describe_decisions(2, 0, OperatingPoint(0.8, 2, 0)).endswith("0 go to review.")


@pytest.mark.parametrize(
    ("error_rate", "risk"), [(0.0661, 0.01), (0.3, 0.05), (0.24, 0.05), (0.12, 0.02), (0.004, 0.001), (0.0, 0.01)]
)
def test_headline_risk_is_a_round_number(error_rate: float, risk: float) -> None:
    assert choose_headline_risk(error_rate) == risk


@pytest.mark.parametrize("error_rate", [0.0, 0.00011, 0.0661, 0.3, 0.5, 0.999, 1.0])
def test_slider_risks_run_from_zero_to_the_error_rate(error_rate: float) -> None:
    risks = slider_risks(error_rate, headline_risk=0.013)
    assert risks[0] == 0
    assert error_rate <= risks[-1] <= 1
    assert 0.013 in risks
    assert 5 < len(risks) <= 103
    assert (np.diff(risks) > 0).all()


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1, math.nan])
def test_invalid_risk_is_rejected(risk: float) -> None:
    with pytest.raises(ReportError, match=re.escape(f"risk={risk}")):
        slider_risks(0.1, risk)


@pytest.mark.parametrize("max_thresholds", [3, 10, 100])
def test_thinned_ranking_keeps_exact_counts(max_thresholds: int) -> None:
    rng = np.random.default_rng(0)
    correct: Array = rng.random(500) < 0.8
    sure = rng.integers(0, 200, 500) / 200
    whole = rank(correct, sure)
    few = thin_ranking(whole, max_thresholds)
    assert len(few.accepted) <= max_thresholds
    assert (few.n_images, few.n_errors) == (whole.n_images, whole.n_errors)
    for threshold, accepted, errors in zip(few.confidences, few.accepted, few.errors, strict=True):
        assert accepted == (sure >= threshold).sum()
        assert errors == ((sure >= threshold) & ~correct).sum()


@pytest.mark.parametrize(
    ("fraction", "decimals", "text"), [(0.01, 4, "1 %"), (0.9995, 1, "100 %"), (0.1234, 1, "12.3 %"), (1.0, 0, "100 %")]
)
def test_percent_format_drops_trailing_zeros(fraction: float, decimals: int, text: str) -> None:
    assert format_percent(fraction, decimals) == text
