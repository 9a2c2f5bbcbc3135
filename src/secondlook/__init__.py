"""secondlook tells people when their image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook import metrics
    from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
    from secondlook.cluster import RayEngine
    from secondlook.decisions import Decisions, SelectiveClassifier, load_decider, load_policy, score
    from secondlook.diagnosis import (
        SetupCheck,
        SetupWarning,
        candidate_views,
        check_setup,
        choose_views,
        diagnose_views,
        search_views,
    )
    from secondlook.errors import SecondLookError
    from secondlook.estimators import confidence, confidence_interval, fit_method, fit_temperature
    from secondlook.evaluation import Evaluation, compare, evaluate
    from secondlook.monitoring import Monitor
    from secondlook.onnx_export import export_onnx, verify_export
    from secondlook.policies import (
        Policy,
        Rule,
        Schedule,
        certify,
        certify_confidence,
        fit_schedule,
        threshold_for,
    )
    from secondlook.predictions import Execution, Predictions, collect
    from secondlook.report import (
        ConfidenceHistogramDisplay,
        ReliabilityDisplay,
        RiskCoverageDisplay,
        Run,
        ScheduleDisplay,
        ViewsDisplay,
        create_run,
        open_run,
        write_report,
    )
    from secondlook.serving import Client
    from secondlook.sources import Source, open_source
    from secondlook.views import View, ViewSet, ViewWarning, apply_views, contact_sheet, view_step

__version__ = "0.1.0"

_ROOMS = {
    "Classifier": "classifiers",
    "Client": "serving",
    "ConfidenceHistogramDisplay": "report",
    "Decisions": "decisions",
    "Ensemble": "classifiers",
    "Evaluation": "evaluation",
    "Execution": "predictions",
    "Monitor": "monitoring",
    "Policy": "policies",
    "Predictions": "predictions",
    "Preprocessing": "classifiers",
    "RayEngine": "cluster",
    "ReliabilityDisplay": "report",
    "RiskCoverageDisplay": "report",
    "Rule": "policies",
    "Run": "report",
    "Schedule": "policies",
    "ScheduleDisplay": "report",
    "SecondLookError": "errors",
    "SelectiveClassifier": "decisions",
    "SetupCheck": "diagnosis",
    "SetupWarning": "diagnosis",
    "Source": "sources",
    "View": "views",
    "ViewSet": "views",
    "ViewWarning": "views",
    "ViewsDisplay": "report",
    "apply_views": "views",
    "candidate_views": "diagnosis",
    "certify": "policies",
    "certify_confidence": "policies",
    "check_setup": "diagnosis",
    "choose_views": "diagnosis",
    "collect": "predictions",
    "compare": "evaluation",
    "confidence": "estimators",
    "confidence_interval": "estimators",
    "contact_sheet": "views",
    "create_run": "report",
    "diagnose_views": "diagnosis",
    "evaluate": "evaluation",
    "export_onnx": "onnx_export",
    "fit_method": "estimators",
    "fit_schedule": "policies",
    "fit_temperature": "estimators",
    "load_classifier": "classifiers",
    "load_decider": "decisions",
    "load_policy": "decisions",
    "metrics": "metrics",
    "open_run": "report",
    "open_source": "sources",
    "score": "decisions",
    "search_views": "diagnosis",
    "threshold_for": "policies",
    "verify_export": "onnx_export",
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
    "Execution",
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
    "candidate_views",
    "certify",
    "certify_confidence",
    "check_setup",
    "choose_views",
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
    "verify_export",
    "view_step",
    "write_report",
]

__getattr__ = lazy_attributes(__name__, {name: f"secondlook.{room}" for name, room in _ROOMS.items()})


def __dir__() -> list[str]:
    return sorted(__all__)
