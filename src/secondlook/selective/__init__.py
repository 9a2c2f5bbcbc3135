"""From a confidence to a decision: thresholds with a guarantee, policy files, and a classifier that may ask a person."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.selective.fallback_test import largest_certified
    from secondlook.selective.policy import Policy, PolicyClassifier, described
    from secondlook.selective.rule import Calibration, Guarantee, Rule, Shortfall
    from secondlook.selective.thresholds import (
        certify,
        certify_confidence,
        refuse_what_needs_other_images,
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
    "described": "secondlook.selective.policy",
    "largest_certified": "secondlook.selective.fallback_test",
    "refuse_what_needs_other_images": "secondlook.selective.thresholds",
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
    "described",
    "largest_certified",
    "refuse_what_needs_other_images",
    "threshold_for",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
