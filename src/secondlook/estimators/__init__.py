"""Estimators: confidences from predictions, their intervals, and rankings of images."""

from secondlook.estimators import black_box, view_means  # noqa: F401 -- register their methods
from secondlook.estimators.bootstrap import confidence_interval
from secondlook.estimators.familiarity import compute_familiarity, fit_familiarity
from secondlook.estimators.fitting import (
    FittedMethods,
    fit_method,
    needs_fitting,
    resolve_tuning,
    tuning_positions,
)
from secondlook.estimators.methods import (
    METHODS,
    CompiledMethod,
    compile_method,
    confidence,
    default_method,
    find_method,
    method,
)
from secondlook.estimators.probability_mass import (
    Block,
    compare_looks,
    compute_look_statistics,
    iter_view_statistics,
)

__all__ = [
    "METHODS",
    "Block",
    "CompiledMethod",
    "FittedMethods",
    "compare_looks",
    "compile_method",
    "compute_familiarity",
    "compute_look_statistics",
    "confidence",
    "confidence_interval",
    "default_method",
    "find_method",
    "fit_familiarity",
    "fit_method",
    "iter_view_statistics",
    "method",
    "needs_fitting",
    "resolve_tuning",
    "tuning_positions",
]
