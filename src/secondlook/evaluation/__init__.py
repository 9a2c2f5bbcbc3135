"""Evaluation of confidences on labeled predictions: methods x metrics, with intervals and paired differences."""

from secondlook.evaluation.comparison import Comparison, compare, compare_confidences
from secondlook.evaluation.estimates import ARROWS, Estimate, check_resampling, describe_prediction
from secondlook.evaluation.evaluation import DEFAULT_METRICS, Evaluation, evaluate
from secondlook.evaluation.fitting import FittedMethods, fit_methods, resolve_tuning
from secondlook.evaluation.groups import Groups
from secondlook.evaluation.image_or_views import PredictFromComparison

__all__ = [
    "ARROWS",
    "DEFAULT_METRICS",
    "Comparison",
    "Estimate",
    "Evaluation",
    "FittedMethods",
    "Groups",
    "PredictFromComparison",
    "check_resampling",
    "compare",
    "compare_confidences",
    "describe_prediction",
    "evaluate",
    "fit_methods",
    "resolve_tuning",
]
