"""Methods x metrics on labeled predictions, with intervals and paired differences."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.evaluation.across import compare
    from secondlook.evaluation.comparing import DEFAULT_METRICS, evaluate
    from secondlook.evaluation.estimate import Estimate
    from secondlook.evaluation.evaluation import Evaluation
    from secondlook.evaluation.paired import INTERVALS, RESAMPLINGS
    from secondlook.evaluation.table import ARROWS

_MODULES = {
    "ARROWS": "secondlook.evaluation.table",
    "Estimate": "secondlook.evaluation.estimate",
    "Evaluation": "secondlook.evaluation.evaluation",
    "INTERVALS": "secondlook.evaluation.paired",
    "DEFAULT_METRICS": "secondlook.evaluation.comparing",
    "RESAMPLINGS": "secondlook.evaluation.paired",
    "compare": "secondlook.evaluation.across",
    "evaluate": "secondlook.evaluation.comparing",
}

__all__ = [
    "ARROWS",
    "DEFAULT_METRICS",
    "INTERVALS",
    "RESAMPLINGS",
    "Estimate",
    "Evaluation",
    "compare",
    "evaluate",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
