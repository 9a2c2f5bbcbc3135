"""Estimators: from predictions to one confidence per image, an interval around it, and a ranking."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.estimators.bootstrap import bootstrap_confidences, confidence_interval
    from secondlook.estimators.compiled import compiled
    from secondlook.estimators.distance import embeddings
    from secondlook.estimators.dropout import mc_dropout_passes
    from secondlook.estimators.named_confidence import METHODS, confidence
    from secondlook.estimators.plurality import plurality_order, plurality_scores
    from secondlook.estimators.registry import Method, find_method, method
    from secondlook.estimators.resampling import number_of_resamplings, resampling_counts
    from secondlook.estimators.shares import doubts_of_views, largest_share, predicted_classes, shares_in_views
    from secondlook.estimators.temperature import fit_temperature

_MODULES = {
    "METHODS": "secondlook.estimators.named_confidence",
    "Method": "secondlook.estimators.registry",
    "bootstrap_confidences": "secondlook.estimators.bootstrap",
    "compiled": "secondlook.estimators.compiled",
    "confidence": "secondlook.estimators.named_confidence",
    "doubts_of_views": "secondlook.estimators.shares",
    "embeddings": "secondlook.estimators.distance",
    "find_method": "secondlook.estimators.registry",
    "fit_temperature": "secondlook.estimators.temperature",
    "confidence_interval": "secondlook.estimators.bootstrap",
    "largest_share": "secondlook.estimators.shares",
    "mc_dropout_passes": "secondlook.estimators.dropout",
    "method": "secondlook.estimators.registry",
    "number_of_resamplings": "secondlook.estimators.resampling",
    "plurality_order": "secondlook.estimators.plurality",
    "plurality_scores": "secondlook.estimators.plurality",
    "predicted_classes": "secondlook.estimators.shares",
    "resampling_counts": "secondlook.estimators.resampling",
    "shares_in_views": "secondlook.estimators.shares",
}

__all__ = [
    "METHODS",
    "Method",
    "bootstrap_confidences",
    "compiled",
    "confidence",
    "confidence_interval",
    "doubts_of_views",
    "embeddings",
    "find_method",
    "fit_temperature",
    "largest_share",
    "mc_dropout_passes",
    "method",
    "number_of_resamplings",
    "plurality_order",
    "plurality_scores",
    "predicted_classes",
    "resampling_counts",
    "shares_in_views",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
