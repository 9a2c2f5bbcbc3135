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
    from secondlook.estimators.resampling import default_resamplings, view_resampling_counts
    from secondlook.estimators.shares import class_mass, other_class_mass, predicted_classes, top_class_mass
    from secondlook.estimators.temperature import fit_temperature

_MODULES = {
    "METHODS": "secondlook.estimators.named_confidence",
    "Method": "secondlook.estimators.registry",
    "bootstrap_confidences": "secondlook.estimators.bootstrap",
    "compiled": "secondlook.estimators.compiled",
    "confidence": "secondlook.estimators.named_confidence",
    "other_class_mass": "secondlook.estimators.shares",
    "embeddings": "secondlook.estimators.distance",
    "find_method": "secondlook.estimators.registry",
    "fit_temperature": "secondlook.estimators.temperature",
    "confidence_interval": "secondlook.estimators.bootstrap",
    "top_class_mass": "secondlook.estimators.shares",
    "mc_dropout_passes": "secondlook.estimators.dropout",
    "method": "secondlook.estimators.registry",
    "default_resamplings": "secondlook.estimators.resampling",
    "plurality_order": "secondlook.estimators.plurality",
    "plurality_scores": "secondlook.estimators.plurality",
    "predicted_classes": "secondlook.estimators.shares",
    "view_resampling_counts": "secondlook.estimators.resampling",
    "class_mass": "secondlook.estimators.shares",
}

__all__ = [
    "METHODS",
    "Method",
    "bootstrap_confidences",
    "class_mass",
    "compiled",
    "confidence",
    "confidence_interval",
    "default_resamplings",
    "embeddings",
    "find_method",
    "fit_temperature",
    "mc_dropout_passes",
    "method",
    "other_class_mass",
    "plurality_order",
    "plurality_scores",
    "predicted_classes",
    "top_class_mass",
    "view_resampling_counts",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
