"""Metrics are plain functions with a registered record; texts name a metric with its parameter."""

import inspect
import re

import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.metrics import METRICS, parse_metric, parse_metrics
from secondlook.metrics.definitions import Metric

FORMS = {
    *("accuracy", "auroc", "aupr", "aurc", "eaurc", "aorc", "augrc", "eaurc_joint", "aorc_joint"),
    *("risk_at:COVERAGE", "coverage_at:RISK", "ece", "brier", "nll"),
}


def test_the_registered_metrics_are_these() -> None:
    assert {record.form for record in METRICS.values()} == FORMS


@pytest.mark.parametrize("record", METRICS.values(), ids=lambda record: str(record.name))
def test_a_metric_is_a_plain_function_of_correct_and_confidence(record: Metric) -> None:
    function = getattr(metrics, record.name)
    assert inspect.isfunction(function)
    assert record.function is function
    assert function.__name__ == record.name
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


def test_duplicate_metrics_are_rejected() -> None:
    with pytest.raises(MetricError, match="'auroc'"):
        parse_metrics(["auroc", "aurc", "auroc"])


def test_registering_a_name_twice_is_rejected() -> None:
    with pytest.raises(MetricError, match=re.escape("'auroc'")):
        metrics.metric("auroc", better="higher", summary="again")(lambda ranking: 0.0)
