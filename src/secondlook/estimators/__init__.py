"""Estimators: from predictions to one confidence per image, an interval around it, and a ranking."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.estimators.bootstrap import bootstrap_confidences, interval
    from secondlook.estimators.distance import embeddings
    from secondlook.estimators.dropout import mc_dropout_passes
    from secondlook.estimators.named_confidence import METHODS, confidence
    from secondlook.estimators.plurality import plurality_order
    from secondlook.estimators.registry import Method, method
    from secondlook.estimators.resampling import number_of_resamplings
    from secondlook.estimators.temperature import fit_temperature

__all__ = [
    "METHODS",
    "Method",
    "bootstrap_confidences",
    "confidence",
    "embeddings",
    "fit_temperature",
    "interval",
    "mc_dropout_passes",
    "method",
    "number_of_resamplings",
    "plurality_order",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        # METHODS comes from the module that imports every method, so that the registry is full.
        "METHODS": "secondlook.estimators.named_confidence",
        "Method": "secondlook.estimators.registry",
        "bootstrap_confidences": "secondlook.estimators.bootstrap",
        "confidence": "secondlook.estimators.named_confidence",
        "embeddings": "secondlook.estimators.distance",
        "fit_temperature": "secondlook.estimators.temperature",
        "interval": "secondlook.estimators.bootstrap",
        "mc_dropout_passes": "secondlook.estimators.dropout",
        "method": "secondlook.estimators.registry",
        "number_of_resamplings": "secondlook.estimators.resampling",
        "plurality_order": "secondlook.estimators.plurality",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
