"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.classifiers.classifier import Classifier
    from secondlook.classifiers.ensemble import Ensemble
    from secondlook.classifiers.geometry import as_pixels
    from secondlook.classifiers.loading import load_classifier
    from secondlook.classifiers.preprocessing import Preprocessing
    from secondlook.classifiers.schemes import SCHEMES, Scheme, Statement, classifier_scheme
    from secondlook.classifiers.torch_model import TorchClassifier, require_torch

_MODULES = {
    "Classifier": "secondlook.classifiers.classifier",
    "Ensemble": "secondlook.classifiers.ensemble",
    "Preprocessing": "secondlook.classifiers.preprocessing",
    "SCHEMES": "secondlook.classifiers.schemes",
    "Scheme": "secondlook.classifiers.schemes",
    "Statement": "secondlook.classifiers.schemes",
    "TorchClassifier": "secondlook.classifiers.torch_model",
    "as_pixels": "secondlook.classifiers.geometry",
    "classifier_scheme": "secondlook.classifiers.schemes",
    "load_classifier": "secondlook.classifiers.loading",
    "require_torch": "secondlook.classifiers.torch_model",
}

__all__ = [
    "SCHEMES",
    "Classifier",
    "Ensemble",
    "Preprocessing",
    "Scheme",
    "Statement",
    "TorchClassifier",
    "as_pixels",
    "classifier_scheme",
    "load_classifier",
    "require_torch",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
