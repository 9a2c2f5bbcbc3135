"""Chunks of a scoring job: Parquet parts, kept until they are one score file, or for good in a folder of scores."""

import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import ValidationError

from secondlook.arrays import Output
from secondlook.decisions.formats import translate_write_errors
from secondlook.decisions.rows import AUDIT, REASON
from secondlook.errors import DecisionError
from secondlook.files import (
    TEMPORARY_SUFFIX,
    FrozenRecord,
    exclusive_lock,
    is_same_file,
    remove_temporary_files,
)
from secondlook.parts import NAME, DamagedPartError, LocalStorage, Parts, PartStorage
from secondlook.predictions import (
    Chunk,
    Chunking,
    ChunkKey,
    DamagedChunkWarning,
    read_partial_chunk,
    write_chunk,
)

if TYPE_CHECKING:
    import pyarrow as pa

# Readers of a folder of Parquet files ignore names that begin with an underscore.
RECORD = "_job.json"
LOCK = "_lock"
REJECTED_MARK = "_handed-over.txt"
"""File with the path of the folder for rejected images, written before the first one is put there."""
PARTIAL = "_partial-"
PARTIAL_NAME = re.compile(rf"{PARTIAL}\d{{6,}}-[^/]+\.parquet")

_REPAIR = "remove it to start again, or choose another output"

# Metadata of a chunk, which detects a file in the wrong place.
_JOB = "secondlook.job"
_NUMBER = "secondlook.chunk"


class JobRecord(FrozenRecord):
    """Identity of a scoring job: its chunks must not be mixed with those of another job."""

    format: Literal["secondlook scoring"] = "secondlook scoring"
    version: Literal[1] = 1
    policy: str
    classifier: str
    output: Output
    preprocessing: dict[str, object]
    data: str
    images: int
    rows: int
    level: float
    seed: int
    per_view: bool
    class_names: tuple[str, ...] | None
    audit: float | None = None

    def encode(self) -> bytes:
        """Return the content of its file."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    @property
    def digest(self) -> str:
        """Hex sha256 of the record."""
        return hashlib.sha256(self.encode()).hexdigest()


class ChunkSink(Protocol):
    """Receives the rows of chunks, and the outputs of incomplete ones."""

    def has(self, number: int) -> bool:
        """Whether a chunk is finished."""

    def write(self, number: int, rows: "pa.Table") -> None:
        """Take the rows of all images of a chunk."""

    def read_partial(self, part: str, number: int) -> Chunk | None:
        """Return the outputs saved for a part of an incomplete chunk; None if there are none."""

    def write_partial(self, part: str, number: int, chunk: Chunk) -> None:
        """Save the outputs for a part of an incomplete chunk."""


class Totals:
    """Counts over the finished chunks of a job."""

    def __init__(self) -> None:
        self.images = self.accepted = self.looks = self.audited = 0
        self._skipped: dict[int, list[tuple[str, str]]] = {}

    def add(self, number: int, rows: "pa.Table") -> None:
        """Count the rows of a chunk."""
        import pyarrow.compute as pc

        broken = rows.filter(pc.is_valid(rows[REASON]))
        self.images += len(rows) - len(broken)
        self.accepted += pc.sum(rows["accept"]).as_py() or 0
        self.looks += pc.sum(rows["looks"]).as_py() or 0
        if AUDIT in rows.column_names:
            self.audited += pc.sum(rows[AUDIT]).as_py() or 0
        if len(broken):
            self._skipped[number] = list(zip(broken["id"].to_pylist(), broken[REASON].to_pylist(), strict=True))

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Id and reason of each image that could not be read, in the order of the source."""
        return tuple(image for number in sorted(self._skipped) for image in self._skipped[number])


class ScoreChunks:
    """The finished chunks of a scoring job, in a folder or at a URL.

    Each chunk is a Parquet file that is complete or absent, named by a digest of its content, with the digest of the
    job and the number of the chunk in its metadata. It has one row for each of its images, in their order.
    """

    def __init__(
        self, storage: PartStorage, record: JobRecord, metadata: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self.record = record
        self.chunking = Chunking(record.images, record.rows)
        self.totals = Totals()
        self._storage = storage
        self._parts = Parts(storage)
        self.metadata = metadata
        """The policy, the data and the options of the job, for its files."""
        self._folder = folder
        """The folder of the chunks, where incomplete ones are saved too; None at a URL."""

    @classmethod
    @contextmanager
    def open(
        cls, place: Path | PartStorage, record: JobRecord, metadata: Mapping[str, str], *, overwrite: bool = False
    ) -> Iterator["ScoreChunks"]:
        """Lock the chunks in a folder, which may not exist, or at a URL: those of an interrupted job, or none yet.

        `overwrite` replaces those of another job.
        """
        folder = place if isinstance(place, Path) else None
        with ExitStack() as stack:
            with translate_write_errors("chunks of the scores", place):
                if folder is not None:
                    if folder.is_dir():  # before anything of it is touched: it may be any folder of the user
                        _check_is_job(LocalStorage(folder))
                    stack.enter_context(_lock_folder(folder))
                    remove_temporary_files(folder)
                storage = LocalStorage(place) if isinstance(place, Path) else place
                record = _resume_record(storage, record, overwrite=overwrite)
                chunks = cls(storage, record, metadata, folder)
                storage.write_bytes(RECORD, record.encode())
                chunks._count_finished()
            try:
                yield chunks
            except BaseException:
                # A job that failed before anything was saved leaves nothing behind.
                with suppress(OSError, DecisionError):
                    if not chunks._has_progress():
                        chunks._remove_files()
                raise

    def has(self, number: int) -> bool:
        """Whether a chunk is finished."""
        return number in self._parts

    @property
    def missing(self) -> list[int]:
        """Numbers of the chunks that are not finished."""
        return [number for number in self.chunking.numbers if not self.has(number)]

    @property
    def missing_images(self) -> int:
        """Number of images whose chunk is not finished."""
        return sum(len(self.chunking.indices_of(number)) for number in self.missing)

    def _has_progress(self) -> bool:
        names = self._storage.list_names()
        return bool(self._parts.numbers) or any(name == REJECTED_MARK or name.startswith(PARTIAL) for name in names)

    def write(self, number: int, rows: "pa.Table") -> None:
        """Write a chunk, atomically, and remove what was saved of it before."""
        self._write(number, encode_chunk(self.record, number, rows, self.metadata), rows)

    def write_encoded(self, number: int, content: bytes) -> None:
        """Write a chunk that `encode_chunk` returned in another process."""
        self._write(number, content, self._decode(number, content))

    def _write(self, number: int, content: bytes, rows: "pa.Table") -> None:
        with translate_write_errors("a chunk of the scores", self._storage.locate(f"part-{number:06d}")):
            self._parts.write(number, content)
            if self._folder is not None:
                for saved in self._folder.glob(f"{PARTIAL}{number:06d}-*"):
                    saved.unlink()
        self.totals.add(number, rows)

    def partial_path(self, folder: Path, part: str, number: int) -> Path:
        """Return the file of the outputs saved for a part of an incomplete chunk: one view, or all looks so far."""
        return folder / f"{PARTIAL}{number:06d}-{part}.parquet"

    def read_partial(self, part: str, number: int) -> Chunk | None:
        """Return the outputs saved for a part of an incomplete chunk; None if there are none."""
        if self._folder is None:
            return None
        path = self.partial_path(self._folder, part, number)
        return read_partial_chunk(path, self._partial_key(part, number), self.record.output)

    def write_partial(self, part: str, number: int, chunk: Chunk) -> None:
        """Save the outputs for a part of an incomplete chunk, unless chunks are at a URL."""
        if self._folder is None:
            return
        path = self.partial_path(self._folder, part, number)
        with translate_write_errors("the progress of the scores", path):
            write_chunk(path, self._partial_key(part, number), self.record.output, chunk)

    def _partial_key(self, part: str, number: int) -> ChunkKey:
        return ChunkKey(self.record.digest, part, number)

    def read(self, columns: list[str] | None = None) -> Iterator["pa.Table"]:
        """Read the rows of all chunks in order, one chunk at a time, or only some of their columns."""
        for number in self.chunking.numbers:
            try:
                rows = self._read(number)
            except ValueError as error:
                raise DecisionError(
                    f"chunk {self._locate(number)!r} of the scores is damaged ({error}); run again to recompute it."
                ) from None
            yield rows if columns is None else rows.select(columns)

    def _count_finished(self) -> None:
        """Count the chunks that are finished; those that this job did not write in their place are removed."""
        for number in self._parts.numbers:
            try:
                if number not in self.chunking.numbers:
                    raise ValueError(f"the job has only {len(self.chunking.numbers)} chunks")
                self.totals.add(number, self._read(number))
            except ValueError as error:
                warnings.warn(
                    f"recomputing chunk {self._locate(number)!r} of the scores, which is damaged: {error}.",
                    DamagedChunkWarning,
                    stacklevel=2,
                )
                self._parts.delete(number)

    def _locate(self, number: int) -> str:
        return self._parts.locate(number) if self.has(number) else self._storage.locate(f"part-{number:06d}")

    def _read(self, number: int) -> "pa.Table":
        """Read and verify a chunk; raises ValueError with the reason if it is not what was written in this place."""
        if not self.has(number):
            raise ValueError("it is missing")
        try:
            return self._decode(number, self._parts.read(number))
        except FileNotFoundError:
            raise ValueError("it is missing") from None
        except DamagedPartError as error:
            raise ValueError(str(error)) from None
        except OSError as error:
            raise DecisionError(
                f"cannot read chunk {self._locate(number)!r} of the scores: {os.strerror(error.errno or 0)}; the file "
                "may be intact, so run again to resume: progress is saved."
            ) from None

    def _decode(self, number: int, content: bytes) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # A thread of Arrow could release the content while Python shuts down, which aborts the process.
            table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
            job, place = (table.schema.metadata[name.encode()].decode() for name in (_JOB, _NUMBER))
        except (pa.ArrowException, OSError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from None
        if (job, place) != (self.record.digest, str(number)):
            raise ValueError(f"it belongs to job {job[:12]}, chunk {place}")
        if len(table) != len(self.chunking.indices_of(number)):
            raise ValueError("it does not contain the images it should")
        return table.replace_schema_metadata(None)

    def has_rejected_mark(self, rejected: Path) -> bool:
        """Whether this job put rejected images into that folder before it was interrupted."""
        if REJECTED_MARK not in self._storage.list_names():
            return False
        return self._storage.read_bytes(REJECTED_MARK) == _encode_path(rejected)

    def write_rejected_mark(self, rejected: Path) -> None:
        """Store the folder for rejected images, before the first one is put there."""
        self._storage.write_bytes(REJECTED_MARK, _encode_path(rejected))

    def finish(self) -> None:
        """Remove all but the chunks and the record of a finished job, in a folder of scores."""
        self._storage.delete(REJECTED_MARK)
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / LOCK).unlink()

    def remove(self) -> None:
        """Remove the folder of a finished job; a failure is a warning, since all results are written."""
        try:
            self._remove_files()
        except OSError as error:
            warnings.warn(
                f"the scores are complete, but their chunks in {str(self._folder)!r} cannot be removed: "
                f"{os.strerror(error.errno or 0)}; remove this folder.",
                stacklevel=2,
            )

    def _remove_files(self) -> None:
        _remove_job(self._storage)
        if self._folder is None:
            return
        # Windows does not remove a lock that is held, and another process may just be waiting for it.
        with suppress(OSError):
            (self._folder / LOCK).unlink()
            self._folder.rmdir()


def encode_chunk(record: JobRecord, number: int, rows: "pa.Table", metadata: Mapping[str, str]) -> bytes:
    """Return the content of the file of a chunk; equal rows give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.replace_schema_metadata({**metadata, _JOB: record.digest, _NUMBER: str(number)})
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, compression="zstd")
    content: bytes = stream.getvalue().to_pybytes()
    return content


def _encode_path(path: Path) -> bytes:
    return os.fsencode(path.absolute())


def _remove_job(storage: PartStorage) -> None:
    """Remove the files of a job, its record after the chunks: what a kill leaves then never belongs to another job.

    The mark is removed last: while anything is left, the folder of rejected images is known to be that of the job.
    """
    names = storage.list_names()
    chunks = [name for name in names if NAME.fullmatch(name) or PARTIAL_NAME.fullmatch(name)]
    for name in [*chunks, *(name for name in (RECORD, REJECTED_MARK) if name in names)]:
        storage.delete(name)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        while not _take_lock(folder, stack):
            stack.close()
        yield


def _take_lock(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder; False if the process that held the lock before has removed it together with the folder."""
    folder.mkdir(exist_ok=True)
    try:
        held = stack.enter_context(exclusive_lock(folder / LOCK))
    except FileNotFoundError:
        return False
    return is_same_file(held, folder / LOCK)


def _check_is_job(storage: PartStorage) -> None:
    """Raise an error for a place with files that are not those of a scoring job."""
    names = storage.list_names()
    # A job that is killed before it writes its record, or while it is removed, leaves these files only.
    allowed = (LOCK, REJECTED_MARK)
    if RECORD not in names and any(name not in allowed and not name.endswith(TEMPORARY_SUFFIX) for name in names):
        raise DecisionError(f"the folder {str(storage)!r} exists and is not a scoring job; {_REPAIR}.")


def _resume_record(storage: PartStorage, record: JobRecord, *, overwrite: bool) -> JobRecord:
    """Return the record of a job, with the size of its chunks if it was begun before, perhaps on another device.

    A place that holds another job is an error, unless it is to be replaced.
    """
    _check_is_job(storage)
    if RECORD not in storage.list_names():
        return record
    try:
        found = JobRecord.model_validate_json(storage.read_bytes(RECORD))
    except ValidationError:
        raise DecisionError(
            f"the folder {str(storage)!r} holds a scoring job that cannot be read; {_REPAIR}."
        ) from None
    stored = found.model_dump(mode="json")  # as in the file, where a tuple is a list
    given = record.model_dump(mode="json", exclude={"rows"})
    different = [name for name, value in given.items() if stored[name] != value]
    if not different:
        return found
    if not overwrite:
        raise DecisionError(
            f"the folder {str(storage)!r} holds a scoring job with different {', '.join(different)}; {_REPAIR}."
        )
    _remove_job(storage)
    return record
