"""Where scores go: the chunks of a scoring job, kept until they are one score file, or for good in a folder."""

import hashlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from secondlook.arrays import Output
from secondlook.decisions.formats import (
    SCORE_FORMATS,
    check_output_folder,
    check_output_path,
    check_replaceable,
    find_format,
    translate_write_errors,
    write_scores,
)
from secondlook.errors import DecisionError
from secondlook.file_systems import Location, is_url, open_location
from secondlook.files import TEMPORARY_SUFFIX, FrozenRecord, exclusive_lock, is_same_file, remove_temporary_files
from secondlook.predictions import (
    BrokenChunkError,
    Chunking,
    ChunkStore,
    DamagedChunkWarning,
    LocalStorage,
)

if TYPE_CHECKING:
    import pyarrow as pa

Storage = LocalStorage | Location

# Readers of a folder of Parquet files ignore names that begin with an underscore.
RECORD = "_job.json"
LOCK = "_lock"
REJECTED_MARK = "_handed-over.txt"
"""File with the path of the folder for rejected images, written before the first one is put there."""

_REPAIR = "remove it to start again, or choose another output"


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
    level: float | None
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


class Totals:
    """Counts over the finished chunks of a job."""

    def __init__(self) -> None:
        self.images = self.accepted = self.looks = self.audited = 0
        self._skipped: dict[int, list[tuple[str, str]]] = {}

    def add(self, number: int, rows: "pa.Table") -> None:
        """Count the rows of a chunk."""
        import pyarrow.compute as pc

        broken = rows.filter(pc.is_valid(rows["reason"]))
        self.images += len(rows) - len(broken)
        self.accepted += pc.sum(rows["accept"]).as_py() or 0
        self.looks += pc.sum(rows["looks"]).as_py() or 0
        if "audit" in rows.column_names:
            self.audited += pc.sum(rows["audit"]).as_py() or 0
        if len(broken):
            self._skipped[number] = list(zip(broken["id"].to_pylist(), broken["reason"].to_pylist(), strict=True))

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Id and reason of each image that could not be read, in the order of the source."""
        return tuple(image for number in sorted(self._skipped) for image in self._skipped[number])


class ScoreChunks:
    """The finished chunks of a scoring job, in a folder or at a URL: one row for each image, in their order."""

    def __init__(
        self, storage: Storage, record: JobRecord, metadata: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self.record = record
        self.chunking = Chunking(record.images, record.rows)
        self.totals = Totals()
        self.metadata = metadata
        """The policy, the data and the options of the job, for its files."""
        self._storage = storage
        self._store = ChunkStore(storage, record.digest)
        self._folder = folder
        """The folder of the chunks; None at a URL."""

    @classmethod
    @contextmanager
    def open(
        cls, place: Any, record: JobRecord, metadata: Mapping[str, str], *, overwrite: bool = False
    ) -> Iterator["ScoreChunks"]:
        """Lock the chunks in a folder, which may not exist, or at a URL: those of an interrupted job, or none yet.

        `overwrite` replaces those of another job.
        """
        folder = place if isinstance(place, Path) else None
        storage: Storage = place if folder is None else LocalStorage(folder)
        with ExitStack() as stack:
            with translate_write_errors("chunks of the scores", place):
                if folder is not None:
                    if folder.is_dir():  # before anything of it is touched: it may be any folder of the user
                        _check_is_job(storage)
                    stack.enter_context(_lock_folder(folder))
                    remove_temporary_files(folder)
                record = _resume_record(storage, record, overwrite=overwrite)
                chunks = cls(storage, record, metadata, folder)
                storage.write_bytes(RECORD, record.encode())
                chunks._count_finished()
            try:
                yield chunks
            except BaseException:
                # A job that failed before anything was saved leaves nothing behind.
                with suppress(OSError, DecisionError):
                    if not chunks._store.numbers and REJECTED_MARK not in storage.list_names():
                        chunks._remove_files()
                raise

    @property
    def missing(self) -> list[tuple[int, range]]:
        """Number and source indices of each chunk that is not finished."""
        numbers = self.chunking.numbers
        return [(number, self.chunking.indices_of(number)) for number in numbers if number not in self._store]

    @property
    def missing_images(self) -> int:
        """Number of images whose chunk is not finished."""
        return sum(len(indices) for _, indices in self.missing)

    def encode(self, number: int, rows: "pa.Table") -> bytes:
        """Return the content of a chunk."""
        return ChunkStore.encode(self.record.digest, number, rows, self.metadata)

    def write(self, number: int, content: bytes) -> None:
        """Write a chunk that `encode` returned, here or in another process."""
        rows = self._store.decode(number, content)
        with translate_write_errors("a chunk of the scores", self._store.locate(number)):
            self._store.write(number, content)
        self.totals.add(number, rows)

    def read(self, columns: list[str] | None = None) -> Iterator["pa.Table"]:
        """Read the rows of all chunks in order, one chunk at a time, or only some of their columns."""
        for number in self.chunking.numbers:
            try:
                rows = self._read(number)
            except BrokenChunkError as error:
                where = self._store.locate(number)
                raise DecisionError(
                    f"chunk {where!r} of the scores is damaged ({error}); run again to recompute it."
                ) from None
            yield rows if columns is None else rows.select(columns)

    def _count_finished(self) -> None:
        """Count the chunks that are finished; those that this job did not write in their place are removed."""
        for number in self._store.numbers:
            try:
                if number not in self.chunking.numbers:
                    raise BrokenChunkError(f"the job has only {len(self.chunking.numbers)} chunks")
                self.totals.add(number, self._read(number))
            except BrokenChunkError as error:
                where = self._store.locate(number)
                warnings.warn(
                    f"recomputing chunk {where!r} of the scores, which is damaged: {error}.",
                    DamagedChunkWarning,
                    stacklevel=2,
                )
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
        """Whether this job put rejected images into that folder before it was interrupted."""
        if REJECTED_MARK not in self._storage.list_names():
            return False
        return self._storage.read_bytes(REJECTED_MARK) == os.fsencode(rejected.absolute())

    def write_rejected_mark(self, rejected: Path) -> None:
        """Store the folder for rejected images, before the first one is put there."""
        self._storage.write_bytes(REJECTED_MARK, os.fsencode(rejected.absolute()))

    def finish(self) -> None:
        """Remove all but the chunks and the record of a finished job, in a folder of scores."""
        self._storage.delete(REJECTED_MARK)
        self._remove_lock()

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
        if self._folder is not None:
            self._remove_lock()
            with suppress(OSError):
                self._folder.rmdir()

    def _remove_lock(self) -> None:
        # Windows does not remove a lock that is held, and another process may just be waiting for it.
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / LOCK).unlink()


def _remove_job(storage: Storage) -> None:
    """Remove the files of a job, its record after the chunks: what a kill leaves then never belongs to another job.

    The mark is removed last: while anything is left, the folder of rejected images is known to be that of the job.
    """
    chunks = ChunkStore(storage, job="")
    for number in chunks.numbers:
        chunks.delete(number)
    names = storage.list_names()
    for name in (RECORD, REJECTED_MARK):
        if name in names:
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


def _check_is_job(storage: Storage) -> None:
    """Raise an error for a place with files that are not those of a scoring job."""
    names = storage.list_names()
    # A job that is killed before it writes its record, or while it is removed, leaves these files only.
    allowed = (LOCK, REJECTED_MARK)
    if RECORD not in names and any(name not in allowed and not name.endswith(TEMPORARY_SUFFIX) for name in names):
        raise DecisionError(f"the folder {str(storage)!r} exists and is not a scoring job; {_REPAIR}.")


def _resume_record(storage: Storage, record: JobRecord, *, overwrite: bool) -> JobRecord:
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


@dataclass(frozen=True)
class Destination:
    """Where scores go: one file, whose chunks are in a folder beside it for a while, or a folder that keeps them."""

    place: Path | Location
    is_file: bool

    @classmethod
    def parse(cls, out: str | Path) -> "Destination":
        """Return where scores go: a file by its suffix, a folder if there is none; raise if it cannot be written."""
        text = os.fspath(out)
        if is_url(text):
            suffix = os.path.splitext(text.rstrip("/"))[1].lower()  # noqa: PTH122 - a URL
            if suffix in SCORE_FORMATS:
                raise DecisionError(
                    f"scores cannot be written to {text!r}: at a URL they are a folder of Parquet parts; pass the URL "
                    f"of a folder, such as {text.rstrip('/')[: -len(suffix)]!r}."
                )
            return cls(open_location(text, DecisionError), is_file=False)
        path = Path(out)
        is_file = path.suffix.lower() in SCORE_FORMATS or bool(path.suffix and not path.is_dir())
        if is_file:
            find_format(path)
            check_output_path(path, "scores")
        else:
            check_output_folder(path, "scores")
        return cls(path, is_file)

    def __str__(self) -> str:
        return str(self.place)

    @property
    def path(self) -> Path | None:
        """The local path; None at a URL."""
        return self.place if isinstance(self.place, Path) else None

    def has_scores(self) -> bool:
        """Whether anything is there."""
        if isinstance(self.place, Path):
            return (self.place if self.is_file else self.place / RECORD).exists()
        return RECORD in self.place.list_names()

    def check_replaceable(self, metadata: Mapping[str, str], ids: Collection[str]) -> None:
        """Raise an error, before hours of work, if a file is there that is clearly not what would be written.

        Of a folder, opening the chunks tells whether they are those of another job.
        """
        if self.is_file:
            check_replaceable(Path(str(self.place)), metadata, ids)

    def open_chunks(
        self, record: JobRecord, metadata: Mapping[str, str], *, overwrite: bool
    ) -> AbstractContextManager[ScoreChunks]:
        """Open the chunks of the job: those of an interrupted one, or none yet."""
        if isinstance(self.place, Path) and self.is_file:  # chunks of another job are never replaced there
            return ScoreChunks.open(self.place.with_name(f"{self.place.name}.parts"), record, metadata)
        return ScoreChunks.open(self.place, record, metadata, overwrite=overwrite)

    def write(self, chunks: ScoreChunks, schema: "pa.Schema", *, overwrite: bool) -> None:
        """Write the rows of all chunks as one file; in a folder, the chunks are the scores."""
        if self.is_file:
            schema = schema.with_metadata(dict(chunks.metadata))
            tables = (rows.cast(schema) for rows in chunks.read())
            write_scores(Path(str(self.place)), schema, tables, overwrite=overwrite)

    def close(self, chunks: ScoreChunks) -> None:
        """Remove what only an unfinished job needs."""
        if self.is_file:
            chunks.remove()
        else:
            chunks.finish()
