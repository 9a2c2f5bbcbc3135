"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

from typing import TYPE_CHECKING

from secondlook.classifiers import pretrained, remote  # noqa: F401 - register their model schemes
from secondlook.classifiers.classifier import Classifier, Ensemble, Fetch
from secondlook.classifiers.loading import MODELS, load_classifier, model_scheme, split_credentials
from secondlook.classifiers.onnx_file import OnnxFile
from secondlook.classifiers.onnx_model import OnnxClassifier
from secondlook.classifiers.preprocessing import ImageShapeError, Preprocessing
from secondlook.classifiers.python_models import FunctionClassifier, SklearnClassifier
from secondlook.classifiers.torch_model import TorchClassifier
from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.classifiers.http_client import HttpClient

__all__ = [
    "MODELS",
    "Classifier",
    "Ensemble",
    "Fetch",
    "FunctionClassifier",
    "HttpClient",
    "ImageShapeError",
    "OnnxClassifier",
    "OnnxFile",
    "Preprocessing",
    "SklearnClassifier",
    "TorchClassifier",
    "load_classifier",
    "model_scheme",
    "split_credentials",
]

__getattr__ = lazy_attributes(__name__, {"HttpClient": "secondlook.classifiers.http_client"})
