"""Finding the official files of a data set below the folder a user names."""

from collections.abc import Sequence
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.sources.folder import existing_folder


def folder_holding(root: Path, file: str, usual: Sequence[str], origin: str) -> Path:
    """Return the root, or the one of its usual sub-folders, that holds the file."""
    existing_folder(root, "this data set")
    for folder in (root, *(root / name for name in usual)):
        if (folder / file).is_file():
            return folder
    places = " or ".join(repr(str(root / name)) for name in ("", *usual))
    raise SourceError(f"there is no {file!r} in {places}; {origin}.")
