"""Computing the chunks of a scoring job: all views of every image, or look by look; rows follow in the background."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from secondlook.arrays import Float32Array, IntArray
from secondlook.decisions.adaptive_looks import AdaptiveLooks, LookedGroup, MakePredictions, take_looks
from secondlook.decisions.chunks import ChunkSink
from secondlook.decisions.rows import FileDecisions, RowOptions, compute_rows, join_rows, make_skipped_rows
from secondlook.policies import Rule
from secondlook.predictions import (
    Chunk,
    CollectJob,
    DecodedChunk,
    Inference,
    Predictions,
    SaveTimer,
    Sink,
    SkippedImage,
    make_inference,
    read_ahead,
    read_chunks,
    run_pipeline,
)
from secondlook.progress import Advance

OnPredictions = Callable[[Predictions], None]

LOOKS = "looks"
"""The part of an incomplete chunk that holds the outputs of all looks so far."""


class RowWriter:
    """Writes rows of finished chunks, and outputs of incomplete ones, while the classifier continues."""

    def __init__(self, chunks: ChunkSink, options: RowOptions, timer: SaveTimer) -> None:
        self._chunks = chunks
        self._options = options
        self._timer = timer
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="secondlook-score")

    @contextmanager
    def run(self) -> Iterator["RowWriter"]:
        """Write in the background; at the end all is written, or the error is raised."""
        try:
            yield self
            self._wait()
        finally:
            self._thread.shutdown()

    def is_save_due(self) -> bool:
        """Whether nothing was written for a while."""
        return self._timer.is_due()

    def save(self, number: int, parts: dict[str, Chunk]) -> None:
        """Schedule the write of parts of an incomplete chunk, by their names."""
        self._submit(self._write_parts, number, parts)

    def finish(
        self,
        number: int,
        chunk: Chunk | DecodedChunk,
        groups: Iterable[LookedGroup],
        decided: FileDecisions | None = None,
    ) -> None:
        """Schedule the computation of the rows of a chunk, and their write; `groups` is consumed in the background.

        `decided` is what an exported file decided about the images of the chunk.
        """
        self._submit(self._write_rows, number, chunk.indices, chunk.skipped, groups, decided)

    def _submit(self, write: Callable[..., None], *arguments: object) -> None:
        """Write in the background: only one thing at a time, so that memory stays bounded."""
        self._wait()
        self._pending = self._thread.submit(write, *arguments)
        self._timer.restart()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write_parts(self, number: int, parts: dict[str, Chunk]) -> None:
        for part, chunk in parts.items():
            self._chunks.write_partial(part, number, chunk)

    def _write_rows(
        self,
        number: int,
        indices: IntArray,
        skipped: tuple[SkippedImage, ...],
        groups: Iterable[LookedGroup],
        decided: FileDecisions | None,
    ) -> None:
        tables = []
        for positions, preds in groups:
            given = None if decided is None else decided.select(positions)
            tables.append((indices[positions], compute_rows(self._options, preds, given)))
        unread = make_skipped_rows(self._options, [(image.id, image.reason) for image in skipped])
        tables.append((np.array([image.index for image in skipped], dtype=np.int64), unread))
        self._chunks.write(number, join_rows(self._options, tables))


@dataclass(frozen=True)
class ChunkScoring:
    """What chunks are computed from, and where they go."""

    job: CollectJob
    chunks: ChunkSink
    writer: RowWriter
    rule: Rule
    make_predictions: MakePredictions

    def compute_all_looks(self, on_first_predictions: OnPredictions | None, advance: Advance) -> None:
        """Classify every view of every image; `advance` is called with the number of views just classified."""
        run_pipeline(self.job, _AllLooks(self, on_first_predictions), advance)

    def compute_adaptively(self, advance: Advance) -> None:
        """Look at each image until it is decided; `advance` is called with the number of images just decided.

        GPUs get two chunks at a time: while the host finds the open images of one, they classify the other.
        """
        inference = make_inference(self.job.classifier, self.job.batch_size)
        n_active = 2 if inference.outstanding else 1
        active: deque[Iterator[None]] = deque()
        with closing(self._read_placed(inference)) as chunks:
            for chunk, placed in chunks:
                active.append(self._look_at(chunk, placed, inference, advance))
                while len(active) == n_active:
                    _continue_first(active)
            while active:
                _continue_first(active)

    def _read_placed(self, inference: Inference) -> Generator[tuple[DecodedChunk, Any], None, None]:
        """Yield the chunks that are missing, and where their images were placed: on GPUs, ahead of their looks."""

        def place_chunks() -> Generator[tuple[DecodedChunk, Any], None, None]:
            with closing(read_chunks(self.job, lambda number: not self.chunks.has(number))) as chunks:
                for chunk in chunks:
                    placed = inference.place(chunk.images)
                    # What was copied to GPUs need not stay in the memory of the host.
                    yield replace(chunk, images=chunk.images[:0]), placed
                    del chunk, placed

        return read_ahead(place_chunks, 1) if inference.outstanding else place_chunks()

    def _look_at(self, chunk: DecodedChunk, placed: Any, inference: Inference, advance: Advance) -> Iterator[None]:
        looks = AdaptiveLooks(self.rule, self.list_ids(chunk.indices), self.make_predictions)
        saved = self.chunks.read_partial(LOOKS, chunk.number)
        if saved is not None:
            looks.add_saved(_find_positions(saved.indices, chunk.indices), saved.outputs)
        n_decided = looks.n_decided
        advance(n_decided + len(chunk.skipped))
        for _ in take_looks(looks, placed, inference):
            advance(looks.n_decided - n_decided)
            n_decided = looks.n_decided
            if self.writer.is_save_due() and looks.has_taken and len(looks.due):
                positions, outputs = looks.taken
                self.writer.save(chunk.number, {LOOKS: Chunk(chunk.indices[positions], outputs, chunk.skipped)})
            yield
        advance(looks.n_decided - n_decided)
        self.writer.finish(chunk.number, chunk, looks.groups())

    def list_ids(self, indices: IntArray) -> list[str]:
        """Return the ids of images by their source indices, int64 [n]."""
        return [self.job.source.ids[index] for index in indices]


def _continue_first(active: deque[Iterator[None]]) -> None:
    """Continue the first of several jobs until it pauses, and put it last, unless it is done."""
    job = active.popleft()
    with suppress(StopIteration):
        next(job)
        active.append(job)


def _find_positions(wanted: IntArray, indices: IntArray) -> IntArray:
    """Return the position of each wanted index among ascending ones, -1 if it is not there. int64 [n]"""
    return np.where(np.isin(wanted, indices), np.searchsorted(indices, wanted), -1)


class _AllLooks(Sink):
    """Collects the outputs of a chunk view by view.

    Rows need all views of an image. Until they are complete, the outputs are saved whenever the timer says so.
    """

    def __init__(self, scoring: ChunkScoring, on_first_predictions: OnPredictions | None) -> None:
        self._scoring = scoring
        self._writer = scoring.writer
        self._views = scoring.job.views
        self._on_first_predictions = on_first_predictions
        self._outputs: Float32Array = np.empty((0, len(self._views), 1), dtype=np.float32)
        self._unsaved: dict[str, Chunk] = {}
        """Complete views of the present chunk."""

    def needs(self, view: int, number: int) -> bool:
        """Whether a chunk is missing; it is written once, with all its views."""
        return not self._scoring.chunks.has(number)

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        """Take the outputs of one view; the last one completes the chunk."""
        if view == 0:
            self._outputs = np.empty((len(chunk.indices), len(self._views), chunk.outputs.shape[1]), dtype=np.float32)
        self._outputs[:, view] = chunk.outputs
        if view < len(self._views) - 1:
            self._unsaved[_name_part(view)] = replace(chunk, outputs=self._outputs[:, view])
            if self.is_save_due():
                self._save(number)
            return
        self._unsaved = {}
        groups = list(self._make_groups(chunk))
        if self._on_first_predictions is not None and groups:
            self._on_first_predictions(groups[0].preds)
            self._on_first_predictions = None
        self._writer.finish(number, chunk, groups)

    def read_partial(self, view: int, number: int) -> Chunk | None:
        """Return the outputs for the first images of a chunk, if an interrupted job saved them."""
        return self._scoring.chunks.read_partial(_name_part(view), number)

    def is_save_due(self) -> bool:
        """Whether nothing was saved for a while."""
        return self._writer.is_save_due()

    def write_partial(self, view: int, number: int, chunk: Chunk) -> None:
        """Save the first images of a view, and the views before it."""
        self._unsaved[_name_part(view)] = chunk
        self._save(number)

    def _save(self, number: int) -> None:
        unsaved, self._unsaved = self._unsaved, {}
        self._writer.save(number, unsaved)

    def _make_groups(self, chunk: Chunk) -> Iterator[LookedGroup]:
        if len(chunk.indices):
            ids = self._scoring.list_ids(chunk.indices)
            preds = self._scoring.make_predictions(self._outputs, self._views, ids)
            yield LookedGroup(np.arange(len(ids)), preds)


def _name_part(view: int) -> str:
    return f"{view:03d}"
