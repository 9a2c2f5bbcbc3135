"""secondlook tells people when their image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook import metrics
    from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
    from secondlook.diagnosis import candidate_views, diagnose_views, search_views
    from secondlook.errors import SecondLookError
    from secondlook.estimators import (
        METHODS,
        bootstrap_confidences,
        confidence,
        confidence_interval,
        embeddings,
        fit_temperature,
        mc_dropout_passes,
    )
    from secondlook.evaluation import Evaluation, evaluate
    from secondlook.predictions import Predictions, collect
    from secondlook.scoring import SelectiveClassifier
    from secondlook.selective import Policy, Rule, certify, threshold_for
    from secondlook.sources import Source, open_source
    from secondlook.views import PRESETS, View, ViewSet, ViewWarning, apply_views, contact_sheet, iter_views, view_step

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "PRESETS",
    "Classifier",
    "Ensemble",
    "Evaluation",
    "Policy",
    "Predictions",
    "Preprocessing",
    "Rule",
    "SecondLookError",
    "SelectiveClassifier",
    "Source",
    "View",
    "ViewSet",
    "ViewWarning",
    "__version__",
    "apply_views",
    "bootstrap_confidences",
    "candidate_views",
    "certify",
    "collect",
    "confidence",
    "confidence_interval",
    "contact_sheet",
    "diagnose_views",
    "embeddings",
    "evaluate",
    "fit_temperature",
    "iter_views",
    "load_classifier",
    "mc_dropout_passes",
    "metrics",
    "open_source",
    "search_views",
    "threshold_for",
    "view_step",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Classifier": "secondlook.classifiers",
        "Ensemble": "secondlook.classifiers",
        "Evaluation": "secondlook.evaluation",
        "METHODS": "secondlook.estimators",
        "PRESETS": "secondlook.views",
        "Policy": "secondlook.selective",
        "Predictions": "secondlook.predictions",
        "Preprocessing": "secondlook.classifiers",
        "Rule": "secondlook.selective",
        "SecondLookError": "secondlook.errors",
        "SelectiveClassifier": "secondlook.scoring",
        "Source": "secondlook.sources",
        "View": "secondlook.views",
        "ViewSet": "secondlook.views",
        "ViewWarning": "secondlook.views",
        "apply_views": "secondlook.views",
        "bootstrap_confidences": "secondlook.estimators",
        "candidate_views": "secondlook.diagnosis",
        "certify": "secondlook.selective",
        "collect": "secondlook.predictions",
        "confidence": "secondlook.estimators",
        "contact_sheet": "secondlook.views",
        "diagnose_views": "secondlook.diagnosis",
        "embeddings": "secondlook.estimators",
        "evaluate": "secondlook.evaluation",
        "fit_temperature": "secondlook.estimators",
        "confidence_interval": "secondlook.estimators",
        "iter_views": "secondlook.views",
        "load_classifier": "secondlook.classifiers",
        "mc_dropout_passes": "secondlook.estimators",
        "metrics": "secondlook.metrics",
        "open_source": "secondlook.sources",
        "search_views": "secondlook.diagnosis",
        "threshold_for": "secondlook.selective",
        "view_step": "secondlook.views",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
