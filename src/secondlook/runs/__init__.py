"""The folder of a run: predictions, evaluation and record of one classifier on labeled images."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.runs.run_folder import PREDICTIONS, REPORT, Run, record_of, write_run

_MODULES = {
    "PREDICTIONS": "secondlook.runs.run_folder",
    "REPORT": "secondlook.runs.run_folder",
    "Run": "secondlook.runs.run_folder",
    "record_of": "secondlook.runs.run_folder",
    "write_run": "secondlook.runs.run_folder",
}

__all__ = [
    "PREDICTIONS",
    "REPORT",
    "Run",
    "record_of",
    "write_run",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
