"""The one-sentence result, where the second look helps, hurts, makes no difference, or cannot be judged."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from secondlook.evaluation import Evaluation, evaluate
from secondlook.metrics import coverage_at, rank
from secondlook.predictions import Predictions
from secondlook.report.headline import Headline, coverage_metric, headline, percent
from secondlook.report.study import studied

Made = Callable[..., Predictions]
RISK = 0.2


def told(preds: Predictions, methods: list[str] | None = None) -> tuple[Headline, Evaluation]:
    study = studied(preds, methods or ["msr", "mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    numbers = evaluate(preds, study.confidences, ["auroc", coverage_metric(RISK)], baseline=study.baseline)
    return headline(study, numbers, RISK), numbers


def noisy(made: Made, helps: float) -> Predictions:
    """Further views are surer of the right answers by `helps`, so less sure where it is below zero."""
    rng = np.random.default_rng(3)
    wrong = rng.random(800) < 0.3
    first = np.clip(rng.normal(0.75, 0.1, 800) - 0.12 * wrong, 0.4, 0.99)
    others = np.clip(first + np.where(wrong, -helps, helps) + rng.normal(0, 0.01, 800), 0.26, 0.999)
    return made(first, others, wrong)


def test_a_second_look_that_helps(made: Made) -> None:
    found, numbers = told(noisy(made, 0.1))
    assert found.verdict == "better"
    after, before = (100 * (numbers[name, "auroc"].value or 0) for name in ("mean", "msr"))
    more, fewer = (100 * (numbers[name, coverage_metric(RISK)].value or 0) for name in ("mean", "msr"))
    assert after > before
    assert more > fewer
    assert found.sentence == (
        f"A second look detects errors with AUROC {after:.1f} instead of {before:.1f}; "
        f"at 20 % risk it accepts {more:.0f} % instead of {fewer:.0f} % of the images."
    )


def test_a_second_look_that_hurts_is_not_praised(made: Made) -> None:
    found, numbers = told(noisy(made, -0.1))
    assert found.verdict == "worse"
    assert (numbers["mean", "auroc"].value or 0) < (numbers["msr", "auroc"].value or 0)
    assert found.sentence.startswith("A second look does not help here: it detects errors with AUROC ")
    after, before = (float(text) for text in re.findall(r"AUROC ([\d.]+) instead of ([\d.]+)", found.sentence)[0])
    assert after < before


def test_a_difference_within_its_interval_is_called_unclear(made: Made) -> None:
    found, numbers = told(noisy(made, 0.0))
    ends = numbers["mean", "auroc"].difference_interval
    assert ends is not None
    assert ends.low <= 0 <= ends.high
    assert found.verdict == "unclear"
    assert found.sentence.startswith("A second look makes no clear difference here: ")
    assert f"interval {100 * ends.low:+.2f} to {100 * ends.high:+.2f}" in found.sentence


def test_equal_views_change_nothing(made: Made) -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(0.4, 0.99, 300)
    found, _ = told(made(first, first, rng.random(300) < 0.3))
    assert found.verdict == "unclear"
    assert "both accept" in found.sentence or "as before" in found.sentence


def test_opposite_directions_are_joined_by_but(made: Made) -> None:
    preds = noisy(made, 0.1)
    study = studied(preds, ["msr", "mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    numbers = evaluate(preds, study.confidences, ["auroc", coverage_metric(RISK)])
    errors_early = rank([True] * 64 + [False] * 250 + [True] * 486, -np.arange(800.0))
    study = replace(study, rankings={**study.rankings, "mean": errors_early})
    assert "; but at 20 % risk it accepts 10 % instead of " in headline(study, numbers, RISK).sentence


def test_what_is_said_to_be_accepted_can_be_accepted(made: Made) -> None:
    # Half of the images are surer than the other half, and all of a half are equally sure.
    sure = np.where(np.arange(1000) < 500, 0.99, 0.9)
    wrong = np.isin(np.arange(1000), np.arange(500, 550))
    preds = made(sure, sure, wrong)
    study = studied(preds, ["msr", "mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    numbers = evaluate(preds, study.confidences, ["auroc"], baseline=study.baseline, resamples=20)
    assert "at 1 % risk both accept 50 % of the images" in headline(study, numbers, 0.01).sentence
    assert coverage_at(study.correct, study.confidences["mean"], 0.01) > 0.55, "as a metric, over the order of ties"


def test_numbers_that_round_alike_get_more_decimals(made: Made) -> None:
    preds = noisy(made, 0.1)
    study = studied(preds, ["msr", "mean"], predict_from="image", top_k=1, seed=0, class_names=None)
    numbers = evaluate(preds, study.confidences, ["auroc", coverage_metric(RISK)])
    values = {("mean", "auroc"): 0.99996, ("msr", "auroc"): 0.99991}
    rows = tuple(replace(row, value=values.get((row.method, row.metric), row.value)) for row in numbers.rows)
    assert "AUROC 99.996 instead of 99.991;" in headline(study, replace(numbers, rows=rows), RISK).sentence


@pytest.mark.parametrize(
    ("wrong", "expected"), [(False, "right about all 5 images"), (True, "wrong about all 5 images")]
)
def test_nothing_to_detect(made: Made, wrong: bool, expected: str) -> None:
    values = np.linspace(0.5, 0.9, 5)
    found, _ = told(made(values, values, np.full(5, wrong)))
    assert found.verdict == "none"
    assert expected in found.sentence


def test_one_error_is_too_few_to_judge(made: Made) -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(0.5, 0.99, 50)
    found, _ = told(made(first, first[::-1], np.arange(50) == 7))
    assert found.verdict == "unclear"
    assert "with 1 error that may be chance" in found.sentence


def test_without_a_second_look_none_is_claimed(preds: Predictions) -> None:
    found, numbers = told(preds.select(views="identity"), ["msr"])
    assert found.verdict == "none"
    auroc = 100 * (numbers["msr", "auroc"].value or 0)
    assert found.sentence.startswith(f"Without a second look, msr detects errors with AUROC {auroc:.1f}; at 20 % risk")


@pytest.mark.parametrize(
    ("share", "decimals", "text"), [(0.01, 4, "1 %"), (0.9995, 1, "100 %"), (0.1234, 1, "12.3 %"), (1.0, 0, "100 %")]
)
def test_percent(share: float, decimals: int, text: str) -> None:
    assert percent(share, decimals) == text
