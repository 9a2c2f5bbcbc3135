"""Selective classification: thresholds with a guaranteed error rate, and policy files that store them."""

from secondlook.selective.certification import (
    as_methods,
    certify,
    certify_confidence,
    check_threshold_transfers,
    threshold_for,
)
from secondlook.selective.fixed_sequence import largest_certified_count
from secondlook.selective.policy import Policy, PolicyClassifier, PolicyWarning, describe_classifier
from secondlook.selective.rule import DEFAULT_DELTA, Calibration, Guarantee, Rule, Shortfall

__all__ = [
    "DEFAULT_DELTA",
    "Calibration",
    "Guarantee",
    "Policy",
    "PolicyClassifier",
    "PolicyWarning",
    "Rule",
    "Shortfall",
    "as_methods",
    "certify",
    "certify_confidence",
    "check_threshold_transfers",
    "describe_classifier",
    "largest_certified_count",
    "threshold_for",
]
