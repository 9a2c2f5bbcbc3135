"""Decoding: from the images of a source to arrays at the input size of a classifier, chunk by chunk."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import Classifier
from secondlook.errors import ClassifierError, PredictionsError
from secondlook.predictions.manifest import SkippedImage
from secondlook.sources import Source

DECODED_AT_ONCE = 16
"""Number of images held at their original size before they are resized; fewer where they exceed `max_bytes`."""


@dataclass(frozen=True)
class DecodedChunk:
    """The readable images of one chunk at the input size, [n, H, W, C], with their source indices, int64 [n]."""

    number: int
    indices: IntArray
    images: Array
    skipped: tuple[SkippedImage, ...]


def read_first_image(classifier: Classifier, source: Source) -> Array:
    """Return the first readable image at the input size, [H, W, C]; its size determines how many fit in memory."""
    for batch in source.batches(1):
        return _fit_image(classifier, source, batch.ids[0], batch.images[0])
    raise PredictionsError(
        f"none of the {len(source)} images of {source.spec!r} could be read; "
        f"the first is {source.skipped[0].id!r}: {source.skipped[0].reason}"
    )


def decode_chunk(classifier: Classifier, source: Source, number: int, requested: range) -> DecodedChunk:
    """Read the images at the requested source indices, and fit them to the classifier."""
    read, inputs = [], []
    for batch in source.batches(DECODED_AT_ONCE, requested.start, requested.stop):
        read.append(batch.indices)
        for id_, image in zip(batch.ids, batch.images, strict=True):
            inputs.append(_fit_image(classifier, source, id_, image))
        del batch, image  # the images must not stay in memory while the next ones are decoded
    indices = np.concatenate(read) if read else np.empty(0, dtype=np.int64)
    _check_same_shape(inputs, indices, source)
    images = np.stack(inputs) if inputs else np.empty((0, 1, 1, 1), dtype=np.uint8)
    return DecodedChunk(number, indices, images, _list_skipped(source, requested, indices))


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
