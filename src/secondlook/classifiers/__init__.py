"""Classifiers: black boxes that turn a batch of pixels into logits or probabilities."""

from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.ensemble import Ensemble
from secondlook.classifiers.loading import load_classifier
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.classifiers.schemes import SCHEMES, Scheme, Statement, classifier_scheme

__all__ = [
    "SCHEMES",
    "Classifier",
    "Ensemble",
    "Preprocessing",
    "Scheme",
    "Statement",
    "classifier_scheme",
    "load_classifier",
]
