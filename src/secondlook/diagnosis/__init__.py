"""Diagnosis: wrong preprocessing or class order, harmful views, and the choice of views."""

from secondlook.diagnosis.choice import ViewChoice, candidate_views, choose_views, collect_views
from secondlook.diagnosis.diagnosis import Diagnosis, diagnose_views
from secondlook.diagnosis.plausibility import warn_about_setup
from secondlook.diagnosis.setup_check import SetupWarning, check_setup

__all__ = [
    "Diagnosis",
    "SetupWarning",
    "ViewChoice",
    "candidate_views",
    "check_setup",
    "choose_views",
    "collect_views",
    "diagnose_views",
    "warn_about_setup",
]
