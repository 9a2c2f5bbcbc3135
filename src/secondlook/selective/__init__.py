"""From a confidence to a decision: thresholds with a promise, policy files, and a classifier that may ask a person."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.selective.classifier import SelectiveClassifier
    from secondlook.selective.decisions import Decision, Decisions
    from secondlook.selective.policy import Policy
    from secondlook.selective.rule import Calibration, Promise, Rule, Shortfall
    from secondlook.selective.thresholds import certify, certify_confidence, threshold_for

_MODULES = {
    "Calibration": "secondlook.selective.rule",
    "Decision": "secondlook.selective.decisions",
    "Decisions": "secondlook.selective.decisions",
    "Policy": "secondlook.selective.policy",
    "Promise": "secondlook.selective.rule",
    "Rule": "secondlook.selective.rule",
    "SelectiveClassifier": "secondlook.selective.classifier",
    "Shortfall": "secondlook.selective.rule",
    "certify": "secondlook.selective.thresholds",
    "certify_confidence": "secondlook.selective.thresholds",
    "threshold_for": "secondlook.selective.thresholds",
}

__all__ = [
    "Calibration",
    "Decision",
    "Decisions",
    "Policy",
    "Promise",
    "Rule",
    "SelectiveClassifier",
    "Shortfall",
    "certify",
    "certify_confidence",
    "threshold_for",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
