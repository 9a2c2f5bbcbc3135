"""Diagnosis: wrong preprocessing or class order, harmful views, and the choice of views."""

from secondlook.diagnosis.auto import AUTO_POOL, ViewChoice, auto_views, choose_views, refine_choice
from secondlook.diagnosis.candidates import CANDIDATE_KINDS, CandidateKind, candidate_kind, candidate_views
from secondlook.diagnosis.collection import CollectedViews, choose_tuning_images, collect_views
from secondlook.diagnosis.diagnosis import (
    MAX_IMAGES_FOR_WARNINGS,
    Agreement,
    Diagnosis,
    Status,
    ViewDiagnosis,
    describe_harmful_views,
    diagnose_views,
)
from secondlook.diagnosis.gains import CurvePoint, Gain
from secondlook.diagnosis.search import SearchWarning, search_views
from secondlook.diagnosis.search_result import SearchResult
from secondlook.diagnosis.setup_check import check_setup, find_setup_warnings
from secondlook.diagnosis.setup_result import LOOKS_WRONG, Reading, SetupCheck, SetupWarning

__all__ = [
    "AUTO_POOL",
    "CANDIDATE_KINDS",
    "LOOKS_WRONG",
    "MAX_IMAGES_FOR_WARNINGS",
    "Agreement",
    "CandidateKind",
    "CollectedViews",
    "CurvePoint",
    "Diagnosis",
    "Gain",
    "Reading",
    "SearchResult",
    "SearchWarning",
    "SetupCheck",
    "SetupWarning",
    "Status",
    "ViewChoice",
    "ViewDiagnosis",
    "auto_views",
    "candidate_kind",
    "candidate_views",
    "check_setup",
    "choose_tuning_images",
    "choose_views",
    "collect_views",
    "describe_harmful_views",
    "diagnose_views",
    "find_setup_warnings",
    "refine_choice",
    "search_views",
]
