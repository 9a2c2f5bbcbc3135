"""The collection pipeline: decode, make views, classify and write, each stage in its own thread or on a GPU."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier, Fetch
from secondlook.errors import ANY, ClassifierError, PredictionsError, Repair
from secondlook.predictions.batching import Chunking, group_views
from secondlook.predictions.inference import Inference
from secondlook.predictions.manifest import SkippedImage
from secondlook.predictions.store import Chunk
from secondlook.predictions.validation import check_classes
from secondlook.sources import Source
from secondlook.views import ViewSet

if TYPE_CHECKING:
    from torch import Tensor

_CHUNKS_AHEAD = 1
_VIEW_BATCHES_AHEAD = 3
_NO_OUTPUTS = np.empty((0, 1), dtype=np.float32)
Item = TypeVar("Item")


def read_ahead(make_items: Callable[[], Iterable[Item]], depth: int) -> Generator[Item, None, None]:
    """Yield the items of `make_items()`, computed in a thread that is at most `depth` items ahead.

    Errors in the thread are raised here. Closing the generator stops the thread.
    """
    items, end = iter(make_items()), object()
    thread = ThreadPoolExecutor(1, thread_name_prefix="secondlook-read-ahead")
    try:
        ahead = deque(thread.submit(next, items, end) for _ in range(depth))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(thread.submit(next, items, end))
            yield cast(Item, item)
    finally:
        thread.shutdown(cancel_futures=True)
        if isinstance(items, Generator):
            items.close()


# --- Decoding, chunk by chunk ---


@dataclass(frozen=True)
class DecodedChunk:
    """The readable images of one chunk at the input size, [n, H, W, C], with their source indices, int64 [n].

    The images are a tensor where they are on a GPU already and the classifier takes them from there.
    """

    number: int
    indices: IntArray
    images: "Array | Tensor"
    skipped: tuple[SkippedImage, ...]

    @classmethod
    def create(
        cls, source: Source, number: int, requested: range, indices: IntArray, images: "Array | Tensor"
    ) -> "DecodedChunk":
        """Return a chunk; the images that were requested but not read, and why, are taken from the source."""
        missing = np.setdiff1d(np.array(requested), indices).tolist()
        reasons = {image.id: image.reason for image in source.skipped} if missing else {}
        ids = {index: source.ids[index] for index in missing}
        skipped = tuple(SkippedImage(index=index, id=id_, reason=reasons[id_]) for index, id_ in ids.items())
        return cls(number, indices, images, skipped)


def read_first_image(classifier: Classifier, source: Source) -> Array:
    """Return the first readable image at the input size, [H, W, C]; its size determines how many fit in memory."""
    id_, image = find_first_image(source)
    return _fit_image(classifier, source, id_, image)


def find_first_image(source: Source) -> tuple[str, Array]:
    """Return the id of the first readable image, and the image as it is, [H, W, C]."""
    for batch in source.batches(1):
        return batch.ids[0], batch.images[0]
    raise PredictionsError(
        f"none of the {len(source)} images of {source.spec!r} could be read; "
        f"the first is {source.skipped[0].id!r}: {source.skipped[0].reason}"
    )


def decode_chunk(classifier: Classifier, source: Source, number: int, requested: range) -> DecodedChunk:
    """Read the images at the requested source indices, and fit them to the classifier."""
    first = source.read_block(requested[:1])
    block = None
    if first is not None and classifier.preprocessing.keeps_size(first.shape[1:3]):
        block = source.read_block(requested)
    if block is not None:
        indices = np.array(requested, dtype=np.int64)
        return DecodedChunk(number, indices, _fit_block(classifier, source, block, requested), ())
    indices, images = _decode_images(classifier, source, requested)
    return DecodedChunk.create(source, number, requested, indices, images)


def _decode_images(classifier: Classifier, source: Source, requested: range) -> tuple[IntArray, Array]:
    """Read and fit images one by one, in several threads. -> int64 [n], [n, H, W, C]"""

    def fit(id_: str, image: Array) -> Array:
        return _fit_image(classifier, source, id_, image)

    indices: list[int] = []
    images = np.empty((0, 1, 1, 1), dtype=np.uint8)
    with closing(source.convert_images(fit, requested)) as fitted:
        for index, image in fitted:
            if not indices:
                images = np.empty((len(requested), *image.shape), dtype=image.dtype)
            elif image.shape != images.shape[1:]:
                first, other = (" x ".join(map(str, shape)) for shape in (images.shape[1:], image.shape))
                raise PredictionsError(
                    f"image {source.ids[index]!r} of {source.spec!r} has {other} pixels (height x width x channels), "
                    f"but {source.ids[indices[0]]!r} has {first}",
                    repair=Repair(
                        "load the classifier with {resize}, or with the shorter side as {resize} and a side as {crop}",
                        resize=ANY,
                        crop=ANY,
                    ),
                )
            if image.dtype != images.dtype:  # of a user's source: no value may change
                images = images.astype(np.result_type(images, image))
            images[len(indices)] = image
            indices.append(index)
    return np.array(indices, dtype=np.int64), images[: len(indices)]


def _fit_image(classifier: Classifier, source: Source, id_: str, image: Array) -> Array:
    """Return one image at the input size, [H, W, C]; an error names the image."""
    return image if classifier.preprocessing.keeps(image.shape) else _fit(classifier, source, id_, [image])[0]


def _fit_block(classifier: Classifier, source: Source, block: "Array | Tensor", requested: range) -> "Array | Tensor":
    """Return images that need not be resized as the classifier takes them, [n, H, W, C], on a GPU where possible."""
    if not isinstance(block, np.ndarray):
        if classifier.is_accelerated and classifier.preprocessing.keeps(tuple(block.shape[1:])):
            return block
        block = block.cpu().numpy()
    # An error concerns all images, since their shapes are equal.
    return _fit(classifier, source, source.ids[requested.start], np.ascontiguousarray(block))


def _fit(classifier: Classifier, source: Source, id_: str, images: Sequence[Array] | Array) -> Array:
    try:
        return classifier.preprocessing.fit(images)
    except ClassifierError as error:
        raise ClassifierError(f"image {id_!r} of {source.spec!r} does not fit the classifier: {error}") from error


# --- Classifying ---


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
class ViewBatch:
    """Inputs to classify, one view of a batch after another; None for a chunk without readable images.

    There are several views only where they fit in one batch.
    """

    chunk: DecodedChunk
    views: tuple[int, ...]
    n_images: int
    is_last: bool
    inputs: Any


def run_pipeline(job: CollectJob, sink: Sink, advance: Callable[[int], None]) -> None:
    """Compute all chunks that the sink needs; `advance` is called with the number of images just classified."""
    inference = Inference.create(job.classifier, job.batch_size)
    started: deque[tuple[ViewBatch, Fetch]] = deque()
    outputs: list[Float32Array] = []  # of the batches of one chunk
    is_checked = False

    def finish_batch(batch: ViewBatch, fetch: Fetch) -> None:
        nonlocal is_checked
        outputs.append(fetch())
        if batch.inputs is not None and not is_checked:
            check_classes(job.classifier.name, job.source, outputs[0].shape[1])
            is_checked = True
        advance(batch.n_images * len(batch.views))
        if batch.is_last:
            chunk, joined = batch.chunk, np.concatenate(outputs)
            outputs.clear()
            per_view = joined.reshape(len(batch.views), len(chunk.indices), joined.shape[1])
            for view, view_outputs in zip(batch.views, per_view, strict=True):
                sink.write(view, chunk.number, Chunk(chunk.indices, view_outputs, chunk.skipped))

    with closing(read_ahead(lambda: _iter_view_batches(job, sink, inference), _VIEW_BATCHES_AHEAD)) as batches:
        for batch in batches:
            fetch = (lambda: _NO_OUTPUTS) if batch.inputs is None else inference.start(batch.inputs)
            started.append((batch, fetch))
            while len(started) > inference.outstanding:
                finish_batch(*started.popleft())
        while started:
            finish_batch(*started.popleft())


def _iter_view_batches(job: CollectJob, sink: Sink, inference: Inference) -> Iterator[ViewBatch]:
    def decode_needed() -> Iterator[DecodedChunk]:
        for number in job.chunking.numbers:
            if any(sink.needs(view, number) for view in range(len(job.views))):
                yield decode_chunk(job.classifier, job.source, number, job.chunking.indices_of(number))

    with closing(read_ahead(decode_needed, _CHUNKS_AHEAD)) as chunks:
        for chunk in chunks:
            n_images, placed = len(chunk.indices), inference.place(chunk.images)
            for group in group_views(len(job.views), n_images, job.batch_size):
                # Another process may have written the chunk since it was decoded.
                views = tuple(view for view in group if sink.needs(view, chunk.number))
                if views and n_images == 0:
                    yield ViewBatch(chunk, views, 0, is_last=True, inputs=None)
                for start in range(0, n_images if views else 0, job.batch_size):
                    stop = min(start + job.batch_size, n_images)
                    inputs = inference.prepare(placed[start:stop], [job.views.views[view] for view in views])
                    yield ViewBatch(chunk, views, stop - start, stop == n_images, inputs)
