"""Metrics: how good a confidence is, as numbers and curves of `correct` (bool [N]) and `confidence` (float [N])."""

from secondlook.metrics.calibration import Histogram, brier, confidence_histogram, ece, nll, reliability
from secondlook.metrics.error_detection import accuracy, aupr, auroc, precision_recall, roc
from secondlook.metrics.ranking import (
    Interval,
    Ranking,
    ReliabilityCurve,
    percentile_interval,
    rank,
    resample_metrics,
)
from secondlook.metrics.registry import METRICS, BoundMetric, metric, parse_metric, parse_metrics
from secondlook.metrics.selective_risk import (
    RiskCurve,
    aorc,
    aorc_joint,
    augrc,
    aurc,
    count_for_coverage,
    coverage_at,
    eaurc,
    eaurc_joint,
    risk_at,
    risk_coverage,
)

__all__ = [
    "METRICS",
    "BoundMetric",
    "Histogram",
    "Interval",
    "Ranking",
    "ReliabilityCurve",
    "RiskCurve",
    "accuracy",
    "aorc",
    "aorc_joint",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "confidence_histogram",
    "count_for_coverage",
    "coverage_at",
    "eaurc",
    "eaurc_joint",
    "ece",
    "metric",
    "nll",
    "parse_metric",
    "parse_metrics",
    "percentile_interval",
    "precision_recall",
    "rank",
    "reliability",
    "resample_metrics",
    "risk_at",
    "risk_coverage",
    "roc",
]
