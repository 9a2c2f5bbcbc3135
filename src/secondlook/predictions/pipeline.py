"""The collection pipeline: decode, transform, classify and write, each stage in its own thread."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import Classifier
from secondlook.predictions.batching import Chunking, HalvingBatches, group_views, stack_views
from secondlook.predictions.chunks import Chunk
from secondlook.predictions.decoding import DecodedChunk, decode_chunk
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
    """Views of one batch, one view after another: images [views * n, H, W, C], or outputs that are known already.

    It has neither for a chunk without readable images. There are several views only where they fit in one batch.
    """

    chunk: DecodedChunk
    views: tuple[int, ...]
    is_last: bool
    images: Array | None = None
    outputs: Float32Array | None = None


def run_pipeline(job: CollectJob, sink: Sink, advance: Callable[[int], None]) -> None:
    """Compute all chunks that the sink needs; `advance` is called with the number of images just classified."""
    classify = HalvingBatches(job.classifier, job.batch_size)
    outputs: list[Float32Array] = []
    is_checked = False
    with closing(read_ahead(lambda: _iter_view_batches(job, sink), _VIEW_BATCHES_AHEAD)) as batches:
        for batch in batches:
            if batch.images is not None:
                outputs.append(classify(batch.images))
                if not is_checked:
                    check_classes(job.classifier.name, job.source, outputs[-1].shape[1])
                    is_checked = True
                advance(len(batch.images))
            elif batch.outputs is not None:
                outputs.append(batch.outputs)
                advance(len(batch.outputs))
            if batch.is_last:
                for view, chunk in _split_views(batch, outputs):
                    sink.write(view, batch.chunk.number, chunk)
                outputs = []
            elif sink.is_save_due():
                joined = np.concatenate(outputs)
                chunk = Chunk(batch.chunk.indices[: len(joined)], joined, batch.chunk.skipped)
                sink.write_partial(batch.views[0], batch.chunk.number, chunk)


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


def _iter_view_batches(job: CollectJob, sink: Sink) -> Iterator[ViewBatch]:
    with closing(read_chunks(job, lambda number: _is_needed(job, sink, number))) as chunks:
        for chunk in chunks:
            for group in group_views(len(job.views), len(chunk.indices), job.batch_size):
                # Another process may have written the chunk since it was decoded.
                views = tuple(view for view in group if sink.needs(view, chunk.number))
                if views:
                    yield from _iter_batches_of_views(job, sink, chunk, views)


def _iter_batches_of_views(
    job: CollectJob, sink: Sink, chunk: DecodedChunk, views: tuple[int, ...]
) -> Iterator[ViewBatch]:
    if not len(chunk.images):
        yield ViewBatch(chunk, views, is_last=True)
    saved = [_read_saved_outputs(sink, view, chunk) for view in views]
    for start in range(0, len(chunk.images), job.batch_size):
        batch = chunk.images[start : start + job.batch_size]
        is_last = start + len(batch) == len(chunk.images)
        known = [outputs[start : start + len(batch)] for outputs in saved]
        if all(len(outputs) == len(batch) for outputs in known):
            yield ViewBatch(chunk, views, is_last, outputs=np.concatenate(known))
        else:
            yield ViewBatch(chunk, views, is_last, images=stack_views(batch, [job.views.views[view] for view in views]))


def _read_saved_outputs(sink: Sink, view: int, chunk: DecodedChunk) -> Float32Array:
    """Return the outputs that an interrupted job saved for the first images of a chunk. float32 [n, classes]"""
    saved = sink.read_partial(view, chunk.number)
    if saved is None or not np.array_equal(saved.indices, chunk.indices[: len(saved.indices)]):
        return np.empty((0, 1), dtype=np.float32)
    return saved.outputs


def _is_needed(job: CollectJob, sink: Sink, number: int) -> bool:
    return any(sink.needs(place, number) for place in range(len(job.views)))
