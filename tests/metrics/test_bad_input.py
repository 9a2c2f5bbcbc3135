"""What cannot be measured is said in one sentence."""

from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError


@pytest.mark.parametrize(
    ("correct", "confidence", "sentence"),
    [
        ([True, False], [0.1], r"correct has shape \(2,\) and confidence \(1,\)"),
        ([[True]], [[0.1]], "expected one value per image"),
        ([1, 0], [0.1, 0.2], "correct has dtype int64, expected bool"),
        ([True, False], [0.1, np.nan], "confidence is NaN at index 1"),
        ([True, False], ["a", "b"], "expected real numbers"),
        (np.zeros(0, dtype=bool), np.zeros(0), "expected at least one image"),
    ],
)
def test_bad_arrays(correct: Any, confidence: Any, sentence: str) -> None:
    with pytest.raises(MetricError, match=sentence):
        metrics.auroc(correct, confidence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("aurok", "unknown metric 'aurok'.*Did you mean 'auroc'"),
        ("auroc:3", "'auroc' has no parameter"),
        ("risk_at", "'risk_at' lacks its coverage"),
        ("risk_at:many", "expected a number as in 'risk_at:0.8'"),
    ],
)
def test_bad_names(text: str, sentence: str) -> None:
    with pytest.raises(MetricError, match=sentence):
        metrics.parse_metric(text)


@pytest.mark.parametrize("coverage", [0.0, 1.5, float("nan")])
def test_coverage_outside_its_range(coverage: float) -> None:
    with pytest.raises(MetricError, match=r"expected a share in \(0, 1\]"):
        metrics.risk_at([True], [0.5], coverage)


def test_other_bad_values() -> None:
    with pytest.raises(MetricError, match=r"expected a share in \[0, 1\]"):
        metrics.coverage_at([True], [0.5], -0.1)
    with pytest.raises(MetricError, match="got ties='random'"):
        metrics.aupr([False], [0.5], ties="random")  # type: ignore[arg-type]
    with pytest.raises(MetricError, match=r"brier got confidence 1\.5"):
        metrics.brier([True, False], [0.5, 1.5])
    with pytest.raises(MetricError, match="named twice"):
        metrics.parse_metrics(["auroc", "aurc", "auroc"])


def test_a_second_metric_of_the_same_name_is_refused() -> None:
    with pytest.raises(MetricError, match="registered already"):
        metrics.metric("auroc", better="higher", says="again")(lambda ranking: 0.0)


def test_infinite_confidence_ranks_but_is_no_probability() -> None:
    correct, confidence = [True, True, False], [np.inf, 0.0, -np.inf]
    assert metrics.auroc(correct, confidence) == 1.0
    with pytest.raises(MetricError, match="expected probabilities"):
        metrics.nll(correct, confidence)


def test_opposite_zeros_are_a_tie() -> None:
    assert metrics.auroc([True, False], [0.0, -0.0]) == 0.5
