"""secondlook tells you when your image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook import metrics as metrics
    from secondlook.classifiers import Classifier as Classifier
    from secondlook.classifiers import load_classifier as load_classifier
    from secondlook.decisions import Decision as Decision
    from secondlook.decisions import Review as Review
    from secondlook.decisions import SelectiveClassifier as SelectiveClassifier
    from secondlook.decisions import load_policy as load_policy
    from secondlook.decisions import score as score
    from secondlook.diagnosis import check_setup as check_setup
    from secondlook.diagnosis import choose_views as choose_views
    from secondlook.errors import SecondLookError as SecondLookError
    from secondlook.estimators import confidence as confidence
    from secondlook.estimators import confidence_interval as confidence_interval
    from secondlook.evaluation import Evaluation as Evaluation
    from secondlook.evaluation import compare as compare
    from secondlook.evaluation import evaluate as evaluate
    from secondlook.monitoring import Monitor as Monitor
    from secondlook.onnx_export import export_onnx as export_onnx
    from secondlook.policies import LabelingPlan as LabelingPlan
    from secondlook.policies import Policy as Policy
    from secondlook.policies import certify as certify
    from secondlook.predictions import Execution as Execution
    from secondlook.predictions import Predictions as Predictions
    from secondlook.predictions import collect as collect
    from secondlook.report import Run as Run
    from secondlook.report import create_run as create_run
    from secondlook.report import open_run as open_run
    from secondlook.report import write_report as write_report
    from secondlook.sources import Source as Source
    from secondlook.sources import open_source as open_source
    from secondlook.views import ViewSet as ViewSet
    from secondlook.views import apply_views as apply_views

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
    "policies": "LabelingPlan Policy certify",
    "predictions": "Execution Predictions collect",
    "report": "Run create_run open_run write_report",
    "sources": "Source open_source",
    "views": "ViewSet apply_views",
}

_MODULES = {name: f"secondlook.{room}" for room, names in _ROOMS.items() for name in names.split()}
__getattr__ = lazy_attributes(__name__, {**_MODULES, "metrics": "secondlook.metrics"})
__all__ = sorted([*_MODULES, "__version__", "metrics"])


def __dir__() -> list[str]:
    return sorted(__all__)
