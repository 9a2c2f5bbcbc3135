"""Estimators: from predictions to one confidence per image, an interval around it, and a ranking of the images."""

from secondlook.estimators import black_box, view_means  # noqa: F401 -- register their methods
from secondlook.estimators.bootstrap import confidence_interval, plurality_confidence
from secondlook.estimators.fitting import (
    FittedMethods,
    fit_method,
    fit_methods,
    fit_temperature,
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
    running_confidence,
    split_method,
)
from secondlook.estimators.probability_mass import (
    Block,
    class_mass,
    compute_look_statistics,
    other_class_mass,
    predicted_class_mass,
    top_class_mass,
)
from secondlook.estimators.white_box import compute_embeddings, compute_mc_dropout_passes

__all__ = [
    "METHODS",
    "Block",
    "CompiledMethod",
    "FittedMethods",
    "class_mass",
    "compile_method",
    "compute_embeddings",
    "compute_look_statistics",
    "compute_mc_dropout_passes",
    "confidence",
    "confidence_interval",
    "default_method",
    "find_method",
    "fit_method",
    "fit_methods",
    "fit_temperature",
    "method",
    "needs_fitting",
    "other_class_mass",
    "plurality_confidence",
    "predicted_class_mass",
    "resolve_tuning",
    "running_confidence",
    "split_method",
    "top_class_mass",
    "tuning_positions",
]
