"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

# Importing the modules below registers their model schemes.
from secondlook.classifiers import function, hugging_face, onnx_model, pretrained, remote, sklearn_model  # noqa: F401
from secondlook.classifiers.classifier import (
    Classifier,
    Ensemble,
    Fetch,
    check_device,
    check_regular_file,
    digest_files,
    reject_failures,
    shorten_reason,
)
from secondlook.classifiers.credentials import hide_secrets, split_credentials
from secondlook.classifiers.function import FunctionClassifier
from secondlook.classifiers.http_client import HttpClient, HttpResponse
from secondlook.classifiers.inference_protocol import HEADER_LENGTH, MAX_JSON_VALUES
from secondlook.classifiers.loading import MODELS, LoadOptions, ModelScheme, load_classifier, model_scheme
from secondlook.classifiers.onnx_file import (
    find_external_data,
    is_sealed,
    read_onnx_metadata,
    read_onnx_opset,
    seal_model,
)
from secondlook.classifiers.onnx_model import OnnxClassifier
from secondlook.classifiers.onnx_session import DEFAULT_TIMEOUT, OnnxSessions, limit_session
from secondlook.classifiers.preprocessing import LUMINANCE_WEIGHTS, MAX_RESIZED_PIXELS, Preprocessing, as_pixels
from secondlook.classifiers.remote import RemoteClassifier
from secondlook.classifiers.sklearn_model import SklearnClassifier
from secondlook.classifiers.threads import count_threads, limit_threads
from secondlook.classifiers.torch_model import TorchClassifier, require_torch

__all__ = [
    "DEFAULT_TIMEOUT",
    "HEADER_LENGTH",
    "LUMINANCE_WEIGHTS",
    "MAX_JSON_VALUES",
    "MAX_RESIZED_PIXELS",
    "MODELS",
    "Classifier",
    "Ensemble",
    "Fetch",
    "FunctionClassifier",
    "HttpClient",
    "HttpResponse",
    "LoadOptions",
    "ModelScheme",
    "OnnxClassifier",
    "OnnxSessions",
    "Preprocessing",
    "RemoteClassifier",
    "SklearnClassifier",
    "TorchClassifier",
    "as_pixels",
    "check_device",
    "check_regular_file",
    "count_threads",
    "digest_files",
    "find_external_data",
    "hide_secrets",
    "is_sealed",
    "limit_session",
    "limit_threads",
    "load_classifier",
    "model_scheme",
    "read_onnx_metadata",
    "read_onnx_opset",
    "reject_failures",
    "require_torch",
    "seal_model",
    "shorten_reason",
    "split_credentials",
]
