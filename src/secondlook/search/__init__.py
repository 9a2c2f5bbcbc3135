"""Choosing the views: pools of candidates, what each does to a classifier, and which to use."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.search.agreement import Agreement, warn_of_harmful_views
    from secondlook.search.diagnosis import Diagnosis, ViewDiagnosis, diagnose
    from secondlook.search.intensity import IntensityCurve, intensity_curves
    from secondlook.search.judging import CurvePoint, Gain
    from secondlook.search.proposals import KINDS, Kind, candidate_kind, candidates
    from secondlook.search.result import SearchResult
    from secondlook.search.sanity import Sanity
    from secondlook.search.searching import STRATEGIES, SearchWarning, search_run, search_views
    from secondlook.search.strategies import Choice, Question, Strategy, strategy
    from secondlook.search.weighting import learned_weights, weighted_confidence

_MODULES = {
    "Agreement": "secondlook.search.agreement",
    "Choice": "secondlook.search.strategies",
    "CurvePoint": "secondlook.search.judging",
    "Diagnosis": "secondlook.search.diagnosis",
    "Gain": "secondlook.search.judging",
    "IntensityCurve": "secondlook.search.intensity",
    "KINDS": "secondlook.search.proposals",
    "Kind": "secondlook.search.proposals",
    "Question": "secondlook.search.strategies",
    "STRATEGIES": "secondlook.search.searching",
    "Sanity": "secondlook.search.sanity",
    "SearchResult": "secondlook.search.result",
    "SearchWarning": "secondlook.search.searching",
    "Strategy": "secondlook.search.strategies",
    "ViewDiagnosis": "secondlook.search.diagnosis",
    "candidate_kind": "secondlook.search.proposals",
    "candidates": "secondlook.search.proposals",
    "diagnose": "secondlook.search.diagnosis",
    "intensity_curves": "secondlook.search.intensity",
    "learned_weights": "secondlook.search.weighting",
    "search_run": "secondlook.search.searching",
    "search_views": "secondlook.search.searching",
    "strategy": "secondlook.search.strategies",
    "warn_of_harmful_views": "secondlook.search.agreement",
    "weighted_confidence": "secondlook.search.weighting",
}

__all__ = [
    "KINDS",
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
    "candidates",
    "diagnose",
    "intensity_curves",
    "learned_weights",
    "search_run",
    "search_views",
    "strategy",
    "warn_of_harmful_views",
    "weighted_confidence",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
