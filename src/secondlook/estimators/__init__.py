"""Estimators: from predictions to one confidence per image, an interval around it, and a ranking of the images."""

from secondlook.estimators import black_box, view_means  # noqa: F401 -- register their methods
from secondlook.estimators.black_box import NO_NORM
from secondlook.estimators.bootstrap import (
    bootstrap_confidences,
    confidence_interval,
    default_resamplings,
    view_resampling_counts,
)
from secondlook.estimators.fitting import FittedMethods, choose_positions, fit_methods, fit_on_images, resolve_tuning
from secondlook.estimators.look_statistics import LookStatistics, compute_look_statistics
from secondlook.estimators.methods import (
    METHODS,
    Method,
    Resampling,
    confidence,
    find_method,
    method,
    resolve_method,
    split_method,
)
from secondlook.estimators.plurality import (
    WindowRanking,
    check_window,
    count_bin_sizes,
    make_entries,
    plurality_confidence,
    plurality_order,
    rank_by_ranges,
    spread_confidences,
)
from secondlook.estimators.probability_mass import (
    class_mass,
    other_class_mass,
    predicted_class_mass,
    predicted_classes,
    top_class_mass,
)
from secondlook.estimators.running import compute_view_statistics, find_mean_over_views, running_confidence
from secondlook.estimators.temperature import fit_temperature
from secondlook.estimators.tuning import default_method, fit_method, needs_fitting, tuning_positions
from secondlook.estimators.view_means import LOGIT_FLOOR, STORED_FLOOR, WEIGHTS, describe_shortage
from secondlook.estimators.white_box import compute_embeddings, compute_mc_dropout_passes

__all__ = [
    "LOGIT_FLOOR",
    "METHODS",
    "NO_NORM",
    "STORED_FLOOR",
    "WEIGHTS",
    "FittedMethods",
    "LookStatistics",
    "Method",
    "Resampling",
    "WindowRanking",
    "bootstrap_confidences",
    "check_window",
    "choose_positions",
    "class_mass",
    "compute_embeddings",
    "compute_look_statistics",
    "compute_mc_dropout_passes",
    "compute_view_statistics",
    "confidence",
    "confidence_interval",
    "count_bin_sizes",
    "default_method",
    "default_resamplings",
    "describe_shortage",
    "find_mean_over_views",
    "find_method",
    "fit_method",
    "fit_methods",
    "fit_on_images",
    "fit_temperature",
    "make_entries",
    "method",
    "needs_fitting",
    "other_class_mass",
    "plurality_confidence",
    "plurality_order",
    "predicted_class_mass",
    "predicted_classes",
    "rank_by_ranges",
    "resolve_method",
    "resolve_tuning",
    "running_confidence",
    "split_method",
    "spread_confidences",
    "top_class_mass",
    "tuning_positions",
    "view_resampling_counts",
]
