"""What was found, as one page that a person can read, try and show to a colleague, with tables and plots beside it."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.report.writing import write_report

_MODULES = {
    "write_report": "secondlook.report.writing",
}

__all__ = [
    "write_report",
]

__getattr__ = lazy_attributes(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
