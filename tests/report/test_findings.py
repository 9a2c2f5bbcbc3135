"""The results of a report, and the headline where the second look helps, hurts, changes nothing or cannot be judged."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secondlook.evaluation import Evaluation, evaluate
from secondlook.metrics import coverage_at, rank
from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.report.findings import Headline, compute_findings, write_headline
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import Study, build_study

PredictionFactory = Callable[..., Predictions]
RISK = 0.2


def evaluate_study(study: Study, **options: Any) -> Evaluation:
    metrics = ["auroc", f"coverage_at:{RISK:g}"]
    return evaluate(study.preds, study.confidences, metrics, **options)


def headline_of(preds: Predictions, methods: tuple[str, ...] = ("msr", "mean")) -> tuple[Headline, Evaluation]:
    study = build_study(preds, methods=methods)
    evaluation = evaluate_study(study)
    return write_headline(study, evaluation, RISK), evaluation


def noisy_predictions(make_predictions: PredictionFactory, gain: float) -> Predictions:
    """Make other views more confident of correct predictions, and less of wrong ones, by `gain`."""
    rng = np.random.default_rng(3)
    wrong = rng.random(800) < 0.3
    first = np.clip(rng.normal(0.75, 0.1, 800) - 0.12 * wrong, 0.4, 0.99)
    others = np.clip(first + np.where(wrong, -gain, gain) + rng.normal(0, 0.01, 800), 0.26, 0.999)
    return make_predictions(first, others, wrong)


def test_second_look_that_helps(make_predictions: PredictionFactory) -> None:
    headline, evaluation = headline_of(noisy_predictions(make_predictions, 0.1))
    assert headline.verdict == "better"
    after, before = (100 * (evaluation[name, "auroc"].value or 0) for name in ("mean", "msr"))
    more, fewer = (100 * (evaluation[name, f"coverage_at:{RISK:g}"].value or 0) for name in ("mean", "msr"))
    assert after > before
    assert more > fewer
    assert headline.sentence == (
        f"A second look detects errors with AUROC {after:.1f} instead of {before:.1f}; "
        f"at 20 % risk it accepts {more:.0f} % instead of {fewer:.0f} % of the images."
    )


def test_second_look_that_hurts(make_predictions: PredictionFactory) -> None:
    headline, evaluation = headline_of(noisy_predictions(make_predictions, -0.1))
    assert headline.verdict == "worse"
    assert (evaluation["mean", "auroc"].value or 0) < (evaluation["msr", "auroc"].value or 0)
    after, before = (float(text) for text in re.findall(r"AUROC ([\d.]+) instead of ([\d.]+)", headline.sentence)[0])
    assert after < before


def test_difference_whose_interval_includes_zero_is_unclear(make_predictions: PredictionFactory) -> None:
    headline, evaluation = headline_of(noisy_predictions(make_predictions, 0.0))
    ends = evaluation["mean", "auroc"].difference_interval
    assert ends is not None
    assert ends.low <= 0 <= ends.high
    assert headline.verdict == "unclear"
    assert f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}" in headline.sentence


def test_opposite_directions_are_joined_by_but(make_predictions: PredictionFactory) -> None:
    study = build_study(noisy_predictions(make_predictions, 0.1), methods=["msr", "mean"])
    evaluation = evaluate_study(study)
    errors_early = rank([True] * 64 + [False] * 250 + [True] * 486, -np.arange(800.0))
    study = replace(study, rankings={**study.rankings, "mean": errors_early})
    assert "; but at 20 % risk it accepts 10 % instead of " in write_headline(study, evaluation, RISK).sentence


def test_coverage_of_the_headline_is_reached_by_a_threshold(make_predictions: PredictionFactory) -> None:
    # One half of the images has a higher confidence than the other; within each half all are equal.
    sure = np.where(np.arange(1000) < 500, 0.99, 0.9)
    wrong = np.isin(np.arange(1000), np.arange(500, 550))
    study = build_study(make_predictions(sure, sure, wrong), methods=["msr", "mean"])
    sentence = write_headline(study, evaluate_study(study, resamples=20), 0.01).sentence
    assert "both accept 50 % of the images" in sentence
    assert coverage_at(study.correct, study.confidences["mean"], 0.01) > 0.55, "the metric splits ties"


def test_numbers_that_round_alike_get_more_decimals(make_predictions: PredictionFactory) -> None:
    study = build_study(noisy_predictions(make_predictions, 0.1), methods=["msr", "mean"])
    evaluation = evaluate_study(study)
    values = {("mean", "auroc"): 0.99996, ("msr", "auroc"): 0.99991}
    rows = tuple(replace(row, value=values.get((row.method, row.metric), row.value)) for row in evaluation.rows)
    sentence = write_headline(study, replace(evaluation, rows=rows), RISK).sentence
    assert "99.996 instead of 99.991" in sentence


@pytest.mark.parametrize(("wrong", "expected"), [(False, "correct on all 5 images"), (True, "wrong on all 5 images")])
def test_no_contrast_between_correct_and_wrong(make_predictions: PredictionFactory, wrong: bool, expected: str) -> None:
    values = np.linspace(0.5, 0.9, 5)
    headline, _ = headline_of(make_predictions(values, values, np.full(5, wrong)))
    assert headline.verdict == "none"
    assert expected in headline.sentence


def test_one_error_is_too_few_to_judge(make_predictions: PredictionFactory) -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(0.5, 0.99, 50)
    headline, _ = headline_of(make_predictions(first, first[::-1], np.arange(50) == 7))
    assert headline.verdict == "unclear"
    assert "only 1 error;" in headline.sentence


def test_single_view_has_no_second_look(preds: Predictions) -> None:
    headline, evaluation = headline_of(preds.select(views="identity"), ("msr",))
    assert headline.verdict == "none"
    auroc = 100 * (evaluation["msr", "auroc"].value or 0)
    assert f"msr detects errors with AUROC {auroc:.1f}; at 20 % risk" in headline.sentence


def test_headline_does_not_need_auroc_among_the_metrics(preds: Predictions) -> None:
    study = build_study(preds, methods=["msr", "mean"], metrics=["aurc"], resamples=20)
    findings = compute_findings(study, risk=0.1, delta=0.05)
    assert {row.metric for row in findings.evaluation.rows} == {"aurc", "coverage_at:0.1"}
    assert findings.headline.verdict == "better"


def test_evaluation_is_that_of_evaluate(preds: Predictions) -> None:
    options: dict[str, Any] = {"predict_from": "views", "top_k": 2, "level": 0.9, "resamples": 20}
    study = build_study(preds, methods=["msr", "mean"], metrics=["auroc"], **options)
    findings = compute_findings(study, risk=0.1, delta=0.05)
    expected = evaluate(
        preds,
        ["msr", "mean"],
        ["auroc", "coverage_at:0.1"],
        **options,
    )
    assert findings.evaluation == expected


def test_tables_are_about_the_calibrated_operating_point(preds: Predictions) -> None:
    rule = certify(preds, "msr", risk=0.35, delta=0.1)
    study = build_study(preds, methods=["msr", "mean"], calibrated=["msr"], resamples=10)
    findings = compute_findings(study, risk=0.35, delta=0.1)
    assert rule.calibration is not None
    assert (findings.method, findings.point.threshold, findings.guaranteed) == ("msr", rule.threshold, True)
    assert sum(one.accepted for one in findings.classes) == rule.calibration.accepted
    assert sum(one.errors_accepted for one in findings.classes) == rule.calibration.errors


def test_calibration_without_a_result_leaves_the_observed_operating_point(preds: Predictions) -> None:
    study = build_study(preds, methods=["msr", "mean"], calibrated=["msr"], resamples=10)
    assert not certify(preds, "msr", risk=0.001, delta=0.001).certified
    findings = compute_findings(study, risk=0.001, delta=0.001)
    assert (findings.method, findings.guaranteed) == ("msr", False)
    assert findings.point == point_at_risk(study.rankings["msr"], 0.001)
