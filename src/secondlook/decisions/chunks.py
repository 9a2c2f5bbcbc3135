"""The output of a scoring job: chunks that are joined into one score file, or that stay in a folder."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, ValidationError

from secondlook.decisions.formats import (
    SCORE_FORMATS,
    check_output_folder,
    check_output_path,
    find_format,
    translate_write_errors,
    write_scores,
)
from secondlook.errors import DecisionError
from secondlook.file_systems import Location, is_url, open_location
from secondlook.files import (
    LOCK,
    TEMPORARY_SUFFIX,
    Count,
    FrozenRecord,
    PositiveCount,
    lock_folder,
    remove_temporary_files,
)
from secondlook.policies import Ledger
from secondlook.predictions import BrokenChunkError, Chunking, ChunkStore, DamagedChunkWarning, LocalStorage

if TYPE_CHECKING:
    import pyarrow as pa

Storage = LocalStorage | Location

# Readers of a folder of Parquet files ignore names that begin with an underscore.
RECORD = "_job.json"
REJECTED_MARK = "_handed-over.txt"
"""File with the path of the folder for rejected images, written before the first image is stored there."""

_REPAIR = "remove it to start again, or choose another output"


class JobRecord(FrozenRecord):
    """Identity of a scoring job; chunks of different jobs must not be mixed.

    Additional fields hold everything else that the rows depend on: policy, classifier, data and options.
    """

    model_config = ConfigDict(extra="allow")

    format: Literal["secondlook scoring"] = "secondlook scoring"
    version: Literal[1] = 1
    images: Count
    rows: PositiveCount
    """Number of images per chunk."""

    def encode(self) -> bytes:
        """Return the content of its file."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    @property
    def digest(self) -> str:
        """Hex sha256 of the record."""
        return hashlib.sha256(self.encode()).hexdigest()


@dataclass(frozen=True)
class Destination:
    """The output of a job: a file, with a temporary folder of chunks beside it, or a folder that keeps the chunks."""

    name: str
    """The path or URL."""
    storage: Storage
    """Storage of the chunks."""
    folder: Path | None
    """The folder of the chunks; None at a URL."""
    file: Path | None = None
    """The score file; None for a folder."""

    @classmethod
    def parse(cls, out: str | Path) -> "Destination":
        """Parse a path or URL: a suffix means a file, otherwise a folder; raise an error if it cannot be written."""
        text = os.fspath(out)
        if is_url(text):
            suffix = os.path.splitext(text.rstrip("/"))[1].lower()  # noqa: PTH122 - a URL
            if suffix in SCORE_FORMATS:
                fault = f"scores cannot be written to {text!r}: a URL must name a folder, for Parquet parts"
                raise DecisionError(fault, repair=f"pass a folder, for example {text.rstrip('/')[: -len(suffix)]!r}")
            location = open_location(text, DecisionError)
            return cls(str(location), location, None)
        path = Path(out)
        if path.suffix.lower() in SCORE_FORMATS or (path.suffix and not path.is_dir()):
            find_format(path)
            check_output_path(path, "scores")
            folder = path.with_name(f"{path.name}.parts")
            return cls(str(path), LocalStorage(folder), folder, path)
        check_output_folder(path, "scores")
        return cls(str(path), LocalStorage(path), path)

    @property
    def path(self) -> Path | None:
        """The local path; None at a URL."""
        return self.file or self.folder

    def has_scores(self) -> bool:
        """Whether there are scores."""
        return RECORD in self.storage.list_names() if self.file is None else self.file.exists()

    def write(self, chunks: "ScoreChunks", schema: "pa.Schema", *, overwrite: bool) -> None:
        """Write the rows of all chunks as one file; in a folder, the chunks are the scores."""
        if self.file is not None:
            schema = schema.with_metadata(dict(chunks.metadata))
            write_scores(self.file, schema, (rows.cast(schema) for rows in chunks.read()), overwrite=overwrite)


class Totals:
    """Counts over the finished chunks of a job."""

    def __init__(self) -> None:
        self.images = self.accepted = self.looks = self.audited = self.unfamiliar = 0
        self._skipped: dict[int, list[tuple[str, str]]] = {}

    def add(self, number: int, rows: "pa.Table") -> None:
        """Count the rows of a chunk."""
        import pyarrow.compute as pc

        broken = rows.filter(pc.is_valid(rows["reason"]))
        self.images += len(rows) - len(broken)
        self.accepted += pc.sum(rows["accept"]).as_py() or 0
        self.looks += pc.sum(rows["looks"]).as_py() or 0
        if "rejection" in rows.column_names:
            self.unfamiliar += pc.sum(pc.equal(rows["rejection"], "unfamiliar")).as_py() or 0
        if "audit" in rows.column_names:
            self.audited += pc.sum(rows["audit"]).as_py() or 0
        self._skipped[number] = list(zip(broken["id"].to_pylist(), broken["reason"].to_pylist(), strict=True))

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Id and reason of each image that could not be read, in the order of the source."""
        return tuple(image for number in sorted(self._skipped) for image in self._skipped[number])


class ScoreChunks:
    """The finished chunks of a scoring job, in a folder or at a URL: one row per image, in source order."""

    def __init__(
        self, destination: Destination, record: JobRecord, metadata: Mapping[str, str], *, replaces: bool = False
    ) -> None:
        self.record, self.metadata = record, metadata
        self._replaces = replaces
        self.chunking = Chunking(record.images, record.rows)
        self.totals = Totals()
        self._destination, self._storage = destination, destination.storage

    @cached_property
    def _store(self) -> ChunkStore:
        """The chunks; first used after those of a replaced job are removed."""
        return ChunkStore(self._storage, self.record.digest)

    @classmethod
    @contextmanager
    def open(
        cls,
        destination: Destination,
        record: JobRecord,
        metadata: Mapping[str, str],
        *,
        overwrite: bool = False,
        check: Callable[["ScoreChunks"], None] = lambda chunks: None,
    ) -> Iterator["ScoreChunks"]:
        """Lock the chunks of a new or interrupted job.

        `metadata` is the policy, the data and the options of the job, for its files. `overwrite` replaces the chunks of
        another job in a folder of scores, but never the chunks of an unfinished file. `check` may raise an error before
        anything is changed.
        """
        storage, folder = destination.storage, destination.folder
        with ExitStack() as stack:
            with translate_write_errors("the chunks of the scores", storage):
                if folder is not None:
                    if folder.is_dir():  # before changing anything: it may be any folder of the user
                        _check_is_job(storage)
                    stack.enter_context(lock_folder(folder, is_temporary=destination.file is not None))
                found = _find_record(storage, record, overwrite=overwrite and destination.file is None)
                replaces = found is None and RECORD in storage.list_names()
            chunks = cls(destination, found or record, metadata, replaces=replaces)
            check(chunks)
            with translate_write_errors("the chunks of the scores", storage):
                if replaces:
                    _remove_job(storage)
                if folder is not None:
                    remove_temporary_files(folder, "part-*", RECORD, REJECTED_MARK)
                storage.write_bytes(RECORD, chunks.record.encode())
                chunks._count_finished()
            try:
                yield chunks
            except BaseException:
                # A job that failed before anything was saved leaves nothing behind.
                with suppress(OSError, DecisionError):
                    if not chunks._store.numbers and REJECTED_MARK not in storage.list_names():
                        _remove_job(storage)
                raise

    @property
    def missing(self) -> list[tuple[int, range]]:
        """Number and source indices of each unfinished chunk."""
        numbers = self.chunking.numbers
        return [(number, self.chunking.indices_of(number)) for number in numbers if number not in self._store]

    def write(self, number: int, content: bytes) -> None:
        """Write a chunk that `ChunkStore.encode` returned, here or in another process."""
        rows = self._store.decode(number, content)
        with translate_write_errors("a chunk of the scores", self._store.locate(number)):
            self._store.write(number, content)
        self.totals.add(number, rows)

    def read(self) -> Iterator["pa.Table"]:
        """Read the rows of all chunks in order, one chunk at a time."""
        for number in self.chunking.numbers:
            try:
                yield self._read(number)
            except BrokenChunkError as error:
                fault = f"chunk {self._store.locate(number)!r} of the scores is damaged ({error})"
                raise DecisionError(fault, repair="run again to recompute it") from None

    def _count_finished(self) -> None:
        """Count the finished chunks; remove chunks that this job did not write."""
        for number in self._store.numbers:
            try:
                if number not in self.chunking.numbers:
                    raise BrokenChunkError(f"the job has only {len(self.chunking.numbers)} chunks")
                self.totals.add(number, self._read(number))
            except BrokenChunkError as error:
                message = f"recomputing chunk {self._store.locate(number)!r} of the scores, which is damaged: {error}."
                warnings.warn(message, DamagedChunkWarning, stacklevel=2)
                self._store.delete(number)

    def _read(self, number: int) -> "pa.Table":
        try:
            rows = self._store.read(number)
        except OSError as error:
            raise DecisionError(self._store.describe_read_error(number, error)) from None
        if len(rows) != len(self.chunking.indices_of(number)):
            raise BrokenChunkError("it does not contain the images it should")
        return rows.replace_schema_metadata(None)

    def has_rejected_mark(self, rejected: Path) -> bool:
        """Whether this job stored rejected images in that folder before it was interrupted."""
        path, names = os.fsencode(rejected.absolute()), self._storage.list_names()
        is_marked = REJECTED_MARK in names and not self._replaces
        return is_marked and self._storage.read_bytes(REJECTED_MARK) == path

    def write_rejected_mark(self, rejected: Path) -> None:
        """Record the folder for rejected images, before the first image is stored there."""
        self._storage.write_bytes(REJECTED_MARK, os.fsencode(rejected.absolute()))

    def finish(self) -> None:
        """Remove files that only an unfinished job needs; warn if that fails, since all results are written."""
        if self._destination.file is None:
            self._storage.delete(REJECTED_MARK)
            return
        try:
            _remove_job(self._storage)
        except OSError as error:
            fault = f"the scores are complete, but their chunks cannot be removed: {os.strerror(error.errno or 0)}"
            warnings.warn(f"{fault}; remove {str(self._storage)!r}.", stacklevel=2)


def _remove_job(storage: Storage) -> None:
    """Remove the files of a job: chunks, record, mark. The order makes a kill safe at any moment.

    Chunks without their record could be mistaken for those of another job. The mark identifies the folder of rejected
    images while any other file exists.
    """
    chunks = ChunkStore(storage, job="")
    for number in chunks.numbers:
        chunks.delete(number)
    names = storage.list_names()
    for name in (RECORD, REJECTED_MARK):
        if name in names:
            storage.delete(name)


def _check_is_job(storage: Storage) -> None:
    """Raise an error if the storage has files that do not belong to a scoring job."""
    names = storage.list_names()
    # A job killed before it writes its record, or while it is being removed, leaves only these files.
    allowed = (LOCK, REJECTED_MARK, Ledger.OF_SCORES, str(Path(Ledger.OF_SCORES).with_suffix(".lock")))
    if RECORD not in names and any(name not in allowed and not name.endswith(TEMPORARY_SUFFIX) for name in names):
        raise DecisionError(f"the folder {str(storage)!r} exists and is not a scoring job; {_REPAIR}.")


def _find_record(storage: Storage, record: JobRecord, *, overwrite: bool) -> JobRecord | None:
    """Return the record of an interrupted job, which keeps its chunk size, even on another device.

    Another job in the storage is an error, or None if `overwrite` is set.
    """
    _check_is_job(storage)
    if RECORD not in storage.list_names():
        return None
    try:
        found = JobRecord.model_validate_json(storage.read_bytes(RECORD))
    except ValidationError:
        fault = f"the folder {str(storage)!r} holds a scoring job that cannot be read"
        raise DecisionError(fault, repair=_REPAIR) from None
    # JSON stores tuples as lists.
    stored, given = (each.model_dump(mode="json", exclude={"rows"}) for each in (found, record))
    different = [name for name in {**given, **stored} if given.get(name) != stored.get(name)]
    if not different:
        return found
    if not overwrite:
        fault = f"the folder {str(storage)!r} holds a scoring job with different {', '.join(different)}"
        raise DecisionError(fault, repair=_REPAIR)
    return None
