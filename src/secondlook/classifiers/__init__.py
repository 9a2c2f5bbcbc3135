"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.classifiers.classifier import Classifier
    from secondlook.classifiers.ensemble import Ensemble
    from secondlook.classifiers.geometry import as_pixels
    from secondlook.classifiers.loading import load_classifier
    from secondlook.classifiers.preprocessing import Preprocessing
    from secondlook.classifiers.schemes import MODELS, LoadOptions, ModelScheme, model_scheme
    from secondlook.classifiers.torch_model import TorchClassifier, require_torch

_MODULES = {
    "Classifier": "secondlook.classifiers.classifier",
    "Ensemble": "secondlook.classifiers.ensemble",
    "Preprocessing": "secondlook.classifiers.preprocessing",
    "MODELS": "secondlook.classifiers.schemes",
    "ModelScheme": "secondlook.classifiers.schemes",
    "LoadOptions": "secondlook.classifiers.schemes",
    "TorchClassifier": "secondlook.classifiers.torch_model",
    "as_pixels": "secondlook.classifiers.geometry",
    "model_scheme": "secondlook.classifiers.schemes",
    "load_classifier": "secondlook.classifiers.loading",
    "require_torch": "secondlook.classifiers.torch_model",
}

__all__ = [
    "MODELS",
    "Classifier",
    "Ensemble",
    "LoadOptions",
    "ModelScheme",
    "Preprocessing",
    "TorchClassifier",
    "as_pixels",
    "load_classifier",
    "model_scheme",
    "require_torch",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
