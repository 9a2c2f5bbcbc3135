"""Metrics: how good a confidence is, as numbers and curves of `correct` (bool [N]) and `confidence` (float [N])."""

from secondlook.metrics.definitions import (
    accuracy,
    aorc,
    aorc_joint,
    augrc,
    aupr,
    aurc,
    auroc,
    brier,
    coverage_at,
    eaurc,
    eaurc_joint,
    ece,
    nll,
    risk_at,
)
from secondlook.metrics.ranking import Interval, Ranking, rank, resample_metrics
from secondlook.metrics.registry import METRICS, metric, parse_metric, parse_metrics

__all__ = [
    "METRICS",
    "Interval",
    "Ranking",
    "accuracy",
    "aorc",
    "aorc_joint",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "coverage_at",
    "eaurc",
    "eaurc_joint",
    "ece",
    "metric",
    "nll",
    "parse_metric",
    "parse_metrics",
    "rank",
    "resample_metrics",
    "risk_at",
]
