"""Selective classification: thresholds with a guaranteed error rate, and policy files that store them."""

from secondlook.selective.certification import certify, certify_confidence, threshold_for
from secondlook.selective.fixed_sequence import largest_certified_count
from secondlook.selective.frontier import CertifiedPoint, Frontier, compute_frontier
from secondlook.selective.policy import Policy, PolicyClassifier, PolicyWarning, describe_classifier
from secondlook.selective.rule import DEFAULT_DELTA, Calibration, Guarantee, LookedImages, Rule, Shortfall
from secondlook.selective.schedule import FrontierPoint, Looks, Schedule
from secondlook.selective.schedule_fit import DEFAULT_TOLERANCE, fit_schedule
from secondlook.selective.scored_images import as_methods, check_threshold_transfers

__all__ = [
    "DEFAULT_DELTA",
    "DEFAULT_TOLERANCE",
    "Calibration",
    "CertifiedPoint",
    "Frontier",
    "FrontierPoint",
    "Guarantee",
    "LookedImages",
    "Looks",
    "Policy",
    "PolicyClassifier",
    "PolicyWarning",
    "Rule",
    "Schedule",
    "Shortfall",
    "as_methods",
    "certify",
    "certify_confidence",
    "check_threshold_transfers",
    "compute_frontier",
    "describe_classifier",
    "fit_schedule",
    "largest_certified_count",
    "threshold_for",
]
