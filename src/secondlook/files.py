"""Files that survive a crash: written whole or not at all, locked between processes, validated when read."""

import errno
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, model_validator
from pydantic_core import from_json, to_jsonable_python

TEMPORARY_SUFFIX = ".tmp"
_NAME_LENGTH = 50
"""Characters of a name that its temporary file begins with: file systems allow 255 bytes, and some need four each."""
_UNIQUE = "[0-9a-f]" * 32
"""Pattern of the part of a temporary name that no other file has."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things in a record; more do not fit into arrays and tables."""
PositiveCount = Annotated[Count, Field(gt=0)]


class FrozenRecord(BaseModel):
    """A record kept as JSON: no missing, unknown or non-finite fields, and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SealedRecord(FrozenRecord):
    """A record with a checksum: a file that was changed is an error, one that was written without it can be read."""

    # mypy does not support decorators above a property.
    @computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def checksum(self) -> str:
        """Hex sha256 of everything else."""
        return compute_checksum(from_json(self.model_dump_json(exclude={"checksum"}, by_alias=True)))

    @model_validator(mode="before")
    @classmethod
    def _verify_checksum(cls, content: object) -> object:
        if not isinstance(content, dict) or "checksum" not in content:
            return content
        others = {key: value for key, value in content.items() if key != "checksum"}
        if content["checksum"] != compute_checksum(others):
            raise ValueError("the file was changed after it was written (wrong checksum)")
        return others


def compute_checksum(content: Mapping[str, object]) -> str:
    """Return the hex sha256 of JSON content; the order of keys, spaces and the notation of numbers do not matter."""
    canonical = json.dumps(to_jsonable_python(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def describe_invalid(error: ValidationError) -> str:
    """Return the place and the message of the first fault; the others mostly follow from it."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole file"
    return f"{where}: {first['msg'].rstrip('.')}"


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, clean: bool = False) -> None:
    """Let `write` fill a temporary file, flush it to disk, then rename it to `path` in one step.

    `clean` first removes the temporary files that killed processes left for the same path. It lists the folder, so
    files in large folders are written without it, and the folder is cleaned as a whole (`remove_temporary_files`).
    """
    if not path.name:  # '.' or '/'
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if clean:  # of writers that are dead: other processes may be writing the same path
        for left in path.parent.glob(f".{escape(path.name[:_NAME_LENGTH])}.{_UNIQUE}{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                _remove_if_abandoned(left)
    file, temporary = _create_temporary_file(path)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if os.name != "nt":  # renamed while it is locked; an open file cannot be renamed on Windows
                temporary.replace(path)
        if os.name == "nt":
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file of known content, whole or not at all, and clean up after killed processes."""
    write_atomically(path, lambda file: file.write(content), clean=True)


def _create_temporary_file(path: Path) -> tuple[BinaryIO, Path]:
    """Create a file next to `path` that other processes take for alive until it is closed."""
    while True:
        temporary = path.with_name(f".{path.name[:_NAME_LENGTH]}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        file = temporary.open("xb")
        _mark_alive(file)
        if is_same_file(file, temporary):
            return file, temporary
        file.close()  # another process took it for abandoned before it was marked


def is_same_file(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one at a path now, and not one that was removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove_temporary_files(folder: Path) -> None:
    """Remove what killed writers left directly in `folder`; only safe while no other process writes in it."""
    for left in folder.glob(f".*.{_UNIQUE}{TEMPORARY_SUFFIX}"):
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
    """Wait for the lock file `path`, and hold it alone until the block or the process ends; yields the open file."""
    with _open_without_waiting(path, "ab") as file:
        _lock(file, shared=False, wait=True)
        yield file


@contextmanager
def shared_lock(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` together with others; yields whether no other process held it at the start."""
    with _open_without_waiting(path, "ab") as file:
        was_alone = _lock(file, shared=False, wait=False)
        _lock(file, shared=True, wait=True)
        yield was_alone


def _open_without_waiting(path: Path, mode: str) -> BinaryIO:
    """Open a file; a pipe in its place is an error, not a wait for the other end."""
    flags = getattr(os, "O_NONBLOCK", 0)
    return cast(BinaryIO, open(path, mode, opener=lambda name, others: os.open(name, others | flags, 0o666)))


if sys.platform == "win32":
    import msvcrt
    import time

    _RETRY_SECONDS = 0.05
    _ABANDONED_SECONDS = 3600

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

    def _mark_alive(_file: BinaryIO) -> None:
        """Do nothing: Windows does not remove a file that is open, and it is renamed as soon as it is closed."""

    def _remove_if_abandoned(path: Path) -> None:
        if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
            path.unlink()

else:
    import fcntl

    def _lock(file: BinaryIO, *, shared: bool, wait: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def _mark_alive(file: BinaryIO) -> None:
        # On a file system without locks nobody can lock the file, and nobody takes it for abandoned.
        with suppress(OSError):
            _lock(file, shared=False, wait=True)

    def _remove_if_abandoned(path: Path) -> None:
        with _open_without_waiting(path, "r+b") as file:
            if _lock(file, shared=False, wait=False):
                path.unlink()  # before the lock is released: its writer may just be about to take it
