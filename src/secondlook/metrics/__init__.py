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
    risk_coverage,
    roc,
)
from secondlook.metrics.ranking import Ranking, rank
from secondlook.metrics.ranks import accuracy, aorc_joint, augrc, aupr, auroc, eaurc_joint
from secondlook.metrics.registry import Measure, Metric, known_metrics, measure, measures, metric
from secondlook.metrics.selective_risk import aorc, aurc, coverage_at, eaurc, risk_at

__all__ = [
    "Measure",
    "Metric",
    "PrecisionRecallCurve",
    "Ranking",
    "ReliabilityCurve",
    "RiskCurve",
    "RocCurve",
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
    "joint_risk_coverage",
    "known_metrics",
    "measure",
    "measures",
    "metric",
    "nll",
    "precision_recall",
    "rank",
    "reliability",
    "risk_at",
    "risk_coverage",
    "roc",
]
