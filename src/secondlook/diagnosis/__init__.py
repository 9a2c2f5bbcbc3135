"""Diagnosis of views: candidates, which of them harm a classifier, and which to choose."""

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

__all__ = [
    "AUTO_POOL",
    "CANDIDATE_KINDS",
    "MAX_IMAGES_FOR_WARNINGS",
    "Agreement",
    "CandidateKind",
    "CollectedViews",
    "CurvePoint",
    "Diagnosis",
    "Gain",
    "SearchResult",
    "SearchWarning",
    "Status",
    "ViewChoice",
    "ViewDiagnosis",
    "auto_views",
    "candidate_kind",
    "candidate_views",
    "choose_tuning_images",
    "choose_views",
    "collect_views",
    "describe_harmful_views",
    "diagnose_views",
    "refine_choice",
    "search_views",
]
