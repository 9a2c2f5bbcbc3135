"""Chunks of a scoring job: computed in the background, and kept in a folder until the job is finished."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from secondlook.arrays import Float32Array
from secondlook.errors import DecisionError
from secondlook.files import (
    TEMPORARY_SUFFIX,
    FrozenRecord,
    exclusive_lock,
    remove_temporary_files,
    write_atomically,
    write_bytes_atomically,
)
from secondlook.predictions import Chunk, Chunking, Predictions
from secondlook.scoring.formats import translate_write_errors
from secondlook.scoring.policy_classifier import MemberOutputs
from secondlook.scoring.rows import RowOptions, compute_rows, row_schema
from secondlook.sources import Source
from secondlook.views import ViewSet

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = "job.json"
LOCK = "lock"
REJECTED_MARK = "handed-over.txt"
"""File with the path of the folder for rejected images, written before the first one is put there."""

SKIPPED = b"secondlook.skipped"

OnPredictions = Callable[[Predictions], None]


class JobRecord(FrozenRecord):
    """Identity of a scoring job: its chunks must not be mixed with those of another job."""

    format: Literal["secondlook scoring"] = "secondlook scoring"
    version: Literal[2] = 2
    policy: str
    classifier: str
    output: str
    preprocessing: dict[str, object]
    data: str
    images: int
    rows: int
    level: float
    seed: int
    per_view: bool
    class_names: tuple[str, ...] | None


class ScoredChunk(NamedTuple):
    """The rows of some images, and the id and reason of each skipped image."""

    rows: "pa.Table"
    skipped: list[tuple[str, str]]


class ScoreChunks:
    """The folder with the finished chunks of a scoring job; each file is complete or absent."""

    def __init__(self, folder: Path, record: JobRecord) -> None:
        self.folder = folder
        self.chunking = Chunking(record.images, record.rows)

    @classmethod
    @contextmanager
    def open(cls, out: Path, record: JobRecord) -> Iterator["ScoreChunks"]:
        """Lock the chunks of the score file `out`: those of an interrupted job, or none yet."""
        folder = out.with_name(f"{out.name}.parts")
        with ExitStack() as stack:
            with translate_write_errors("chunks of the scores", folder):
                stack.enter_context(_lock_folder(folder))
                _check_record(folder, record)
                remove_temporary_files(folder)
                write_bytes_atomically(folder / RECORD, record.model_dump_json(indent=2).encode() + b"\n")
            chunks = cls(folder, record)
            try:
                yield chunks
            except BaseException:
                # A job that failed before its first chunk leaves nothing behind.
                if chunks.missing_images == record.images and not (folder / REJECTED_MARK).exists():
                    chunks.remove()
                raise

    def path(self, number: int) -> Path:
        """Return the file of a chunk."""
        return self.folder / f"part-{number:06d}.parquet"

    def has(self, number: int) -> bool:
        """Whether a chunk is finished."""
        return self.path(number).is_file()

    @property
    def missing_images(self) -> int:
        """Number of images whose chunk is not finished."""
        return sum(len(self.chunking.indices_of(number)) for number in self.chunking.numbers if not self.has(number))

    def write(self, number: int, chunk: ScoredChunk) -> None:
        """Write a chunk, atomically."""
        import pyarrow.parquet as pq

        path = self.path(number)
        table = chunk.rows.replace_schema_metadata({SKIPPED: json.dumps(chunk.skipped)})
        with translate_write_errors("a chunk of the scores", path):
            write_atomically(path, lambda file: pq.write_table(table, file, write_page_checksum=True))

    def read(self, columns: list[str] | None = None) -> Iterator[ScoredChunk]:
        """Read all chunks in order, one at a time, or only some of their columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number in self.chunking.numbers:
            path = self.path(number)
            try:
                table = pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
                skipped = [(id_, reason) for id_, reason in json.loads((table.schema.metadata or {})[SKIPPED])]
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                raise DecisionError(
                    f"chunk {str(path)!r} of the scores is damaged ({error}); remove this file and run again to "
                    "recompute it."
                ) from None
            yield ScoredChunk(table.replace_schema_metadata(None), skipped)

    def has_rejected_mark(self, rejected: Path) -> bool:
        """Whether this job put rejected images into that folder before it was interrupted."""
        mark = self.folder / REJECTED_MARK
        return mark.is_file() and mark.read_text(encoding="utf-8") == str(rejected.absolute())

    def write_rejected_mark(self, rejected: Path) -> None:
        """Store the folder for rejected images, before the first one is put there."""
        write_bytes_atomically(self.folder / REJECTED_MARK, str(rejected.absolute()).encode())

    def remove(self) -> None:
        """Remove the folder, the record after the chunks: what a kill leaves then never belongs to another job."""
        for number in self.chunking.numbers:
            self.path(number).unlink(missing_ok=True)
        (self.folder / RECORD).unlink()
        # Windows does not remove the lock while it is held; the folder stays there, empty.
        shutil.rmtree(self.folder, ignore_errors=os.name == "nt")


class ChunkScorer:
    """Collects the outputs of a chunk view by view, and computes its rows while the classifier runs on the next."""

    def __init__(
        self,
        chunks: ScoreChunks,
        options: RowOptions,
        classifier: MemberOutputs,
        source: Source,
        views: ViewSet,
        class_names: tuple[str, ...] | None,
        on_first_predictions: OnPredictions | None,
    ) -> None:
        self._chunks = chunks
        self._options = options
        self._classifier = classifier
        self._source = source
        self._views = views
        self._class_names = class_names
        self._on_first_predictions = on_first_predictions
        self._outputs: Float32Array = np.empty((0, len(views), 1), dtype=np.float32)
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="secondlook-score")

    def needs(self, view: int, number: int) -> bool:
        """Whether a chunk is missing; it is written once, with all its views."""
        return not self._chunks.has(number)

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        """Take the outputs of one view; the last one completes the chunk."""
        if view == 0:
            self._outputs = np.empty((len(chunk.indices), len(self._views), chunk.outputs.shape[1]), dtype=np.float32)
        self._outputs[:, view] = chunk.outputs
        if view < len(self._views) - 1:
            return
        preds = self._make_predictions(chunk, self._outputs)
        if self._on_first_predictions is not None and preds is not None:
            self._on_first_predictions(preds)
            self._on_first_predictions = None
        self._wait()
        self._pending = self._thread.submit(self._write, number, chunk, preds)

    def _make_predictions(self, chunk: Chunk, outputs: Float32Array) -> Predictions | None:
        if len(chunk.indices) == 0:
            return None
        ids = [self._source.ids[index] for index in chunk.indices]
        return self._classifier.as_predictions(outputs, self._views, ids, self._class_names)

    def _write(self, number: int, chunk: Chunk, preds: Predictions | None) -> None:
        if preds is None:
            rows = row_schema(self._options).empty_table()
        else:
            rows = compute_rows(self._options, preds, chunk.indices)
        self._chunks.write(number, ScoredChunk(rows, [(image.id, image.reason) for image in chunk.skipped]))

    def _wait(self) -> None:
        """Wait for the chunk in the background: only one at a time, so that memory stays bounded."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @contextmanager
    def run(self) -> Iterator["ChunkScorer"]:
        """Compute rows in the background; at the end all are written, or the error is raised."""
        try:
            yield self
            self._wait()
        finally:
            self._thread.shutdown()


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    while True:
        folder.mkdir(exist_ok=True)
        with exclusive_lock(folder / LOCK) as held:
            # The process that held the lock before may have removed it together with the folder.
            if _is_same_file(held, folder / LOCK):
                yield
                return


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one at a path now, and not one that was removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _check_record(folder: Path, record: JobRecord) -> None:
    repair = "remove this folder to start again, or choose another output file"
    if not (folder / RECORD).is_file():
        # A job that is killed before it writes its record, or while it is removed, leaves these files only.
        allowed = (LOCK, REJECTED_MARK)
        if any(path.name not in allowed and path.suffix != TEMPORARY_SUFFIX for path in folder.iterdir()):
            raise DecisionError(f"the folder {str(folder)!r} exists and is not a scoring job; {repair}.")
        return
    try:
        found = JobRecord.model_validate_json((folder / RECORD).read_bytes())
    except ValidationError:
        raise DecisionError(f"the folder {str(folder)!r} holds a scoring job that cannot be read; {repair}.") from None
    stored = found.model_dump(mode="json")  # as in the file, where a tuple is a list
    different = [name for name, value in record.model_dump(mode="json").items() if stored[name] != value]
    if different:
        raise DecisionError(
            f"the folder {str(folder)!r} holds an unfinished scoring job with different {', '.join(different)}; "
            f"{repair}."
        )
