"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

from secondlook.classifiers import pretrained  # noqa: F401 - registers its model schemes, as the modules below do
from secondlook.classifiers.classifier import Classifier, Ensemble, Fetch, check_device
from secondlook.classifiers.http_client import HttpClient, HttpResponse, split_credentials
from secondlook.classifiers.loading import MODELS, LoadOptions, load_classifier, model_scheme
from secondlook.classifiers.onnx_file import OnnxFile, run_limited
from secondlook.classifiers.onnx_model import OnnxClassifier
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.classifiers.python_models import FunctionClassifier, SklearnClassifier
from secondlook.classifiers.remote import HEADER_LENGTH, RemoteClassifier
from secondlook.classifiers.torch_model import TorchClassifier

__all__ = [
    "HEADER_LENGTH",
    "MODELS",
    "Classifier",
    "Ensemble",
    "Fetch",
    "FunctionClassifier",
    "HttpClient",
    "HttpResponse",
    "LoadOptions",
    "OnnxClassifier",
    "OnnxFile",
    "Preprocessing",
    "RemoteClassifier",
    "SklearnClassifier",
    "TorchClassifier",
    "check_device",
    "load_classifier",
    "model_scheme",
    "run_limited",
    "split_credentials",
]
