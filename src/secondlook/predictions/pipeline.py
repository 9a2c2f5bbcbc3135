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
from secondlook.errors import ClassifierError, PredictionsError
from secondlook.predictions.batching import Chunking, HalvingBatches, group_views, stack_views
from secondlook.predictions.chunks import Chunk
from secondlook.predictions.manifest import SkippedImage
from secondlook.predictions.validation import check_classes
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
class DecodedChunk:
    """The readable images of one chunk at the input size, [n, H, W, C], with their source indices, int64 [n]."""

    number: int
    indices: IntArray
    images: Array
    skipped: tuple[SkippedImage, ...]


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


def read_first_image(classifier: Classifier, source: Source) -> Array:
    """Return the first readable image at the input size, [H, W, C]; its size determines how many fit in memory."""
    for batch in source.batches(1):
        return _fit_image(classifier, source, batch.ids[0], batch.images[0])
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
        lambda: (_decode_chunk(job, number) for number in job.chunking.numbers if is_needed(number)), _CHUNKS_AHEAD
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


def _decode_chunk(job: CollectJob, number: int) -> DecodedChunk:
    requested = job.chunking.indices_of(number)
    read, inputs = [], []
    for batch in job.source.batches(DECODED_AT_ONCE, requested.start, requested.stop):
        read.append(batch.indices)
        for id_, image in zip(batch.ids, batch.images, strict=True):
            inputs.append(_fit_image(job.classifier, job.source, id_, image))
        del batch, image  # the images must not stay in memory while the next ones are decoded
    indices = np.concatenate(read) if read else np.empty(0, dtype=np.int64)
    _check_same_shape(inputs, indices, job.source)
    images = np.stack(inputs) if inputs else np.empty((0, 1, 1, 1), dtype=np.uint8)
    return DecodedChunk(number, indices, images, _list_skipped(job.source, requested, indices))


def _fit_image(classifier: Classifier, source: Source, id_: str, image: Array) -> Array:
    """Return one image at the input size, [H, W, C]; an error names the image."""
    try:
        fitted: Array = classifier.preprocessing.fit([image])[0]
    except ClassifierError as error:
        raise ClassifierError(f"image {id_!r} of {source.spec!r} does not fit the classifier: {error}") from error
    return fitted


def _check_same_shape(inputs: list[Array], indices: IntArray, source: Source) -> None:
    """Check that images can be classified together; those of a chunk are one batch or several."""
    for index, image in zip(indices.tolist(), inputs, strict=True):
        if image.shape != inputs[0].shape:
            first, other = (" x ".join(map(str, shape)) for shape in (inputs[0].shape, image.shape))
            raise PredictionsError(
                f"image {source.ids[index]!r} of {source.spec!r} has {other} pixels (height x width x channels), but "
                f"{source.ids[int(indices[0])]!r} has {first}; load the classifier with resize=(height, width), or "
                "with resize= the shorter side and crop= a side."
            )


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
