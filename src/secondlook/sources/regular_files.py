"""Open files from users: only regular files, with size limits."""

import errno
import io
import os
import platform
import stat
from collections.abc import Collection
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.file_systems import is_url
from secondlook.registry import did_you_mean
from secondlook.specs import Spec

MAX_TEXT_BYTES = 1_000_000_000
"""Maximum size of a table, of a file of class names and of a file of indices."""

MAX_LOADED_BYTES = 4 * 2**30
"""Maximum size of the contents of one file that are loaded into memory together."""

MAX_LOADED_ROWS = 20_000_000
"""Maximum number of rows of one file: each image, label and name takes a Python object."""


def open_regular_file(path: Path, max_bytes: int | None = None) -> io.BufferedReader:
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


def make_absolute(path: Path) -> Path:
    """Return the absolute path of a file, without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def read_text_file(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file of at most `MAX_TEXT_BYTES`."""
    with open_regular_file(path, MAX_TEXT_BYTES) as file:
        return file.read(MAX_TEXT_BYTES).decode(encoding)


def find_name(name: str, names: Collection[str], what: str, where: str, hint: str = "") -> str:
    """Check that `names` contains a column or an array (`what`); `hint` is added to the error."""
    if name not in names:
        listed = ", ".join(names) or "none"
        raise SourceError(f"no {what} {name!r} in {where!r}; its {what}s: {listed}{hint}.{did_you_mean(name, names)}")
    return name


def find_column(spec: Spec, option: str, columns: Collection[str]) -> str:
    """Return the column given by an option; by default, the column has the name of the option."""
    name = spec.options.get(option, option)
    return find_name(name, columns, "column", spec.location, f"; name the column with ?{option}=COLUMN")


def reject_url(path: str, where: str) -> None:
    """Raise for a URL in a list of paths."""
    if is_url(path):
        repair = "for remote images use folder:, parquet: or webdataset: with the URL of the folder"
        raise SourceError(f"{where} is the URL {path!r}, but lists and tables support local files only", repair=repair)


def missing_root_error(root: object) -> SourceError:
    """Return the error for a missing folder, bucket or file of images (not for a single missing image)."""
    repair = "restore or mount it on all machines, or move the images to storage that all machines can reach"
    return SourceError(f"{str(root)!r} does not exist on this machine ({platform.node()})", repair=repair)
