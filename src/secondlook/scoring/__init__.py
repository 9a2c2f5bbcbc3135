"""Scoring: a policy, a classifier and new images become decisions, score files and review exports."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes
from secondlook.scoring.detailed_decisions import ClassProbability, DetailedDecision, LookPrediction, detail_decisions
from secondlook.scoring.exports import (
    EXPORTS,
    Export,
    format_labeling_interface,
    make_label_studio_choice,
    make_label_studio_task,
)
from secondlook.scoring.formats import SCORE_FORMATS, ScoreFormat
from secondlook.scoring.job import ScoreSummary, score
from secondlook.scoring.loaded_policy import Decider, ImageDecision, LoadedPolicy, load_policy
from secondlook.scoring.policy_classifier import ResolvedClassifier, can_load_classifier, resolve_classifier
from secondlook.scoring.policy_options import select_harmless_options
from secondlook.scoring.review import REJECTED_LIST, ReviewImage, encode_png
from secondlook.scoring.rows import Decision, Decisions, RowOptions

if TYPE_CHECKING:
    from secondlook.scoring.selective_classifier import SelectiveClassifier

__all__ = [
    "EXPORTS",
    "REJECTED_LIST",
    "SCORE_FORMATS",
    "ClassProbability",
    "Decider",
    "Decision",
    "Decisions",
    "DetailedDecision",
    "Export",
    "ImageDecision",
    "LoadedPolicy",
    "LookPrediction",
    "ResolvedClassifier",
    "ReviewImage",
    "RowOptions",
    "ScoreFormat",
    "ScoreSummary",
    "SelectiveClassifier",
    "can_load_classifier",
    "detail_decisions",
    "encode_png",
    "format_labeling_interface",
    "load_policy",
    "make_label_studio_choice",
    "make_label_studio_task",
    "resolve_classifier",
    "score",
    "select_harmless_options",
]

# Its base classes are those of scikit-learn, which takes a second to import.
__getattr__ = lazy_attributes(__name__, {"SelectiveClassifier": "secondlook.scoring.selective_classifier"})
