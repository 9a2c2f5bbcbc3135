"""Diagnosis of views: candidates, which of them harm a classifier, and which to choose."""

from secondlook.diagnosis.candidates import CANDIDATE_KINDS, CandidateKind, candidate_kind, candidate_views
from secondlook.diagnosis.diagnosis import (
    Agreement,
    Diagnosis,
    Status,
    ViewDiagnosis,
    diagnose_views,
    harmful_view_warnings,
)
from secondlook.diagnosis.gains import CurvePoint, Gain
from secondlook.diagnosis.search import SearchWarning, search_views
from secondlook.diagnosis.search_result import SearchResult

__all__ = [
    "CANDIDATE_KINDS",
    "Agreement",
    "CandidateKind",
    "CurvePoint",
    "Diagnosis",
    "Gain",
    "SearchResult",
    "SearchWarning",
    "Status",
    "ViewDiagnosis",
    "candidate_kind",
    "candidate_views",
    "diagnose_views",
    "harmful_view_warnings",
    "search_views",
]
