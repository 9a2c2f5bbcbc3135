"""secondlook tells people when their image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook import metrics
    from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
    from secondlook.errors import SecondLookError
    from secondlook.estimators import (
        METHODS,
        bootstrap_confidences,
        confidence,
        embeddings,
        fit_temperature,
        interval,
        mc_dropout_passes,
    )
    from secondlook.evaluation import Evaluation, evaluate
    from secondlook.predictions import Predictions, collect
    from secondlook.search import candidates, diagnose, search_views
    from secondlook.selective import Policy, Rule, SelectiveClassifier, certify, threshold_for
    from secondlook.sources import Source, open_source
    from secondlook.views.engine import apply_views, iter_views
    from secondlook.views.presets import PRESETS
    from secondlook.views.sheet import contact_sheet
    from secondlook.views.steps import view_step
    from secondlook.views.view import View
    from secondlook.views.view_set import ViewSet, ViewWarning

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
    "candidates",
    "certify",
    "collect",
    "confidence",
    "contact_sheet",
    "diagnose",
    "embeddings",
    "evaluate",
    "fit_temperature",
    "interval",
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
        "PRESETS": "secondlook.views.presets",
        "Policy": "secondlook.selective",
        "Predictions": "secondlook.predictions",
        "Preprocessing": "secondlook.classifiers",
        "Rule": "secondlook.selective",
        "SecondLookError": "secondlook.errors",
        "SelectiveClassifier": "secondlook.selective",
        "Source": "secondlook.sources",
        "View": "secondlook.views.view",
        "ViewSet": "secondlook.views.view_set",
        "ViewWarning": "secondlook.views.view_set",
        "apply_views": "secondlook.views.engine",
        "bootstrap_confidences": "secondlook.estimators",
        "candidates": "secondlook.search",
        "certify": "secondlook.selective",
        "collect": "secondlook.predictions",
        "confidence": "secondlook.estimators",
        "contact_sheet": "secondlook.views.sheet",
        "diagnose": "secondlook.search",
        "embeddings": "secondlook.estimators",
        "evaluate": "secondlook.evaluation",
        "fit_temperature": "secondlook.estimators",
        "interval": "secondlook.estimators",
        "iter_views": "secondlook.views.engine",
        "load_classifier": "secondlook.classifiers",
        "mc_dropout_passes": "secondlook.estimators",
        "metrics": "secondlook.metrics",
        "open_source": "secondlook.sources",
        "search_views": "secondlook.search",
        "threshold_for": "secondlook.selective",
        "view_step": "secondlook.views.steps",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
