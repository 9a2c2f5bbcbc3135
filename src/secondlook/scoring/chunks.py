"""Chunks of a scoring job, kept in a folder until the job is finished."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import ValidationError

from secondlook.arrays import Output
from secondlook.errors import DecisionError
from secondlook.files import (
    TEMPORARY_SUFFIX,
    FrozenRecord,
    exclusive_lock,
    is_same_file,
    remove_temporary_files,
    write_atomically,
    write_bytes_atomically,
)
from secondlook.predictions import (
    Chunk,
    Chunking,
    ChunkKey,
    DamagedChunkWarning,
    read_partial_chunk,
    write_chunk,
)
from secondlook.scoring.formats import translate_write_errors
from secondlook.scoring.rows import INDEX

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = "job.json"
LOCK = "lock"
REJECTED_MARK = "handed-over.txt"
"""File with the path of the folder for rejected images, written before the first one is put there."""

# Metadata of a chunk. Its job and number detect a file in the wrong place.
_JOB = b"secondlook.job"
_NUMBER = b"secondlook.chunk"
_ROWS = b"secondlook.rows"
_SKIPPED = b"secondlook.skipped"


class JobRecord(FrozenRecord):
    """Identity of a scoring job: its chunks must not be mixed with those of another job."""

    format: Literal["secondlook scoring"] = "secondlook scoring"
    version: Literal[2, 3, 4] = 4
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

    def encode(self) -> bytes:
        """Return the content of its file."""
        return self.model_dump_json(indent=2).encode() + b"\n"


class ScoredChunk(NamedTuple):
    """The rows of some images, and the index, id and reason of each skipped image."""

    rows: "pa.Table"
    skipped: list[tuple[int, str, str]]


class ScoreChunks:
    """The folder with the finished chunks of a scoring job.

    Each file is complete or absent: a SHA-256 checksum in hexadecimal, a line end, and a Parquet file with that
    checksum, whose metadata holds the digest of the job, the number of the chunk, its rows and its skipped images.
    """

    def __init__(self, folder: Path, record: JobRecord) -> None:
        self.folder = folder
        self._output: Output = record.output
        self.chunking = Chunking(record.images, record.rows)
        self._job = hashlib.sha256(record.encode()).hexdigest()

    @classmethod
    @contextmanager
    def open(cls, out: Path, record: JobRecord) -> Iterator["ScoreChunks"]:
        """Lock the chunks of the score file `out`: those of an interrupted job, or none yet."""
        folder = out.with_name(f"{out.name}.parts")
        with ExitStack() as stack:
            with translate_write_errors("chunks of the scores", folder):
                stack.enter_context(_lock_folder(folder))
                record = _resume_record(folder, record)
                chunks = cls(folder, record)
                remove_temporary_files(folder)
                write_bytes_atomically(folder / RECORD, record.encode())
                chunks._remove_damaged()
            try:
                yield chunks
            except BaseException:
                # A job that failed before anything was saved leaves nothing behind.
                with suppress(OSError):
                    if not chunks._has_progress():
                        chunks._remove_files()
                raise

    def path(self, number: int) -> Path:
        """Return the file of a chunk."""
        return self.folder / f"chunk-{number:06d}.bin"

    def has(self, number: int) -> bool:
        """Whether a chunk is finished."""
        return self.path(number).is_file()

    @property
    def missing_images(self) -> int:
        """Number of images whose chunk is not finished."""
        return sum(len(self.chunking.indices_of(number)) for number in self.chunking.numbers if not self.has(number))

    def _has_progress(self) -> bool:
        kept = (*self.folder.glob("chunk-*"), *self.folder.glob("partial-*"))
        return bool(kept) or (self.folder / REJECTED_MARK).exists()

    def write(self, number: int, chunk: ScoredChunk) -> None:
        """Write a chunk, atomically, and remove what was saved of it before."""
        path = self.path(number)
        content = self._encode(number, chunk)
        with translate_write_errors("a chunk of the scores", path):
            write_atomically(path, lambda file: file.write(content))
            for saved in self.folder.glob(f"partial-{number:06d}-*"):
                saved.unlink()

    def partial_path(self, part: str, number: int) -> Path:
        """Return the file of the outputs saved for a part of an incomplete chunk: one view, or all looks so far."""
        return self.folder / f"partial-{number:06d}-{part}.parquet"

    def read_partial(self, part: str, number: int) -> Chunk | None:
        """Return the outputs saved for a part of an incomplete chunk; None if there are none."""
        return read_partial_chunk(self.partial_path(part, number), ChunkKey(self._job, part, number), self._output)

    def write_partial(self, part: str, number: int, chunk: Chunk) -> None:
        """Save the outputs for a part of an incomplete chunk."""
        path = self.partial_path(part, number)
        with translate_write_errors("the progress of the scores", path):
            write_chunk(path, ChunkKey(self._job, part, number), self._output, chunk)

    def read(self, columns: list[str] | None = None) -> Iterator[ScoredChunk]:
        """Read all chunks in order, one at a time, or only some of their columns."""
        for number in self.chunking.numbers:
            try:
                chunk = self._read(number)
            except ValueError as error:
                raise DecisionError(
                    f"chunk {str(self.path(number))!r} of the scores is damaged ({error}); run again to recompute it."
                ) from None
            yield chunk if columns is None else chunk._replace(rows=chunk.rows.select(columns))

    def _remove_damaged(self) -> None:
        """Remove the chunks that are not what this job wrote in their place, with a warning."""
        for number in filter(self.has, self.chunking.numbers):
            try:
                self._read(number)
            except ValueError as error:
                path = self.path(number)
                warnings.warn(
                    f"recomputing chunk {str(path)!r} of the scores, which is damaged: {error}.",
                    DamagedChunkWarning,
                    stacklevel=2,
                )
                path.unlink()

    def _encode(self, number: int, chunk: ScoredChunk) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = chunk.rows.replace_schema_metadata(
            {_JOB: self._job, _NUMBER: str(number), _ROWS: str(len(chunk.rows)), _SKIPPED: json.dumps(chunk.skipped)}
        )
        stream = pa.BufferOutputStream()
        pq.write_table(table, stream)
        content: bytes = stream.getvalue().to_pybytes()
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    def _read(self, number: int) -> ScoredChunk:
        """Read and verify a chunk; raises ValueError with the reason if it is not what was written in this place."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path(number)
        try:
            checksum, _, content = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            raise ValueError("it is missing") from None
        except OSError as error:
            raise DecisionError(
                f"cannot read chunk {str(path)!r} of the scores: {os.strerror(error.errno or 0)}; the file may be "
                "intact, so run again to resume: progress is saved."
            ) from None
        if checksum != hashlib.sha256(content).hexdigest().encode():
            raise ValueError("wrong checksum")
        try:
            # A thread of Arrow could release the content while Python shuts down, which aborts the process.
            table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
            job, place, rows, skipped = (table.schema.metadata[name] for name in (_JOB, _NUMBER, _ROWS, _SKIPPED))
            chunk = ScoredChunk(table.replace_schema_metadata(None), [tuple(image) for image in json.loads(skipped)])
            indices = [*table[INDEX].to_pylist(), *(index for index, _, _ in chunk.skipped)]
        except (pa.ArrowException, OSError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from None
        if (job, place) != (self._job.encode(), str(number).encode()):
            raise ValueError(f"it belongs to job {job.decode()[:12]}, chunk {place.decode()}")
        if int(rows) != len(table) or sorted(indices) != list(self.chunking.indices_of(number)):
            raise ValueError("it does not contain the images it should")
        return chunk

    def has_rejected_mark(self, rejected: Path) -> bool:
        """Whether this job put rejected images into that folder before it was interrupted."""
        mark = self.folder / REJECTED_MARK
        return mark.is_file() and mark.read_bytes() == _encode_path(rejected)

    def write_rejected_mark(self, rejected: Path) -> None:
        """Store the folder for rejected images, before the first one is put there."""
        write_bytes_atomically(self.folder / REJECTED_MARK, _encode_path(rejected))

    def remove(self) -> None:
        """Remove the folder of a finished job; a failure is a warning, since all results are written."""
        try:
            self._remove_files()
        except OSError as error:
            warnings.warn(
                f"the scores are complete, but their chunks in {str(self.folder)!r} cannot be removed: "
                f"{os.strerror(error.errno or 0)}; remove this folder.",
                stacklevel=2,
            )

    def _remove_files(self) -> None:
        """Remove the record after the chunks: what a kill leaves then never belongs to another job."""
        last = (RECORD, REJECTED_MARK, LOCK)
        for path in self.folder.iterdir():
            if path.name not in last:
                path.unlink()
        for name in (RECORD, REJECTED_MARK):
            (self.folder / name).unlink(missing_ok=True)
        # Windows does not remove a lock that is held, and another process may just be waiting for it.
        with suppress(OSError):
            (self.folder / LOCK).unlink()
            self.folder.rmdir()


def _encode_path(path: Path) -> bytes:
    return os.fsencode(path.absolute())


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


def _resume_record(folder: Path, record: JobRecord) -> JobRecord:
    """Return the record of a job, with the size of its chunks if it was begun before, perhaps on another device.

    A folder that holds another job is an error. What an earlier version of this package computed is removed.
    """
    repair = "remove this folder to start again, or choose another output file"
    if not (folder / RECORD).is_file():
        # A job that is killed before it writes its record, or while it is removed, leaves these files only.
        allowed = (LOCK, REJECTED_MARK)
        if any(path.name not in allowed and path.suffix != TEMPORARY_SUFFIX for path in folder.iterdir()):
            raise DecisionError(f"the folder {str(folder)!r} exists and is not a scoring job; {repair}.")
        return record
    try:
        found = JobRecord.model_validate_json((folder / RECORD).read_bytes())
    except ValidationError:
        raise DecisionError(f"the folder {str(folder)!r} holds a scoring job that cannot be read; {repair}.") from None
    stored = found.model_dump(mode="json")  # as in the file, where a tuple is a list
    # Policies were digested in another form then, and rows had other columns, so that nothing of it can be used.
    is_older = found.version < record.version
    ignored = {"version", "rows"} | ({"policy"} if is_older else set())
    given = record.model_dump(mode="json", exclude=ignored)
    different = [name for name, value in given.items() if stored[name] != value]
    if different:
        raise DecisionError(
            f"the folder {str(folder)!r} holds an unfinished scoring job with different {', '.join(different)}; "
            f"{repair}."
        )
    if not is_older:
        return found
    for path in folder.iterdir():
        if path.name not in (RECORD, LOCK):
            path.unlink()
    return record
