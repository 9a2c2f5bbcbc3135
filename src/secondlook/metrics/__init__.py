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
    reliability_of_ranking,
    risk_coverage,
    roc,
)
from secondlook.metrics.ranking import Ranking, check_confidence, rank, steps
from secondlook.metrics.ranks import accuracy, aorc_joint, augrc, aupr, auroc, eaurc_joint
from secondlook.metrics.registry import BoundMetric, Metric, known_metrics, metric, parse_metric, parse_metrics
from secondlook.metrics.resampled import (
    Entries,
    Interval,
    SortedImages,
    image_resampling_counts,
    percentile_interval,
    resample_metrics,
)
from secondlook.metrics.selective_risk import aorc, aurc, count_for_coverage, coverage_at, eaurc, risk_at

__all__ = [
    "BoundMetric",
    "Entries",
    "Interval",
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
    "check_confidence",
    "count_for_coverage",
    "coverage_at",
    "eaurc",
    "eaurc_joint",
    "ece",
    "image_resampling_counts",
    "joint_risk_coverage",
    "known_metrics",
    "metric",
    "nll",
    "parse_metric",
    "parse_metrics",
    "percentile_interval",
    "precision_recall",
    "rank",
    "reliability",
    "reliability_of_ranking",
    "resample_metrics",
    "risk_at",
    "risk_coverage",
    "roc",
    "steps",
]
