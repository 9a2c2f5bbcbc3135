"""Scoring: a policy, a classifier and new images become decisions, score files and review exports."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes
from secondlook.scoring.exports import EXPORTS, Export
from secondlook.scoring.formats import SCORE_FORMATS, ScoreFormat
from secondlook.scoring.job import ScoreSummary, score
from secondlook.scoring.loaded_policy import ImageDecision, LoadedPolicy, load_policy
from secondlook.scoring.policy_classifier import ResolvedClassifier, can_load_classifier, resolve_classifier
from secondlook.scoring.policy_options import select_harmless_options
from secondlook.scoring.review import REJECTED_LIST
from secondlook.scoring.rows import Decision, Decisions

if TYPE_CHECKING:
    from secondlook.scoring.selective_classifier import SelectiveClassifier

__all__ = [
    "EXPORTS",
    "REJECTED_LIST",
    "SCORE_FORMATS",
    "Decision",
    "Decisions",
    "Export",
    "ImageDecision",
    "LoadedPolicy",
    "ResolvedClassifier",
    "ScoreFormat",
    "ScoreSummary",
    "SelectiveClassifier",
    "can_load_classifier",
    "load_policy",
    "resolve_classifier",
    "score",
    "select_harmless_options",
]

# Its base classes are those of scikit-learn, which takes a second to import.
__getattr__ = lazy_attributes(__name__, {"SelectiveClassifier": "secondlook.scoring.selective_classifier"})
