"""What files for other tools can be written: one frozen record each, found by the scheme of `SCHEME:FILE`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from secondlook.errors import DecisionError
from secondlook.scoring.review.pictures import Pictures
from secondlook.scoring.review.review_queue import ReviewQueue

Write = Callable[[Path, ReviewQueue, Pictures], None]
"""(file, images, where their pictures are) -> the file is written, whole or not at all"""


@dataclass(frozen=True)
class Export:
    """A kind of file for another tool. Where `reads_files`, the tool needs the pictures as files on its own disk."""

    scheme: str
    summary: str
    write: Write
    reads_files: bool


_exports: dict[str, Export] = {}
EXPORTS: Mapping[str, Export] = MappingProxyType(_exports)
"""Every kind of export by its scheme; importing `asked_exports` fills it."""


def export(scheme: str, summary: str, *, reads_files: bool) -> Callable[[Write], Write]:
    """Register the decorated function as the writer of `SCHEME:FILE`."""

    def register(write: Write) -> Write:
        if scheme in _exports:
            raise DecisionError(f"the export {scheme!r} is registered already; choose another scheme.")
        _exports[scheme] = Export(scheme, summary, write, reads_files)
        return write

    return register
