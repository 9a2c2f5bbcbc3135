"""Decoding: the images of a chunk at the input size of a classifier, read ahead in a thread."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import Classifier
from secondlook.errors import ANY, ClassifierError, PredictionsError, Repair
from secondlook.predictions.store import SkippedImage
from secondlook.sources import Source

if TYPE_CHECKING:
    from torch import Tensor

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


@dataclass(frozen=True)
class DecodedChunk:
    """The readable images of one chunk at the input size, [n, H, W, C], with their source indices, int64 [n].

    The images are a tensor if they are already on a GPU and the classifier uses them there.
    """

    number: int
    indices: IntArray
    images: "Array | Tensor"
    skipped: tuple[SkippedImage, ...]

    @classmethod
    def decode(cls, classifier: Classifier, source: Source, number: int, requested: range) -> "DecodedChunk":
        """Read the images at the requested source indices, at the input size."""
        first = source.read_block(requested[:1])
        if first is not None and classifier.preprocessing.keeps_size(first.shape[1:3]):
            block = source.read_block(requested)
            if block is not None:
                indices = np.array(requested, dtype=np.int64)
                return cls(number, indices, _fit_block(classifier, source, block, requested), ())
        return cls.create(source, number, requested, *_decode_images(classifier, source, requested))

    @classmethod
    def create(
        cls, source: Source, number: int, requested: range, indices: IntArray, images: "Array | Tensor"
    ) -> "DecodedChunk":
        """Return a chunk; the skipped images and their reasons come from the source."""
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
    """Return the id of the first readable image, and the original image, [H, W, C]."""
    for batch in source.batches(1):
        return batch.ids[0], batch.images[0]
    first = f"the first is {source.skipped[0].id!r}: {source.skipped[0].reason}"
    raise PredictionsError(f"none of the {len(source)} images of {source.spec!r} could be read; {first}")


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
                repair = "load the classifier with {resize}, or with the shorter side as {resize} and a side as {crop}"
                fault = f"image {source.ids[index]!r} of {source.spec!r} has {other} pixels (height x width x channels)"
                fault = f"{fault}, but {source.ids[indices[0]]!r} has {first}"
                raise PredictionsError(fault, repair=Repair(repair, resize=ANY, crop=ANY))
            if image.dtype != images.dtype:  # a user's source may mix dtypes; the values must not change
                images = images.astype(np.result_type(images, image))
            images[len(indices)] = image
            indices.append(index)
    return np.array(indices, dtype=np.int64), images[: len(indices)]


def _fit_image(classifier: Classifier, source: Source, id_: str, image: Array) -> Array:
    """Return one image at the input size, [H, W, C]; errors contain its id."""
    return image if classifier.preprocessing.keeps(image.shape) else _fit(classifier, source, id_, [image])[0]


def _fit_block(classifier: Classifier, source: Source, block: "Array | Tensor", requested: range) -> "Array | Tensor":
    """Return images of the input size for the classifier, [n, H, W, C], on a GPU if possible."""
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
        where = f"image {id_!r} of {source.spec!r}"
        raise type(error).from_error(error, f"{where} does not fit the classifier: ") from error
