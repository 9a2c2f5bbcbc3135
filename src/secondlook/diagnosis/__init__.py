"""Choosing the views: pools of candidates, what each does to a classifier, and which to use."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.diagnosis.agreement import Agreement, harmful_view_warnings
    from secondlook.diagnosis.diagnosis import Diagnosis, ViewDiagnosis, diagnose_views
    from secondlook.diagnosis.intensity import IntensityCurve, intensity_curves
    from secondlook.diagnosis.judging import CurvePoint, Gain
    from secondlook.diagnosis.proposals import CANDIDATE_KINDS, Kind, candidate_kind, candidate_views
    from secondlook.diagnosis.result import SearchResult
    from secondlook.diagnosis.sanity import Sanity
    from secondlook.diagnosis.searching import STRATEGIES, SearchWarning, search_run, search_views
    from secondlook.diagnosis.strategies import Choice, Question, Strategy, strategy
    from secondlook.diagnosis.weighting import learned_weights, weighted_confidence

_MODULES = {
    "Agreement": "secondlook.diagnosis.agreement",
    "Choice": "secondlook.diagnosis.strategies",
    "CurvePoint": "secondlook.diagnosis.judging",
    "Diagnosis": "secondlook.diagnosis.diagnosis",
    "Gain": "secondlook.diagnosis.judging",
    "IntensityCurve": "secondlook.diagnosis.intensity",
    "CANDIDATE_KINDS": "secondlook.diagnosis.proposals",
    "Kind": "secondlook.diagnosis.proposals",
    "Question": "secondlook.diagnosis.strategies",
    "STRATEGIES": "secondlook.diagnosis.searching",
    "Sanity": "secondlook.diagnosis.sanity",
    "SearchResult": "secondlook.diagnosis.result",
    "SearchWarning": "secondlook.diagnosis.searching",
    "Strategy": "secondlook.diagnosis.strategies",
    "ViewDiagnosis": "secondlook.diagnosis.diagnosis",
    "candidate_kind": "secondlook.diagnosis.proposals",
    "candidate_views": "secondlook.diagnosis.proposals",
    "diagnose_views": "secondlook.diagnosis.diagnosis",
    "intensity_curves": "secondlook.diagnosis.intensity",
    "learned_weights": "secondlook.diagnosis.weighting",
    "search_run": "secondlook.diagnosis.searching",
    "search_views": "secondlook.diagnosis.searching",
    "strategy": "secondlook.diagnosis.strategies",
    "harmful_view_warnings": "secondlook.diagnosis.agreement",
    "weighted_confidence": "secondlook.diagnosis.weighting",
}

__all__ = [
    "CANDIDATE_KINDS",
    "STRATEGIES",
    "Agreement",
    "Choice",
    "CurvePoint",
    "Diagnosis",
    "Gain",
    "IntensityCurve",
    "Kind",
    "Question",
    "Sanity",
    "SearchResult",
    "SearchWarning",
    "Strategy",
    "ViewDiagnosis",
    "candidate_kind",
    "candidate_views",
    "diagnose_views",
    "harmful_view_warnings",
    "intensity_curves",
    "learned_weights",
    "search_run",
    "search_views",
    "strategy",
    "weighted_confidence",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
