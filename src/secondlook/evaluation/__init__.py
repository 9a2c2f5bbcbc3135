"""Evaluation of confidences on labeled predictions: methods x metrics, with intervals and paired differences."""

from secondlook.evaluation.comparison import Comparison, compare
from secondlook.evaluation.estimates import Estimate, check_resampling
from secondlook.evaluation.evaluation import (
    DEFAULT_METRICS,
    SECOND_LOOK_METHODS,
    Evaluation,
    evaluate,
    select_groups,
)

__all__ = [
    "DEFAULT_METRICS",
    "SECOND_LOOK_METHODS",
    "Comparison",
    "Estimate",
    "Evaluation",
    "check_resampling",
    "compare",
    "evaluate",
    "select_groups",
]
