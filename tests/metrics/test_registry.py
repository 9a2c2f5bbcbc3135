"""Metrics: registered plain functions, texts that name them, input validation, sorting and harmonic sums."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.metrics import METRICS, parse_metric, parse_metrics
from secondlook.metrics.ranking import harmonic_sums

FORMS = {
    *("accuracy", "auroc", "fpr95", "aupr", "aurc", "eaurc", "aorc", "augrc", "eaurc_joint", "aorc_joint"),
    *("risk_at:COVERAGE", "coverage_at:RISK", "ece", "brier", "nll"),
}


def test_registered_metrics() -> None:
    assert {record.form for record in METRICS.values()} == FORMS


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_a_plain_function_of_correct_and_confidence(name: str) -> None:
    record, function = METRICS[name], getattr(metrics, name)
    assert inspect.isfunction(function)
    assert record.function is function
    assert function.__name__ == record.name == name
    required = f", {record.parameter}: 'float'" if record.parameter else ""
    assert str(inspect.signature(function)).startswith(f"(correct: 'ArrayLike', confidence: 'ArrayLike'{required}")
    assert str(inspect.signature(function)).endswith(") -> 'float'")
    assert inspect.getdoc(function)
    assert record.summary
    assert "\n" not in record.summary


def test_texts_are_parsed_into_a_metric_and_its_parameter() -> None:
    assert [(one.name, one.arguments) for one in parse_metrics(["auroc", "risk_at:0.8"])] == [
        ("auroc", ()),
        ("risk_at", (0.8,)),
    ]
    assert parse_metrics("aurc") == (parse_metric("aurc"),)


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("aurok", ["'aurok'", "'auroc'"]),
        ("auroc:3", ["'auroc:3'"]),
        ("risk_at", ["'risk_at'", "coverage"]),
        ("risk_at:many", ["'many'", "'risk_at:0.8'"]),
        ("risk_at:1.5", ["1.5"]),
        ("coverage_at:-1", ["-1"]),
    ],
)
def test_invalid_texts_are_rejected(text: str, mentioned: list[str]) -> None:
    with pytest.raises(MetricError) as raised:
        parse_metric(text)
    assert all(one in str(raised.value) for one in mentioned)


@pytest.mark.parametrize(
    ("offending", "call"),
    [
        ("'auroc'", lambda: parse_metrics(["auroc", "aurc", "auroc"])),
        ("'auroc'", lambda: metrics.metric("auroc", better="higher", summary="again")(lambda ranking: 0.0)),
        ("'random'", lambda: metrics.aupr([False], [0.5], ties="random")),  # type: ignore[arg-type]
        ("bins=0", lambda: metrics.rank([True], [0.1]).reliability(0)),
        ("bins=0", lambda: metrics.rank([True, False], [0.5, 0.6]).histogram(0)),
        ("infinite", lambda: metrics.rank([True, False], [0.5, np.inf]).histogram()),
        ("inf", lambda: metrics.nll([True, False], [np.inf, 0.0])),
        ("1.5", lambda: metrics.brier([True, False], [0.5, 1.5])),
        ("1.5", lambda: metrics.nll([True, False], [0.5, 1.5])),
        ("1.5", lambda: metrics.ece([True, False], [0.5, 1.5])),
    ],
)
def test_invalid_requests_are_rejected(offending: str, call: Callable[[], object]) -> None:
    with pytest.raises(MetricError, match=re.escape(offending)):
        call()


@pytest.mark.parametrize(
    ("correct", "confidence", "offending"),
    [
        ([True, False], [0.1], "[1]"),
        ([[True]], [[0.1]], "[1, 1]"),
        ([1, 0], [0.1, 0.2], "int64"),
        ([True, False], [0.1, np.nan], "index 1"),
        ([True, False], ["a", "b"], "dtype <U1"),
        (np.zeros(0, dtype=bool), np.zeros(0), "empty"),
        ([True, [False]], [0.1, 0.2], "correct cannot be converted"),
        ([True, False], [[0.1], [0.2, 0.3]], "confidence cannot be converted"),
        ([True, False], np.array([0.1, None], dtype=object), "object"),
        ([True, False], np.ma.masked_array([0.1, 0.2], mask=[True, False]), "masked at index [0]"),
        (np.ma.masked_array([True, False], mask=[False, True]), [0.1, 0.2], "masked at index [1]"),
        ([True, False], np.array([1, 2], dtype="m8[s]"), "timedelta64"),
    ],
)
def test_invalid_arrays_are_rejected(correct: Any, confidence: Any, offending: str) -> None:
    with pytest.raises(MetricError, match=re.escape(offending)):
        metrics.auroc(correct, confidence)


@pytest.mark.parametrize("value", ["a", None, True, math.nan, -0.1, 1.5])
def test_invalid_coverage_and_risk_are_rejected(value: Any) -> None:
    for function in (metrics.risk_at, metrics.coverage_at):
        with pytest.raises(MetricError, match=repr(value)):
            function([True, False], [0.9, 0.1], value)


def test_images_are_grouped_by_equal_confidence() -> None:
    ranking = metrics.rank([True, False, False, True], [0.2, 0.7, 0.2, 0.9])
    assert ranking.confidences.tolist() == [0.9, 0.7, 0.2]
    assert ranking.accepted.tolist() == [1, 2, 4]
    assert ranking.errors.tolist() == [0, 1, 2]
    assert ranking.tie_sizes.tolist() == [1, 1, 2]
    assert ranking.tie_errors.tolist() == [0, 1, 1]
    assert (4 * ranking.risk_coverage(joint=True).risk).tolist() == [0.0, 1.0, 1.5, 2.0]


def test_infinite_confidences_are_ranked_and_both_zeros_are_tied() -> None:
    assert metrics.auroc([True, True, False], [np.inf, 0.0, -np.inf]) == 1.0
    assert metrics.auroc([True, False], [0.0, -0.0]) == 0.5


@pytest.mark.parametrize("size", [1, 2, 3, 40, 1000])
@pytest.mark.parametrize("before", [0, 1, 5, 31, 32, 33, 100, 10**4, 10**7, 10**9])
def test_harmonic_sums_are_precise(before: int, size: int) -> None:
    expected = math.fsum(1 / n for n in range(before + 1, before + size + 1))
    (found,) = harmonic_sums(np.array([before]), np.array([size]))
    assert found == pytest.approx(expected, rel=3e-14, abs=0)
