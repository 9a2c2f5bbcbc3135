"""Files that are there whole or not at all, however the process that writes them ends."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"


def write_whole_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file aside, force it to the disk, then give it its name in one step."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with aside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    _force_names_to_disk(path.parent)


def _force_names_to_disk(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there, and renaming is forced by the system
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished_files(folder: Path) -> None:
    """Remove what killed processes left aside; only safe while nobody else writes in `folder`."""
    for left in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
        left.unlink(missing_ok=True)
