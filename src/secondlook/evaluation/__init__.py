"""Methods x metrics on labelled predictions, with intervals and paired differences."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.evaluation.comparing import evaluate
    from secondlook.evaluation.estimate import Estimate, Interval
    from secondlook.evaluation.evaluation import Evaluation

__all__ = ["Estimate", "Evaluation", "Interval", "evaluate"]

_MODULES = {
    "Estimate": "secondlook.evaluation.estimate",
    "Evaluation": "secondlook.evaluation.evaluation",
    "Interval": "secondlook.evaluation.estimate",
    "evaluate": "secondlook.evaluation.comparing",
}

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
