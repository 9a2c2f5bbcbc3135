"""Evaluation of confidences on labeled predictions: methods x metrics, with intervals and paired differences."""

from secondlook.evaluation.comparison import Comparison, compare, compare_confidences
from secondlook.evaluation.estimates import ARROWS, Estimate, check_resampling, describe_prediction
from secondlook.evaluation.evaluation import DEFAULT_METRICS, Evaluation, evaluate, evaluate_statistics
from secondlook.evaluation.groups import Groups, format_class, select_groups
from secondlook.evaluation.image_or_views import PredictFromComparison
from secondlook.evaluation.image_statistics import ImageStatistics, check_divisible, compute_statistics
from secondlook.evaluation.statistics_parts import StatisticsParts, SummarizeImages

__all__ = [
    "ARROWS",
    "DEFAULT_METRICS",
    "Comparison",
    "Estimate",
    "Evaluation",
    "Groups",
    "ImageStatistics",
    "PredictFromComparison",
    "StatisticsParts",
    "SummarizeImages",
    "check_divisible",
    "check_resampling",
    "compare",
    "compare_confidences",
    "compute_statistics",
    "describe_prediction",
    "evaluate",
    "evaluate_statistics",
    "format_class",
    "select_groups",
]
