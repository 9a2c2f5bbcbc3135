"""Files that survive a crash: written whole or not at all, locked between processes, validated when read."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

TEMPORARY_SUFFIX = ".tmp"


class FrozenRecord(BaseModel):
    """A record kept as JSON: no missing, unknown or non-finite fields, and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def describe_invalid(error: ValidationError) -> str:
    """Return the place and the message of the first fault; the others mostly follow from it."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole file"
    return f"{where}: {first['msg'].rstrip('.')}"


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temporary file, flush it to disk, then rename it to `path` in one step."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file of known content, whole or not at all."""
    write_atomically(path, lambda file: file.write(content))


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files that killed processes left; only safe while no other process writes in `folder`."""
    for left in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
        left.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there, and the system itself makes renames durable
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[BinaryIO]:
    """Hold the lock file `path` alone, waiting for other processes; yields the open file.

    The operating system releases the lock when the process dies.
    """
    with path.open("ab") as file:
        _lock(file, shared=False, wait=True)
        yield file


@contextmanager
def shared_lock(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` together with others; yields whether no other process held it at the start."""
    with path.open("ab") as file:
        was_alone = _lock(file, shared=False, wait=False)
        _lock(file, shared=True, wait=True)
        yield was_alone


if sys.platform == "win32":
    import msvcrt
    import time

    _RETRY_SECONDS = 0.05

    def _lock(file: BinaryIO, *, shared: bool, wait: bool) -> bool:
        """Lock the first byte. Windows has no shared locks: sharing is allowed, and nobody is known to be alone."""
        if shared or not wait:
            return False
        while True:
            file.seek(0)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(_RETRY_SECONDS)
            else:
                return True

else:
    import fcntl

    def _lock(file: BinaryIO, *, shared: bool, wait: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
