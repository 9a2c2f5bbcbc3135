"""From a confidence to a decision: thresholds with a guarantee, policy files, and a classifier that may ask a person."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.selective.fallback_test import largest_certified_count
    from secondlook.selective.policy import Policy, PolicyClassifier, describe_classifier
    from secondlook.selective.rule import Calibration, Guarantee, Rule, Shortfall
    from secondlook.selective.thresholds import (
        certify,
        certify_confidence,
        check_threshold_transfers,
        threshold_for,
    )

_MODULES = {
    "Calibration": "secondlook.selective.rule",
    "Policy": "secondlook.selective.policy",
    "PolicyClassifier": "secondlook.selective.policy",
    "Guarantee": "secondlook.selective.rule",
    "Rule": "secondlook.selective.rule",
    "Shortfall": "secondlook.selective.rule",
    "certify": "secondlook.selective.thresholds",
    "certify_confidence": "secondlook.selective.thresholds",
    "describe_classifier": "secondlook.selective.policy",
    "largest_certified_count": "secondlook.selective.fallback_test",
    "check_threshold_transfers": "secondlook.selective.thresholds",
    "threshold_for": "secondlook.selective.thresholds",
}

__all__ = [
    "Calibration",
    "Guarantee",
    "Policy",
    "PolicyClassifier",
    "Rule",
    "Shortfall",
    "certify",
    "certify_confidence",
    "check_threshold_transfers",
    "describe_classifier",
    "largest_certified_count",
    "threshold_for",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
