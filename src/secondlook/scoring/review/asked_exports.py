"""Exports as a user asks for them: `label-studio:tasks.json`, `fiftyone:labels.json`."""

from dataclasses import dataclass
from pathlib import Path

from secondlook.errors import DecisionError
from secondlook.registry import did_you_mean
from secondlook.scoring.review import fiftyone, label_studio  # noqa: F401 -- they register
from secondlook.scoring.review.exports import EXPORTS, Export
from secondlook.scoring.review.pictures import Pictures
from secondlook.scoring.review.review_queue import ReviewQueue
from secondlook.scoring.score_files import check_place, written


@dataclass(frozen=True)
class AskedExport:
    """A kind of export, and the file it goes to."""

    kind: Export
    path: Path

    def __str__(self) -> str:
        return f"{self.kind.scheme}:{self.path}"

    @classmethod
    def parse(cls, text: str) -> "AskedExport":
        """Read `SCHEME:FILE`, and see that the file can be put there."""
        scheme, colon, file = text.partition(":")
        if not colon or not file or scheme not in EXPORTS:
            forms = ", ".join(f"{known}:FILE" for known in EXPORTS)
            raise DecisionError(f"{text!r} is no export; known forms: {forms}.{did_you_mean(scheme, EXPORTS)}")
        check_place(Path(file), f"the export {scheme!r}")
        return cls(EXPORTS[scheme], Path(file))

    def check_pictures(self, pictures: Pictures, *, everything: bool) -> None:
        """Refuse before the scoring what could not be written after it."""
        if self.kind.reads_files or pictures.prefix is None:
            pictures.check_files(str(self), everything=everything)

    def write(self, queue: ReviewQueue, pictures: Pictures) -> None:
        """Write the file."""
        with written(f"the export {self.kind.scheme!r}", self.path):
            self.kind.write(self.path, queue, pictures)
