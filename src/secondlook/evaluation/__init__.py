"""Evaluation of confidences on labeled predictions: methods x metrics, with intervals and paired differences."""

from secondlook.evaluation.comparison import Comparison, compare
from secondlook.evaluation.estimates import Estimate, check_resampling
from secondlook.evaluation.evaluation import DEFAULT_METRICS, Evaluation, evaluate, select_groups

__all__ = [
    "DEFAULT_METRICS",
    "Comparison",
    "Estimate",
    "Evaluation",
    "check_resampling",
    "compare",
    "evaluate",
    "select_groups",
]
