"""The answers of a classifier to every view of every image: collected once, kept on disk, read lazily."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.predictions.checks import ClassNamesWarning
    from secondlook.predictions.collecting import collect
    from secondlook.predictions.part import DamagedPartWarning
    from secondlook.predictions.predictions import Predictions

__all__ = ["ClassNamesWarning", "DamagedPartWarning", "Predictions", "collect"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "ClassNamesWarning": "secondlook.predictions.checks",
        "DamagedPartWarning": "secondlook.predictions.part",
        "Predictions": "secondlook.predictions.predictions",
        "collect": "secondlook.predictions.collecting",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
