"""The chunk store: numbered Parquet files of a job, written atomically and named by their content.

It holds predictions, statistics and scores. A killed job resumes from its chunks.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secondlook.file_systems import Location
from secondlook.files import open_regular_file, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CHUNK_NAME = re.compile(r"part-(\d{6,})-([0-9a-f]{16})\.parquet")
"""Number and digest of a chunk."""

# Metadata of a chunk, to detect a file in the wrong place.
_JOB = "secondlook.job"
_NUMBER = "secondlook.chunk"


class LocalStorage:
    """Chunks in a folder of a local or shared disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def list_names(self) -> list[str]:
        """Return the names of all files; empty if the folder does not exist."""
        return sorted(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else []

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file; a pipe is an error, because reading it could block."""
        with open_regular_file(self._folder / name) as file:
            return file.read()

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, atomically."""
        write_atomically(self._folder / name, lambda file: file.write(content))

    def delete(self, name: str) -> None:
        """Remove a file."""
        (self._folder / name).unlink(missing_ok=True)

    def locate(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._folder / name)


Storage = LocalStorage | Location
"""Storage of chunks: a folder, or a location at a URL. Writes are atomic."""


class BrokenChunkError(ValueError):
    """A chunk is missing or damaged; the message is the reason."""


class ChunkStore:
    """The chunks of one job in a storage: at most one file per number, named by the digest of its content.

    Every chunk contains `job`, the identity of the job. Equal chunks have equal names. With `is_shared`, other
    processes may write chunks at the same time; of two different chunks, all processes use the same one. Otherwise the
    second one is removed.
    """

    def __init__(self, storage: Storage, job: str, *, is_shared: bool = False) -> None:
        self._storage = storage
        self._job = job
        self._is_shared = is_shared
        self._verified: set[str] = set()
        self._names: dict[int, str] = {}
        self._list()

    def _list(self) -> None:
        names: dict[int, str] = {}
        for name in self._storage.list_names():
            match = CHUNK_NAME.fullmatch(name)
            if match is None:
                continue
            if names.setdefault(int(match[1]), name) != name and not self._is_shared:
                self._storage.delete(name)  # written with different library versions
        self._names = names

    @property
    def numbers(self) -> list[int]:
        """Numbers of the existing chunks, ascending."""
        return sorted(self._names)

    def __contains__(self, number: object) -> bool:
        if number not in self._names and self._is_shared:
            self._list()
        return number in self._names

    def locate(self, number: int) -> str:
        """Return the path or the URL of a chunk."""
        return self._storage.locate(self._names.get(number, f"part-{number:06d}"))

    @staticmethod
    def encode(
        job: str, number: int, table: "pa.Table", metadata: Mapping[Any, Any] | None = None, **options: Any
    ) -> bytes:
        """Return the content of a chunk of a job, in any process; equal tables give equal bytes.

        `options` are those of `pyarrow.parquet.write_table`.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        marked = table.replace_schema_metadata({**(metadata or {}), _JOB: job, _NUMBER: str(number)})
        stream = pa.BufferOutputStream()
        pq.write_table(marked, stream, **{"compression": "zstd", **options})
        content: bytes = stream.getvalue().to_pybytes()
        return content

    def write(self, number: int, content: bytes) -> None:
        """Write the output of `encode` atomically; a different chunk of the same number is replaced."""
        name = f"part-{number:06d}-{_digest(content)}.parquet"
        self._storage.write_bytes(name, content)
        before = self._names.get(number, name)
        self._names[number] = min(name, before) if self._is_shared else name
        if before != name and not self._is_shared:
            self._storage.delete(before)

    def read(self, number: int) -> "pa.Table":
        """Read and verify a chunk and its metadata; raises `BrokenChunkError` with the reason."""
        name = self._find(number)
        try:
            content = self._storage.read_bytes(name)
        except FileNotFoundError:
            raise BrokenChunkError("it is missing") from None
        _verify(name, content)
        return self.decode(number, content)

    def decode(self, number: int, content: bytes) -> "pa.Table":
        """Return the table of a chunk's content, and check that it belongs to this job and number."""
        import pyarrow as pa

        try:
            # An Arrow thread that releases the content during Python's shutdown aborts the process.
            table = self._open_parquet(number, pa.BufferReader(content)).read(use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise BrokenChunkError(str(error)) from None
        metadata = {key: value for key, value in table.schema.metadata.items() if key.decode() not in (_JOB, _NUMBER)}
        return table.replace_schema_metadata(metadata)

    def open(self, number: int) -> "pq.ParquetFile":
        """Open a chunk in a local folder, memory-mapped, to read some of its row groups.

        The first call verifies the file. Raises `BrokenChunkError` with the reason.
        """
        import pyarrow as pa

        name = self._find(number)
        path = Path(self._storage.locate(name))
        if not path.is_file():
            raise BrokenChunkError("it is not a file" if path.exists() else "it is missing")
        mapped = pa.memory_map(str(path))
        if name not in self._verified:
            _verify(name, mapped.read_buffer())
            self._verified.add(name)
        return self._open_parquet(number, mapped)

    def delete(self, number: int) -> None:
        """Remove a chunk."""
        name = self._names.pop(number)
        self._verified.discard(name)
        self._storage.delete(name)

    def describe_read_error(self, number: int, error: OSError) -> str:
        """Return the message for a chunk that cannot be read but may be intact."""
        return f"cannot read {self.locate(number)!r}: {os.strerror(error.errno or 0)}; it may be intact, so try again."

    def _find(self, number: int) -> str:
        if number not in self:
            raise BrokenChunkError("it is missing")
        return self._names[number]

    def _open_parquet(self, number: int, content: Any) -> "pq.ParquetFile":
        """Open the content of a chunk, and check that it belongs to this job and number."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(content)
            metadata = file.schema_arrow.metadata
            job, place = (metadata[name.encode()].decode() for name in (_JOB, _NUMBER))
        except (pa.ArrowException, OSError, KeyError, TypeError) as error:
            raise BrokenChunkError(str(error)) from None
        if (job, place) != (self._job, str(number)):
            raise BrokenChunkError(f"it belongs to job {job[:33]}, chunk {place}")
        return file


def _digest(content: "bytes | pa.Buffer") -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _verify(name: str, content: "bytes | pa.Buffer") -> None:
    if f"-{_digest(content)}." not in name:
        raise BrokenChunkError("wrong checksum")
