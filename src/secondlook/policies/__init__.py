"""Policies: thresholds with a guaranteed error rate, and the files that store them."""

from secondlook.policies.audit_plan import AuditPlan, draw_audits
from secondlook.policies.certification import certify, certify_confidence, threshold_for
from secondlook.policies.fixed_sequence import largest_certified_count
from secondlook.policies.frontier import CertifiedPoint, Frontier, compute_frontier
from secondlook.policies.group_certification import OTHER_GROUPS, Risks
from secondlook.policies.guarantee import (
    DEFAULT_DELTA,
    Calibration,
    ComparedMethod,
    GroupThreshold,
    Guarantee,
    Shortfall,
)
from secondlook.policies.policy import (
    DEFAULT_METHOD,
    POLICY_METADATA,
    Policy,
    PolicyWarning,
    check_views_are_steps,
    has_onnx_suffix,
    read_policy,
)
from secondlook.policies.reference import BinCounts, Reference, make_reference
from secondlook.policies.schedule import FrontierPoint, Schedule
from secondlook.policies.schedule_fit import DEFAULT_TOLERANCE, fit_schedule
from secondlook.policies.scored_images import as_methods, check_threshold_transfers
from secondlook.policies.shift_model import (
    DEFAULT_SHIFT_IMAGES,
    MAX_CLASS_GROUPS,
    MIN_SHIFT_IMAGES,
    AccuracyModel,
    LearnedShift,
    LogOddsRange,
    RiskModel,
    ShiftModel,
    group_classes,
    measure_class_distance,
    to_log_odds,
    to_share,
)

__all__ = [
    "DEFAULT_DELTA",
    "DEFAULT_METHOD",
    "DEFAULT_SHIFT_IMAGES",
    "DEFAULT_TOLERANCE",
    "MAX_CLASS_GROUPS",
    "MIN_SHIFT_IMAGES",
    "OTHER_GROUPS",
    "POLICY_METADATA",
    "AccuracyModel",
    "AuditPlan",
    "BinCounts",
    "Calibration",
    "CertifiedPoint",
    "ComparedMethod",
    "Frontier",
    "FrontierPoint",
    "GroupThreshold",
    "Guarantee",
    "LearnedShift",
    "LogOddsRange",
    "Policy",
    "PolicyWarning",
    "Reference",
    "RiskModel",
    "Risks",
    "Schedule",
    "ShiftModel",
    "Shortfall",
    "as_methods",
    "certify",
    "certify_confidence",
    "check_threshold_transfers",
    "check_views_are_steps",
    "compute_frontier",
    "draw_audits",
    "fit_schedule",
    "group_classes",
    "has_onnx_suffix",
    "largest_certified_count",
    "make_reference",
    "measure_class_distance",
    "read_policy",
    "threshold_for",
    "to_log_odds",
    "to_share",
]
