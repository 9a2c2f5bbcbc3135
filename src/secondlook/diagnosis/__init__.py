"""Diagnosis: wrong preprocessing or class order, harmful views, and the choice of views."""

from secondlook.diagnosis.candidates import candidate_views
from secondlook.diagnosis.choice import ViewChoice, choose_views, collect_views
from secondlook.diagnosis.diagnosis import Diagnosis, describe_harmful_views, diagnose_views
from secondlook.diagnosis.setup_check import SetupWarning, check_setup

__all__ = [
    "Diagnosis",
    "SetupWarning",
    "ViewChoice",
    "candidate_views",
    "check_setup",
    "choose_views",
    "collect_views",
    "describe_harmful_views",
    "diagnose_views",
]
