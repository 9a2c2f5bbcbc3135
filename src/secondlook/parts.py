"""Numbered parts of a result: Parquet files named by their content, in a folder or at a URL."""

import errno
import hashlib
import re
from pathlib import Path
from typing import Protocol

from secondlook.files import write_atomically

NAME = re.compile(r"part-(\d{6,})-([0-9a-f]{16})\.parquet")
"""Number and digest of a part."""


class PartStorage(Protocol):
    """Where parts are kept: `LocalStorage`, or a `Location` at a URL. A file is there as a whole or not at all."""

    def list_names(self) -> list[str]:
        """Return the names of all files."""

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file."""

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, in one step."""

    def delete(self, name: str) -> None:
        """Remove a file; it may be gone already."""

    def locate(self, name: str) -> str:
        """Return the path or the URL of a file, for messages."""


class LocalStorage:
    """Parts in a folder of a local or shared disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def list_names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(path.name for path in self._folder.iterdir())

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file; a pipe in its place is an error, not a wait for the other end."""
        path = self._folder / name
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return path.read_bytes()

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, atomically."""
        write_atomically(self._folder / name, lambda file: file.write(content))

    def delete(self, name: str) -> None:
        """Remove a file."""
        (self._folder / name).unlink(missing_ok=True)

    def locate(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._folder / name)


class DamagedPartError(Exception):
    """A part whose content is not what was written."""


class Parts:
    """The parts in a storage: at most one file per number, whose name tells whether its content is what was written.

    The storage is listed once. Other processes must not write parts meanwhile.
    """

    def __init__(self, storage: PartStorage) -> None:
        self._storage = storage
        self._names: dict[int, str] = {}
        for name in storage.list_names():
            match = NAME.fullmatch(name)
            if match is None:
                continue
            if int(match[1]) in self._names:  # written by different versions of a library
                storage.delete(name)
            else:
                self._names[int(match[1])] = name

    @property
    def numbers(self) -> list[int]:
        """Numbers of the parts that are there, ascending."""
        return sorted(self._names)

    def __contains__(self, number: object) -> bool:
        return number in self._names

    def locate(self, number: int) -> str:
        """Return the path or the URL of a part that is there."""
        return self._storage.locate(self._names[number])

    def write(self, number: int, content: bytes) -> None:
        """Write a part in one step; another one of the same number is replaced."""
        name = f"part-{number:06d}-{_digest(content)}.parquet"
        self._storage.write_bytes(name, content)
        before = self._names.get(number)
        self._names[number] = name
        if before not in (None, name):
            self._storage.delete(str(before))

    def read(self, number: int) -> bytes:
        """Return the content of a part, or raise `DamagedPartError`."""
        name = self._names[number]
        content = self._storage.read_bytes(name)
        if f"-{_digest(content)}." not in name:
            raise DamagedPartError("wrong checksum")
        return content

    def delete(self, number: int) -> None:
        """Remove a part."""
        self._storage.delete(self._names.pop(number))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
