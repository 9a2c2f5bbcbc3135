"""A policy, a classifier and new images become decisions, score files and review exports."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.scoring.classifier import SelectiveClassifier
    from secondlook.scoring.decisions import Decision, Decisions
    from secondlook.scoring.review.rejected_folder import REJECTED_LIST
    from secondlook.scoring.score_summary import ScoreSummary
    from secondlook.scoring.scoring import score

_MODULES = {
    "Decision": "secondlook.scoring.decisions",
    "Decisions": "secondlook.scoring.decisions",
    "REJECTED_LIST": "secondlook.scoring.review.rejected_folder",
    "ScoreSummary": "secondlook.scoring.score_summary",
    "SelectiveClassifier": "secondlook.scoring.classifier",
    "score": "secondlook.scoring.scoring",
}

__all__ = [
    "REJECTED_LIST",
    "Decision",
    "Decisions",
    "ScoreSummary",
    "SelectiveClassifier",
    "score",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
