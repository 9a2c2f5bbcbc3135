"""The collection pipeline: decode, make views, classify and write, each stage in its own thread or on a GPU."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from secondlook.arrays import Float32Array
from secondlook.classifiers import Classifier, Fetch
from secondlook.predictions.batching import Chunking, group_views
from secondlook.predictions.chunks import Chunk
from secondlook.predictions.decoding import DecodedChunk, decode_chunk
from secondlook.predictions.inference import Inference, make_inference
from secondlook.predictions.read_ahead import read_ahead
from secondlook.predictions.validation import check_classes
from secondlook.sources import Source
from secondlook.views import ViewSet

_CHUNKS_AHEAD = 1
_VIEW_BATCHES_AHEAD = 3


@dataclass(frozen=True)
class CollectJob:
    """A classifier, the images and views to classify, and how to divide the images."""

    classifier: Classifier
    source: Source
    views: ViewSet
    batch_size: int
    chunking: Chunking


class Sink(Protocol):
    """Receives the outputs, one chunk of one view at a time. Views are given by their position."""

    def needs(self, view: int, number: int) -> bool:
        """Whether a chunk still has to be computed."""

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        """Write a chunk."""

    # Only sinks that outlive the process save incomplete chunks.

    def read_partial(self, view: int, number: int) -> Chunk | None:
        """Return the outputs for the first images of a chunk, if an interrupted job saved them."""
        return None

    def is_save_due(self) -> bool:
        """Whether to save the incomplete chunk before the next batch."""
        return False

    def write_partial(self, view: int, number: int, chunk: Chunk) -> None:
        """Save the outputs for the first images of a chunk."""
        return


@dataclass(frozen=True)
class ViewBatch:
    """Views of one batch, one view after another: inputs to classify, or outputs that are known already.

    It has neither for a chunk without readable images. There are several views only where they fit in one batch.
    """

    chunk: DecodedChunk
    views: tuple[int, ...]
    n_images: int
    is_last: bool
    inputs: Any = None
    outputs: Float32Array | None = None


def run_pipeline(job: CollectJob, sink: Sink, advance: Callable[[int], None]) -> None:
    """Compute all chunks that the sink needs; `advance` is called with the number of images just classified."""
    inference = make_inference(job.classifier, job.batch_size)
    collector = _OutputCollector(job, sink, advance)
    started: deque[tuple[ViewBatch, Fetch]] = deque()
    with closing(read_ahead(lambda: _iter_view_batches(job, sink, inference), _VIEW_BATCHES_AHEAD)) as batches:
        for batch in batches:
            is_known = batch.inputs is None
            started.append((batch, partial(_return_known, batch) if is_known else inference.start(batch.inputs)))
            while len(started) > inference.outstanding:
                collector.add(*started.popleft())
        while started:
            collector.add(*started.popleft())


def _return_known(batch: ViewBatch) -> Float32Array:
    return np.empty((0, 1), dtype=np.float32) if batch.outputs is None else batch.outputs


class _OutputCollector:
    """Gives the outputs of batches to the sink when the last one of a chunk is there."""

    def __init__(self, job: CollectJob, sink: Sink, advance: Callable[[int], None]) -> None:
        self._job = job
        self._sink = sink
        self._advance = advance
        self._outputs: list[Float32Array] = []
        self._is_checked = False

    def add(self, batch: ViewBatch, fetch: Fetch) -> None:
        """Wait for the outputs of the next batch."""
        outputs = fetch()
        if batch.n_images:
            self._outputs.append(outputs)
        if batch.inputs is not None and not self._is_checked:
            check_classes(self._job.classifier.name, self._job.source, outputs.shape[1])
            self._is_checked = True
        self._advance(batch.n_images * len(batch.views))
        if batch.is_last:
            for view, chunk in _split_views(batch, self._outputs):
                self._sink.write(view, batch.chunk.number, chunk)
            self._outputs = []
        elif self._sink.is_save_due():
            joined = np.concatenate(self._outputs)
            chunk = Chunk(batch.chunk.indices[: len(joined)], joined, batch.chunk.skipped)
            self._sink.write_partial(batch.views[0], batch.chunk.number, chunk)


def read_chunks(job: CollectJob, is_needed: Callable[[int], bool]) -> Generator[DecodedChunk, None, None]:
    """Yield the chunks whose number is needed, decoded in a thread that is one chunk ahead; close it to stop."""
    return read_ahead(
        lambda: (
            decode_chunk(job.classifier, job.source, number, job.chunking.indices_of(number))
            for number in job.chunking.numbers
            if is_needed(number)
        ),
        _CHUNKS_AHEAD,
    )


def _split_views(batch: ViewBatch, outputs: list[Float32Array]) -> Iterator[tuple[int, Chunk]]:
    """Yield each view of a complete chunk with its outputs."""
    joined = np.concatenate(outputs) if outputs else np.empty((0, 1), dtype=np.float32)
    per_view = joined.reshape(len(batch.views), len(batch.chunk.indices), joined.shape[1])
    for view, view_outputs in zip(batch.views, per_view, strict=True):
        yield view, Chunk(batch.chunk.indices, view_outputs, batch.chunk.skipped)


def _iter_view_batches(job: CollectJob, sink: Sink, inference: Inference) -> Iterator[ViewBatch]:
    with closing(read_chunks(job, lambda number: _is_needed(job, sink, number))) as chunks:
        for chunk in chunks:
            placed = inference.place(chunk.images)
            for group in group_views(len(job.views), len(chunk.indices), job.batch_size):
                # Another process may have written the chunk since it was decoded.
                views = tuple(view for view in group if sink.needs(view, chunk.number))
                if views:
                    yield from _iter_batches_of_views(job, sink, inference, chunk, placed, views)


def _iter_batches_of_views(
    job: CollectJob, sink: Sink, inference: Inference, chunk: DecodedChunk, placed: Any, views: tuple[int, ...]
) -> Iterator[ViewBatch]:
    n_images = len(chunk.indices)
    if n_images == 0:
        yield ViewBatch(chunk, views, 0, is_last=True)
    saved = [_read_saved_outputs(sink, view, chunk) for view in views]
    for start in range(0, n_images, job.batch_size):
        stop = min(start + job.batch_size, n_images)
        known = [outputs[start:stop] for outputs in saved]
        if all(len(outputs) == stop - start for outputs in known):
            yield ViewBatch(chunk, views, stop - start, stop == n_images, outputs=np.concatenate(known))
        else:
            inputs = inference.prepare(placed[start:stop], [job.views.views[view] for view in views])
            yield ViewBatch(chunk, views, stop - start, stop == n_images, inputs=inputs)


def _read_saved_outputs(sink: Sink, view: int, chunk: DecodedChunk) -> Float32Array:
    """Return the outputs that an interrupted job saved for the first images of a chunk. float32 [n, classes]"""
    saved = sink.read_partial(view, chunk.number)
    if saved is None or not np.array_equal(saved.indices, chunk.indices[: len(saved.indices)]):
        return np.empty((0, 1), dtype=np.float32)
    return saved.outputs


def _is_needed(job: CollectJob, sink: Sink, number: int) -> bool:
    return any(sink.needs(place, number) for place in range(len(job.views)))
