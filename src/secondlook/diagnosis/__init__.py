"""Diagnosis: wrong preprocessing or class order, harmful views, and the choice of views."""

from secondlook.diagnosis.candidates import CANDIDATE_KINDS, candidate_views
from secondlook.diagnosis.choice import ViewChoice, choose_tuning_images, choose_views, collect_views
from secondlook.diagnosis.diagnosis import Diagnosis, describe_harmful_views, diagnose_views
from secondlook.diagnosis.search import SearchResult, search_views
from secondlook.diagnosis.setup_check import SetupCheck, SetupWarning, check_setup

__all__ = [
    "CANDIDATE_KINDS",
    "Diagnosis",
    "SearchResult",
    "SetupCheck",
    "SetupWarning",
    "ViewChoice",
    "candidate_views",
    "check_setup",
    "choose_tuning_images",
    "choose_views",
    "collect_views",
    "describe_harmful_views",
    "diagnose_views",
    "search_views",
]
