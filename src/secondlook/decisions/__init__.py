"""Decisions about images, by a policy compiled with its classifier; score files and review exports."""

from typing import TYPE_CHECKING

from secondlook.decisions.decision import Decision, Decisions, FileOutputs, make_decisions
from secondlook.decisions.exported_file import ExportedFile, ExportRecord, PixelType
from secondlook.decisions.formats import SCORE_FORMATS, ScoreFormat
from secondlook.decisions.job import RowOptions, make_row_table, score
from secondlook.decisions.looking import LookedImage, LookStream
from secondlook.decisions.plan import Plan, compile_policy, load_policy
from secondlook.decisions.policy_classifier import can_load_classifier, resolve_classifier
from secondlook.decisions.review import EXPORTS, Answer, Export, LabelStudio, Review, ReviewImage, encode_png
from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.decisions.selective_classifier import SelectiveClassifier

__all__ = [
    "EXPORTS",
    "SCORE_FORMATS",
    "Answer",
    "Decision",
    "Decisions",
    "Export",
    "ExportRecord",
    "ExportedFile",
    "FileOutputs",
    "LabelStudio",
    "LookStream",
    "LookedImage",
    "PixelType",
    "Plan",
    "Review",
    "ReviewImage",
    "RowOptions",
    "ScoreFormat",
    "SelectiveClassifier",
    "can_load_classifier",
    "compile_policy",
    "encode_png",
    "load_policy",
    "make_decisions",
    "make_row_table",
    "resolve_classifier",
    "score",
]

# Its base classes are in scikit-learn, which takes a second to import.
__getattr__ = lazy_attributes(__name__, {"SelectiveClassifier": "secondlook.decisions.selective_classifier"})
