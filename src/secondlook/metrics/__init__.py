"""How good a confidence is: curves and numbers from `correct` (bool [N]) and `confidence` (float64 [N])."""

from secondlook.metrics.calibration import brier, ece, nll
from secondlook.metrics.curves import (
    PrecisionRecallCurve,
    ReliabilityCurve,
    RiskCurve,
    RocCurve,
    joint_risk_coverage,
    precision_recall,
    reliability,
    reliability_of,
    risk_coverage,
    roc,
)
from secondlook.metrics.ranking import Ranking, checked, rank, steps
from secondlook.metrics.ranks import accuracy, aorc_joint, augrc, aupr, auroc, eaurc_joint
from secondlook.metrics.registry import Measure, Metric, known_metrics, measure, measures, metric
from secondlook.metrics.resampled import (
    Entries,
    Interval,
    SortedImages,
    percentile_interval,
    resampled_values,
    resampling_counts,
)
from secondlook.metrics.selective_risk import aorc, aurc, coverage_at, eaurc, images_for, risk_at

__all__ = [
    "Entries",
    "Interval",
    "Measure",
    "Metric",
    "PrecisionRecallCurve",
    "Ranking",
    "ReliabilityCurve",
    "RiskCurve",
    "RocCurve",
    "SortedImages",
    "accuracy",
    "aorc",
    "aorc_joint",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "checked",
    "coverage_at",
    "eaurc",
    "eaurc_joint",
    "ece",
    "images_for",
    "joint_risk_coverage",
    "known_metrics",
    "measure",
    "measures",
    "metric",
    "nll",
    "percentile_interval",
    "precision_recall",
    "rank",
    "reliability",
    "reliability_of",
    "resampled_values",
    "resampling_counts",
    "risk_at",
    "risk_coverage",
    "roc",
    "steps",
]
