"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

# Importing the modules below registers their model schemes.
from secondlook.classifiers import function, hugging_face, onnx_model, pretrained, remote, sklearn_model  # noqa: F401
from secondlook.classifiers.classifier import Classifier, Ensemble, Fetch, check_device
from secondlook.classifiers.credentials import hide_secrets, split_credentials
from secondlook.classifiers.function import FunctionClassifier
from secondlook.classifiers.http_client import HttpClient, HttpResponse
from secondlook.classifiers.inference_protocol import HEADER_LENGTH, MAX_JSON_VALUES
from secondlook.classifiers.loading import MODELS, LoadOptions, ModelScheme, load_classifier, model_scheme
from secondlook.classifiers.preprocessing import Preprocessing, as_pixels
from secondlook.classifiers.threads import limit_threads
from secondlook.classifiers.torch_model import TorchClassifier, require_torch

__all__ = [
    "HEADER_LENGTH",
    "MAX_JSON_VALUES",
    "MODELS",
    "Classifier",
    "Ensemble",
    "Fetch",
    "FunctionClassifier",
    "HttpClient",
    "HttpResponse",
    "LoadOptions",
    "ModelScheme",
    "Preprocessing",
    "TorchClassifier",
    "as_pixels",
    "check_device",
    "hide_secrets",
    "limit_threads",
    "load_classifier",
    "model_scheme",
    "require_torch",
    "split_credentials",
]
