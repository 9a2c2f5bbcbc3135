"""The one chunk store: numbered Parquet files of a job, each whole or absent and named by its content.

Predictions, statistics and scores are kept in it. A job that is killed at any moment resumes with what is there.
"""

import errno
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from secondlook.files import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_NAME = re.compile(r"part-(\d{6,})-([0-9a-f]{16})\.parquet")
"""Number and digest of a chunk."""

# Metadata of a chunk, which detects a file in the wrong place.
_JOB = "secondlook.job"
_NUMBER = "secondlook.chunk"


class Storage(Protocol):
    """Where chunks are kept: a `LocalStorage`, or a `Location` at a URL. A file is there as a whole or not at all."""

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
    """Chunks in a folder of a local or shared disk."""

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


def encode_chunk(job: str, number: int, table: "pa.Table", metadata: Mapping[Any, Any] | None = None) -> bytes:
    """Return the content of a chunk of a job, which any process may compute; equal tables give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    marked = table.replace_schema_metadata({**(metadata or {}), _JOB: job, _NUMBER: str(number)})
    stream = pa.BufferOutputStream()
    pq.write_table(marked, stream, compression="zstd")
    content: bytes = stream.getvalue().to_pybytes()
    return content


class BrokenChunkError(ValueError):
    """A chunk that is missing, or not what was written in its place; the message is the reason."""


class ChunkStore:
    """The chunks of one job in a storage: at most one file per number, whose name tells whether its content is right.

    The storage is listed once. Other processes must not write chunks meanwhile.

    Parameters
    ----------
    storage
        The folder, or the location at a URL.
    job
        Identity of the job; every chunk contains it.
    """

    def __init__(self, storage: Storage, job: str) -> None:
        self._storage = storage
        self._job = job
        self._names: dict[int, str] = {}
        for name in storage.list_names():
            match = CHUNK_NAME.fullmatch(name)
            if match is None:
                continue
            if int(match[1]) in self._names:  # written by different versions of a library
                storage.delete(name)
            else:
                self._names[int(match[1])] = name

    @property
    def numbers(self) -> list[int]:
        """Numbers of the chunks that are there, ascending."""
        return sorted(self._names)

    def __contains__(self, number: object) -> bool:
        return number in self._names

    def locate(self, number: int) -> str:
        """Return the path or the URL of a chunk."""
        return self._storage.locate(self._names.get(number, f"part-{number:06d}"))

    def write(self, number: int, content: bytes) -> None:
        """Write a chunk that `encode_chunk` returned, in one step; another one of the same number is replaced."""
        name = f"part-{number:06d}-{_digest(content)}.parquet"
        self._storage.write_bytes(name, content)
        before = self._names.get(number)
        self._names[number] = name
        if before not in (None, name):
            self._storage.delete(str(before))

    def read(self, number: int) -> "pa.Table":
        """Read and verify a chunk, with the metadata it was written with; raises `BrokenChunkError` with the reason."""
        if number not in self._names:
            raise BrokenChunkError("it is missing")
        name = self._names[number]
        try:
            content = self._storage.read_bytes(name)
        except FileNotFoundError:
            raise BrokenChunkError("it is missing") from None
        if f"-{_digest(content)}." not in name:
            raise BrokenChunkError("wrong checksum")
        return self.decode(number, content)

    def decode(self, number: int, content: bytes) -> "pa.Table":
        """Return the table of a chunk's content, which must belong to this job and number."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # A thread of Arrow could release the content while Python shuts down, which aborts the process.
            table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
            metadata = dict(table.schema.metadata)
            job, place = (metadata.pop(name.encode()).decode() for name in (_JOB, _NUMBER))
        except (pa.ArrowException, OSError, KeyError, TypeError) as error:
            raise BrokenChunkError(str(error)) from None
        if (job, place) != (self._job, str(number)):
            raise BrokenChunkError(f"it belongs to job {job[:12]}, chunk {place}")
        return table.replace_schema_metadata(metadata)

    def delete(self, number: int) -> None:
        """Remove a chunk."""
        self._storage.delete(self._names.pop(number))

    def describe_read_error(self, number: int, error: OSError) -> str:
        """Return what happened to a chunk that could not be read, though it may be intact."""
        return f"cannot read {self.locate(number)!r}: {os.strerror(error.errno or 0)}; it may be intact, so try again."


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
