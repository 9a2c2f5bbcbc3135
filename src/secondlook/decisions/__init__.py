"""Scoring: a policy, a classifier and new images become decisions, score files and review exports."""

from typing import TYPE_CHECKING

from secondlook.decisions.adaptive_looks import take_first_views
from secondlook.decisions.detailed_decisions import ClassProbability, DetailedDecision, LookPrediction, detail_decisions
from secondlook.decisions.export_record import (
    EXPORT_METADATA,
    INPUT_NAME,
    OUTPUT_NAMES,
    TOP_K_OUTPUT,
    ExportRecord,
    PixelType,
    list_outputs,
)
from secondlook.decisions.exports import (
    EXPORTS,
    Export,
    format_labeling_interface,
    make_label_studio_choice,
    make_label_studio_task,
)
from secondlook.decisions.formats import SCORE_FORMATS, ScoreFormat
from secondlook.decisions.job import score
from secondlook.decisions.loaded_policy import (
    Decider,
    ImageDecision,
    LoadedPolicy,
    load_policy,
    open_policy_classifier,
)
from secondlook.decisions.look_stream import LookedImage, LookStep, LookStream
from secondlook.decisions.onnx_decider import OnnxDecider, group_by_shape, load_decider
from secondlook.decisions.policy_classifier import ResolvedClassifier, can_load_classifier, resolve_classifier
from secondlook.decisions.policy_options import select_harmless_options
from secondlook.decisions.review import REJECTED_LIST, ReviewImage, encode_png
from secondlook.decisions.rows import Decision, Decisions, FileDecisions, RowOptions, compute_confidence
from secondlook.decisions.summary import ScoreSummary
from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.decisions.selective_classifier import SelectiveClassifier

__all__ = [
    "EXPORTS",
    "EXPORT_METADATA",
    "INPUT_NAME",
    "OUTPUT_NAMES",
    "REJECTED_LIST",
    "SCORE_FORMATS",
    "TOP_K_OUTPUT",
    "ClassProbability",
    "Decider",
    "Decision",
    "Decisions",
    "DetailedDecision",
    "Export",
    "ExportRecord",
    "FileDecisions",
    "ImageDecision",
    "LoadedPolicy",
    "LookPrediction",
    "LookStep",
    "LookStream",
    "LookedImage",
    "OnnxDecider",
    "PixelType",
    "ResolvedClassifier",
    "ReviewImage",
    "RowOptions",
    "ScoreFormat",
    "ScoreSummary",
    "SelectiveClassifier",
    "can_load_classifier",
    "compute_confidence",
    "detail_decisions",
    "encode_png",
    "format_labeling_interface",
    "group_by_shape",
    "list_outputs",
    "load_decider",
    "load_policy",
    "make_label_studio_choice",
    "make_label_studio_task",
    "open_policy_classifier",
    "resolve_classifier",
    "score",
    "select_harmless_options",
    "take_first_views",
]

# Its base classes are those of scikit-learn, which takes a second to import.
__getattr__ = lazy_attributes(__name__, {"SelectiveClassifier": "secondlook.decisions.selective_classifier"})
