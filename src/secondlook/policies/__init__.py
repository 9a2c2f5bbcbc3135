"""Policies: thresholds with a guaranteed error rate, and the files that store them."""

from secondlook.policies.certification import (
    CertifiedPoint,
    Frontier,
    certify,
    certify_confidence,
    compute_frontier,
    threshold_for,
)
from secondlook.policies.fixed_sequence import largest_certified_count
from secondlook.policies.group_certification import OTHER_GROUPS, Risks
from secondlook.policies.guarantee import DEFAULT_DELTA, Calibration, Guarantee
from secondlook.policies.policy import (
    POLICY_METADATA,
    Binding,
    Policy,
    PolicyWarning,
    has_onnx_suffix,
    read_policy,
)
from secondlook.policies.reference import (
    DEFAULT_SHIFT_IMAGES,
    MIN_SHIFT_IMAGES,
    AccuracyModel,
    AuditPlan,
    BinCounts,
    LearnedShift,
    Reference,
    RiskModel,
    ShiftModel,
    make_reference,
)
from secondlook.policies.schedule import DEFAULT_TOLERANCE, Schedule, fit_schedule
from secondlook.policies.scored_images import as_methods, check_threshold_transfers

__all__ = [
    "DEFAULT_DELTA",
    "DEFAULT_SHIFT_IMAGES",
    "DEFAULT_TOLERANCE",
    "MIN_SHIFT_IMAGES",
    "OTHER_GROUPS",
    "POLICY_METADATA",
    "AccuracyModel",
    "AuditPlan",
    "BinCounts",
    "Binding",
    "Calibration",
    "CertifiedPoint",
    "Frontier",
    "Guarantee",
    "LearnedShift",
    "Policy",
    "PolicyWarning",
    "Reference",
    "RiskModel",
    "Risks",
    "Schedule",
    "ShiftModel",
    "as_methods",
    "certify",
    "certify_confidence",
    "check_threshold_transfers",
    "compute_frontier",
    "fit_schedule",
    "has_onnx_suffix",
    "largest_certified_count",
    "make_reference",
    "read_policy",
    "threshold_for",
]
