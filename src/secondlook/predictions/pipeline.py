"""The collection pipeline: decode, transform, classify and write, each stage in its own thread."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier
from secondlook.errors import PredictionsError
from secondlook.predictions.batching import Chunking, HalvingBatches
from secondlook.predictions.chunks import Chunk
from secondlook.predictions.manifest import SkippedImage
from secondlook.predictions.validation import as_labels, check_class_count
from secondlook.sources import Source
from secondlook.views import ViewSet

_CHUNKS_AHEAD = 1
_VIEW_BATCHES_AHEAD = 3
DECODED_AT_ONCE = 16
"""Number of images held at their original size before they are resized; fewer where they exceed `max_bytes`."""

_POLL_SECONDS = 0.1
Item = TypeVar("Item")


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


@dataclass(frozen=True)
class DecodedChunk:
    """The readable images of one chunk at the input size, in batches [n, H, W, C], with their source indices."""

    number: int
    indices: IntArray
    batches: list[Array]
    skipped: tuple[SkippedImage, ...]


@dataclass(frozen=True)
class ViewBatch:
    """One view of one batch, [n, H, W, C], or None for a chunk without readable images."""

    chunk: DecodedChunk
    view: int
    images: Array | None
    is_last: bool


def read_first_image(classifier: Classifier, source: Source) -> Array:
    """Return the first readable image at the input size, [H, W, C]; its size determines how many fit in memory."""
    for batch in source.batches(1):
        image: Array = classifier.preprocessing.fit(batch.images)[0]
        return image
    raise PredictionsError(
        f"none of the {len(source)} images of {source.spec!r} could be read; "
        f"the first is {source.skipped[0].id!r}: {source.skipped[0].reason}"
    )


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
                    _check_classes(job, outputs[-1].shape[1])
                    is_checked = True
                advance(len(batch.images))
            if batch.is_last:
                joined = np.concatenate(outputs) if outputs else np.empty((0, 1), dtype=np.float32)
                sink.write(batch.view, batch.chunk.number, Chunk(batch.chunk.indices, joined, batch.chunk.skipped))
                outputs = []


def _check_classes(job: CollectJob, classes: int) -> None:
    """Check labels and class names against the first output, rather than after hours of work."""
    check_class_count(job.classifier.name, job.source, classes)
    if job.source.labels is not None:
        as_labels(job.source.labels, len(job.source), classes)


def _iter_view_batches(job: CollectJob, sink: Sink) -> Iterator[ViewBatch]:
    from secondlook.views import apply_view

    with closing(read_ahead(lambda: _iter_decoded_chunks(job, sink), _CHUNKS_AHEAD)) as chunks:
        for chunk in chunks:
            for place, view in enumerate(job.views):
                # Another process may have written the chunk since it was decoded.
                if not sink.needs(place, chunk.number):
                    continue
                if not chunk.batches:
                    yield ViewBatch(chunk, place, None, is_last=True)
                for number, batch in enumerate(chunk.batches, start=1):
                    yield ViewBatch(chunk, place, apply_view(batch, view), is_last=number == len(chunk.batches))


def _iter_decoded_chunks(job: CollectJob, sink: Sink) -> Iterator[DecodedChunk]:
    for number in job.chunking.numbers:
        if any(sink.needs(place, number) for place in range(len(job.views))):
            yield _decode_chunk(job, number)


def _decode_chunk(job: CollectJob, number: int) -> DecodedChunk:
    requested = job.chunking.indices_of(number)
    read, inputs = [], []
    for batch in job.source.batches(DECODED_AT_ONCE, requested.start, requested.stop):
        read.append(batch.indices)
        inputs.append(job.classifier.preprocessing.fit(batch.images))
        del batch  # the images must not stay in memory while the next ones are decoded
    indices = np.concatenate(read) if read else np.empty(0, dtype=np.int64)
    batches = _split_batches(np.concatenate(inputs), job.batch_size) if inputs else []
    return DecodedChunk(number, indices, batches, _list_skipped(job.source, requested, indices))


def _split_batches(images: Array, batch_size: int) -> list[Array]:
    return [images[start : start + batch_size] for start in range(0, len(images), batch_size)]


def _list_skipped(source: Source, requested: range, read: IntArray) -> tuple[SkippedImage, ...]:
    missing = np.setdiff1d(np.array(requested), read).tolist()
    if not missing:
        return ()
    reasons = {image.id: image.reason for image in source.skipped}
    return tuple(
        SkippedImage(index=index, id=source.ids[index], reason=reasons[source.ids[index]]) for index in missing
    )


class _End:
    """Marks the end of the items, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(make_items: Callable[[], Iterable[Item]], depth: int) -> Generator[Item, None, None]:
    """Yield the items of `make_items()`, computed in a thread that is at most `depth` items ahead.

    Errors in the thread are raised here. Closing the generator stops the thread.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_produce, args=(make_items, ready, stopped), daemon=True, name="secondlook-read-ahead"
    )
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        thread.join()


def _produce(
    make_items: Callable[[], Iterable[Item]], ready: "queue.Queue[Item | _End]", stopped: threading.Event
) -> None:
    error: BaseException | None = None
    try:
        items = make_items()
        try:
            for item in items:
                if not _put(item, ready, stopped):
                    break
        finally:
            if isinstance(items, Generator):
                items.close()
    except BaseException as caught:  # noqa: BLE001 - raised in the consuming thread
        error = caught
    _put(_End(error), ready, stopped)


def _put(item: Item | _End, ready: "queue.Queue[Item | _End]", stopped: threading.Event) -> bool:
    """Wait until the queue has room; return False if the consumer stopped."""
    while not stopped.is_set():
        try:
            ready.put(item, timeout=_POLL_SECONDS)
        except queue.Full:
            continue
        return True
    return False
