"""secondlook tells people when their image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook import metrics
    from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
    from secondlook.cluster import RayEngine
    from secondlook.diagnosis import auto_views, candidate_views, diagnose_views, search_views
    from secondlook.displays import (
        ConfidenceHistogramDisplay,
        ReliabilityDisplay,
        RiskCoverageDisplay,
        ScheduleDisplay,
        ViewsDisplay,
    )
    from secondlook.errors import SecondLookError
    from secondlook.estimators import confidence, confidence_interval, fit_method, fit_temperature
    from secondlook.evaluation import Evaluation, compare, evaluate
    from secondlook.monitoring import Monitor
    from secondlook.onnx_export import export_onnx, verify_decider
    from secondlook.predictions import Predictions, collect
    from secondlook.report import write_report
    from secondlook.runs import Run, create_run, open_run
    from secondlook.scoring import Decisions, SelectiveClassifier, load_decider, load_policy, score
    from secondlook.selective import (
        Policy,
        Rule,
        Schedule,
        certify,
        certify_confidence,
        fit_schedule,
        threshold_for,
    )
    from secondlook.serving import Client
    from secondlook.setup_check import SetupCheck, SetupWarning, check_setup
    from secondlook.sources import Source, open_source
    from secondlook.views import View, ViewSet, ViewWarning, apply_views, contact_sheet, view_step

__version__ = "0.1.0"

_ROOMS = {
    "Classifier": "classifiers",
    "Client": "serving",
    "ConfidenceHistogramDisplay": "displays",
    "Decisions": "scoring",
    "Ensemble": "classifiers",
    "Evaluation": "evaluation",
    "Monitor": "monitoring",
    "Policy": "selective",
    "Predictions": "predictions",
    "Preprocessing": "classifiers",
    "RayEngine": "cluster",
    "ReliabilityDisplay": "displays",
    "RiskCoverageDisplay": "displays",
    "Rule": "selective",
    "Run": "runs",
    "Schedule": "selective",
    "ScheduleDisplay": "displays",
    "SecondLookError": "errors",
    "SelectiveClassifier": "scoring",
    "SetupCheck": "setup_check",
    "SetupWarning": "setup_check",
    "Source": "sources",
    "View": "views",
    "ViewSet": "views",
    "ViewWarning": "views",
    "ViewsDisplay": "displays",
    "apply_views": "views",
    "auto_views": "diagnosis",
    "candidate_views": "diagnosis",
    "certify": "selective",
    "certify_confidence": "selective",
    "check_setup": "setup_check",
    "collect": "predictions",
    "compare": "evaluation",
    "confidence": "estimators",
    "confidence_interval": "estimators",
    "contact_sheet": "views",
    "create_run": "runs",
    "diagnose_views": "diagnosis",
    "evaluate": "evaluation",
    "export_onnx": "onnx_export",
    "fit_method": "estimators",
    "fit_schedule": "selective",
    "fit_temperature": "estimators",
    "load_classifier": "classifiers",
    "load_decider": "scoring",
    "load_policy": "scoring",
    "metrics": "metrics",
    "open_run": "runs",
    "open_source": "sources",
    "score": "scoring",
    "search_views": "diagnosis",
    "threshold_for": "selective",
    "verify_decider": "onnx_export",
    "view_step": "views",
    "write_report": "report",
}

__all__ = [
    "Classifier",
    "Client",
    "ConfidenceHistogramDisplay",
    "Decisions",
    "Ensemble",
    "Evaluation",
    "Monitor",
    "Policy",
    "Predictions",
    "Preprocessing",
    "RayEngine",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "Rule",
    "Run",
    "Schedule",
    "ScheduleDisplay",
    "SecondLookError",
    "SelectiveClassifier",
    "SetupCheck",
    "SetupWarning",
    "Source",
    "View",
    "ViewSet",
    "ViewWarning",
    "ViewsDisplay",
    "__version__",
    "apply_views",
    "auto_views",
    "candidate_views",
    "certify",
    "certify_confidence",
    "check_setup",
    "collect",
    "compare",
    "confidence",
    "confidence_interval",
    "contact_sheet",
    "create_run",
    "diagnose_views",
    "evaluate",
    "export_onnx",
    "fit_method",
    "fit_schedule",
    "fit_temperature",
    "load_classifier",
    "load_decider",
    "load_policy",
    "metrics",
    "open_run",
    "open_source",
    "score",
    "search_views",
    "threshold_for",
    "verify_decider",
    "view_step",
    "write_report",
]

__getattr__ = lazy_attributes(__name__, {name: f"secondlook.{room}" for name, room in _ROOMS.items()})


def __dir__() -> list[str]:
    return sorted(__all__)
