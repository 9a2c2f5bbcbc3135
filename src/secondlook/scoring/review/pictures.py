"""Where a tool for people finds the picture of an image: as a file, or under an address."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from secondlook.errors import DecisionError
from secondlook.scoring.review.originals import has_files, original_file
from secondlook.scoring.review.rejected_folder import RejectedFolder
from secondlook.scoring.review.review_queue import Doubtful
from secondlook.sources import Source

LOCAL_FILES = "/data/local-files/?d="
"""How a Label Studio server on the same machine is asked for a file below its document root, `/` unless set."""


@dataclass(frozen=True)
class Pictures:
    """The files of the source, or the PNG files in the folder of rejected images; addresses by a prefix if given."""

    source: Source
    rejected: RejectedFolder | None = None
    prefix: str | None = None

    def check_files(self, asked: str, *, everything: bool) -> None:
        """Refuse an export of images that are nowhere to be found as files."""
        if has_files(self.source) or (self.rejected is not None and not everything):
            return
        repair = "give --rejected DIR, where they become PNG files"
        if self.rejected is not None:
            repair = "leave --export-all out, since only rejected ones become files"
        raise DecisionError(
            f"the export {asked!r} needs images that are files, and those of {self.source.spec!r} are not; {repair}."
        )

    def path_of(self, image: Doubtful) -> Path:
        """Return the absolute path of the picture."""
        original = original_file(self.source, image.position)
        if original is not None:
            return original
        assert self.rejected is not None, "checked before the scoring began"
        return self.rejected.path_of(image).absolute()

    def address_of(self, image: Doubtful) -> str:
        """Return the address under which a browser finds the picture."""
        if self.prefix is not None:
            return self.prefix + quote(image.id)
        return LOCAL_FILES + quote(self.path_of(image).as_posix().lstrip("/"))
