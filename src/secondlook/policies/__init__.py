"""Policies: thresholds with a guaranteed error rate, and the files that store them."""

from secondlook.policies.certification import (
    Frontier,
    as_methods,
    certify,
    certify_confidence,
    threshold_for,
)
from secondlook.policies.costs import Costs
from secondlook.policies.familiarity import Familiarity
from secondlook.policies.fixed_sequence import CountedImages, largest_certified_count
from secondlook.policies.guarantee import DEFAULT_DELTA, Calibration, Guarantee
from secondlook.policies.labeling import LabelingPlan, LabelingProgress
from secondlook.policies.ledger import Ledger
from secondlook.policies.policy import Binding, Policy, PolicyWarning, read_policy
from secondlook.policies.reference import AccuracyModel, AuditPlan, Reference, ShiftModel
from secondlook.policies.schedule import Schedule, fit_schedule

__all__ = [
    "DEFAULT_DELTA",
    "AccuracyModel",
    "AuditPlan",
    "Binding",
    "Calibration",
    "Costs",
    "CountedImages",
    "Familiarity",
    "Frontier",
    "Guarantee",
    "LabelingPlan",
    "LabelingProgress",
    "Ledger",
    "Policy",
    "PolicyWarning",
    "Reference",
    "Schedule",
    "ShiftModel",
    "as_methods",
    "certify",
    "certify_confidence",
    "fit_schedule",
    "largest_certified_count",
    "read_policy",
    "threshold_for",
]
