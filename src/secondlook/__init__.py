"""secondlook tells people when their image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook import metrics
    from secondlook.classifiers import Classifier, load_classifier
    from secondlook.decisions import Decision, Review, SelectiveClassifier, load_policy, score
    from secondlook.diagnosis import check_setup, choose_views
    from secondlook.errors import SecondLookError
    from secondlook.estimators import confidence, confidence_interval
    from secondlook.evaluation import Evaluation, compare, evaluate
    from secondlook.monitoring import Monitor
    from secondlook.onnx_export import export_onnx
    from secondlook.policies import Policy, certify
    from secondlook.predictions import Execution, Predictions, collect
    from secondlook.report import Run, create_run, open_run, write_report
    from secondlook.sources import Source, open_source
    from secondlook.views import ViewSet, apply_views

__version__ = "0.1.0"

_ROOMS = {
    "classifiers": "Classifier load_classifier",
    "decisions": "Decision Review SelectiveClassifier load_policy score",
    "diagnosis": "check_setup choose_views",
    "errors": "SecondLookError",
    "estimators": "confidence confidence_interval",
    "evaluation": "Evaluation compare evaluate",
    "monitoring": "Monitor",
    "onnx_export": "export_onnx",
    "policies": "Policy certify",
    "predictions": "Execution Predictions collect",
    "report": "Run create_run open_run write_report",
    "sources": "Source open_source",
    "views": "ViewSet apply_views",
}

__all__ = [
    "Classifier",
    "Decision",
    "Evaluation",
    "Execution",
    "Monitor",
    "Policy",
    "Predictions",
    "Review",
    "Run",
    "SecondLookError",
    "SelectiveClassifier",
    "Source",
    "ViewSet",
    "__version__",
    "apply_views",
    "certify",
    "check_setup",
    "choose_views",
    "collect",
    "compare",
    "confidence",
    "confidence_interval",
    "create_run",
    "evaluate",
    "export_onnx",
    "load_classifier",
    "load_policy",
    "metrics",
    "open_run",
    "open_source",
    "score",
    "write_report",
]

_MODULES = {name: f"secondlook.{room}" for room, names in _ROOMS.items() for name in names.split()}
__getattr__ = lazy_attributes(__name__, {**_MODULES, "metrics": "secondlook.metrics"})


def __dir__() -> list[str]:
    return sorted(__all__)
