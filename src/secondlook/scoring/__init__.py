"""Scoring: a policy, a classifier and new images become decisions, score files and review exports."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes
from secondlook.scoring.adaptive_looks import take_first_views
from secondlook.scoring.detailed_decisions import ClassProbability, DetailedDecision, LookPrediction, detail_decisions
from secondlook.scoring.export_record import (
    EXPORT_METADATA,
    INPUT_NAME,
    OUTPUT_NAMES,
    TOP_K_OUTPUT,
    ExportRecord,
    PixelType,
    list_outputs,
)
from secondlook.scoring.exports import (
    EXPORTS,
    Export,
    format_labeling_interface,
    make_label_studio_choice,
    make_label_studio_task,
)
from secondlook.scoring.formats import SCORE_FORMATS, ScoreFormat
from secondlook.scoring.job import score
from secondlook.scoring.loaded_policy import (
    Decider,
    ImageDecision,
    LoadedPolicy,
    load_policy,
    open_policy_classifier,
)
from secondlook.scoring.look_stream import LookedImage, LookStep, LookStream
from secondlook.scoring.onnx_decider import OnnxDecider, group_by_shape, load_decider
from secondlook.scoring.policy_classifier import ResolvedClassifier, can_load_classifier, resolve_classifier
from secondlook.scoring.policy_options import select_harmless_options
from secondlook.scoring.review import REJECTED_LIST, ReviewImage, encode_png
from secondlook.scoring.rows import Decision, Decisions, FileDecisions, RowOptions, compute_confidence
from secondlook.scoring.summary import ScoreSummary

if TYPE_CHECKING:
    from secondlook.scoring.selective_classifier import SelectiveClassifier

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
__getattr__ = lazy_attributes(__name__, {"SelectiveClassifier": "secondlook.scoring.selective_classifier"})
