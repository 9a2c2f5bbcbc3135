"""Crash-safe files: written atomically, locked between processes, and validated when read."""

import errno
import hashlib
import io
import json
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, model_validator
from pydantic_core import from_json, to_jsonable_python

MAX_RECORD_BYTES = 2**28
"""Maximum size of a record, of a settings file and of a list of views."""

LOCK = "_lock"
"""Name of the lock of a folder."""
TEMPORARY_SUFFIX = ".secondlook.tmp"
"""Suffix of temporary files, which no other program uses: files with it may be removed."""
_NAME_LENGTH = 50
"""Characters of a name that its temporary file begins with: names have at most 255 bytes, up to 4 per character."""
_UNIQUE = "[0-9a-f]" * 32
"""Pattern of the unique part of a temporary name."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A count in a record; larger ones do not fit into arrays and tables."""
PositiveCount = Annotated[Count, Field(gt=0)]


class FrozenRecord(BaseModel):
    """An immutable record stored as JSON, without missing, unknown or non-finite fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SealedRecord(FrozenRecord):
    """A record with a checksum: a changed file is an error; a file without a checksum is accepted."""

    # mypy does not support decorators above a property.
    @computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def checksum(self) -> str:
        """Hex sha256 of all other fields."""
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
    """Return the hex sha256 of JSON content, independent of key order, spaces and number notation."""
    canonical = json.dumps(to_jsonable_python(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def describe_invalid(error: ValidationError) -> str:
    """Return the place and the message of the first fault, which usually causes the others."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole file"
    return f"{where}: {first['msg'].rstrip('.')}"


def open_regular_file(path: str | Path, max_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file of at most `max_bytes`, or raise `OSError`: reading a pipe or a device may never end."""
    try:
        # Without this flag, opening a pipe waits until another process writes to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as reason:  # a null byte, or text that is not valid in a file name
        raise OSError(errno.EINVAL, str(reason), str(path)) from reason
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and (max_bytes is None or status.st_size <= max_bytes):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    raise OSError(errno.EFBIG, f"{status.st_size} bytes, above the limit of {max_bytes}", str(path))


def read_regular_file(path: str | Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a regular file of at most `max_bytes`, or raise `OSError`."""
    with open_regular_file(path, max_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # the file may be growing


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, clean: bool = False) -> None:
    """Let `write` fill a temporary file, flush it to disk, then rename it to `path` atomically, keeping its mode.

    `clean` first removes temporary files of killed processes for the same path. It lists the folder, so omit it in
    large folders, and clean these with `remove_temporary_files`.
    """
    if not path.name:  # '.' or '/'
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if clean:  # only files of dead writers: other processes may be writing the same path
        remove_temporary_files(path.parent, escape(path.name[:_NAME_LENGTH]))
    file, temporary = _create_temporary_file(path)
    try:
        with file:
            with suppress(OSError):  # a new file, or a file system without modes
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if os.name != "nt":  # rename while locked; Windows cannot rename an open file
                temporary.replace(path)
        if os.name == "nt":
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically, and remove temporary files of killed processes."""
    write_atomically(path, lambda file: file.write(content), clean=True)


def _create_temporary_file(path: Path) -> tuple[BinaryIO, Path]:
    """Create a file next to `path`, marked as in use until it is closed."""
    while True:
        temporary = path.with_name(f".{path.name[:_NAME_LENGTH]}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        file = temporary.open("xb")
        _mark_alive(file)
        if is_same_file(file, temporary):
            return file, temporary
        file.close()  # another process removed it as abandoned before it was marked


def is_same_file(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove_temporary_files(folder: Path, *names: str) -> None:
    """Remove the temporary files of killed writers directly in `folder`, for files whose names match a pattern."""
    for name in names:
        for left in folder.glob(f".{name}.{_UNIQUE}{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                _remove_if_abandoned(left)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders, and makes renames durable itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[BinaryIO]:
    """Wait for an exclusive lock on the file `path`, and hold it until the end of the block; yields the file."""
    with _open_without_waiting(path, "ab") as file:
        _lock(file, shared=False, wait=True)
        yield file


@contextmanager
def shared_lock(path: Path) -> Iterator[bool]:
    """Hold a shared lock on the file `path`; yields whether no other process held it at the start."""
    with _open_without_waiting(path, "ab") as file:
        was_alone = _lock(file, shared=False, wait=False)
        _lock(file, shared=True, wait=True)
        yield was_alone


@contextmanager
def lock_folder(folder: Path, *, is_temporary: bool = False) -> Iterator[None]:
    """Wait for the exclusive lock of a folder, which is created if missing, and hold it until the end of the block.

    Nothing of the lock is left. A created folder, or one that `is_temporary`, is removed if it ends up empty.
    """
    path, is_temporary = folder / LOCK, is_temporary or not folder.exists()
    with ExitStack() as stack:
        while not _take_lock(path, stack):
            stack.close()
        try:
            yield
        finally:
            # Windows cannot remove a held lock, and another process may be waiting for it.
            with suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()
                if is_temporary:
                    folder.rmdir()


def _take_lock(path: Path, stack: ExitStack) -> bool:
    """Lock a folder; return False if the previous holder removed the lock or the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = stack.enter_context(exclusive_lock(path))
    except FileNotFoundError:
        return False
    return is_same_file(held, path)


def _open_without_waiting(path: Path, mode: str) -> BinaryIO:
    """Open a file; a pipe is an error, instead of a wait for its other end, and so is a link."""
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    return cast(BinaryIO, open(path, mode, opener=lambda name, others: os.open(name, others | flags, 0o666)))


if sys.platform == "win32":
    import msvcrt
    import time

    _RETRY_SECONDS = 0.05
    _ABANDONED_SECONDS = 3600

    def _lock(file: BinaryIO, *, shared: bool, wait: bool) -> bool:
        """Lock the first byte. Windows has no shared locks: shared requests succeed, but never as the only holder."""
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
        """Do nothing: Windows does not remove an open file, and the file is renamed as soon as it is closed."""

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
        # On a file system without locks, no process can lock the file, so none considers it abandoned.
        with suppress(OSError):
            _lock(file, shared=False, wait=True)

    def _remove_if_abandoned(path: Path) -> None:
        with _open_without_waiting(path, "r+b") as file:
            if _lock(file, shared=False, wait=False):
                path.unlink()  # before releasing the lock: the writer may be about to acquire it
