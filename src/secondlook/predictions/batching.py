"""Sizes of batches for the classifier, of chunks of a store, and of blocks read into memory."""

import re
from dataclasses import dataclass
from typing import Literal

from secondlook.arrays import Array, round_down_to_power_of_two
from secondlook.classifiers import Classifier
from secondlook.errors import PredictionsError

BatchSize = int | Literal["auto"]

PIXELS_PER_BATCH = 2**22
CHUNK_BYTES = 64 * 2**20
"""Approximate size of the decoded images of one chunk."""
CHUNK_ROWS = 1024
"""Largest number of images in a chunk by default."""
_BLOCK_BYTES = 32 * 2**20
"""Approximate size of one block of outputs in float64."""

_OUT_OF_MEMORY = re.compile("failed to allocate memory|out of memory|bfcarena|out_of_memory|bad_alloc", re.IGNORECASE)


def choose_batch_size(batch_size: BatchSize, image: Array, classifier: Classifier | None = None) -> int:
    """Return the number of images per batch.

    'auto' chooses 8 to 256 by the size of an input image [H, W, C], or enough images to fill the classifier's GPUs.
    """
    if batch_size == "auto":
        on_gpus = None if classifier is None else classifier.find_batch_size(image)
        if on_gpus is not None:
            return on_gpus
        return min(256, max(8, round_down_to_power_of_two(PIXELS_PER_BATCH // (image.shape[0] * image.shape[1]))))
    check_size("batch_size", batch_size)
    return batch_size


def check_size(name: str, size: object) -> None:
    """Check a number of images."""
    if type(size) is not int or size < 1:  # True is an int, but not a size
        raise PredictionsError("is invalid; expected a number of images of at least 1", argument=name, value=size)


def chunk_rows(image: Array, most: int = CHUNK_ROWS, n_bytes: int | None = None) -> int:
    """Return the number of images per chunk; the inputs [H, W, C] of a chunk must fit in memory."""
    return min(most, round_down_to_power_of_two((n_bytes or CHUNK_BYTES) // image.nbytes))


def block_rows(views: int, classes: int, rows_per_read: int = 1) -> int:
    """Return the number of images per block: a power of two, to align blocks with stored row groups."""
    return max(rows_per_read, round_down_to_power_of_two(_BLOCK_BYTES // (8 * views * classes)))


@dataclass(frozen=True)
class Chunking:
    """Division of `images` images into chunks of `rows` images; the last chunk may be smaller."""

    images: int
    rows: int

    @property
    def numbers(self) -> range:
        """The chunk numbers."""
        return range(-(-self.images // self.rows))

    def indices_of(self, number: int) -> range:
        """Return the source indices of the images in a chunk."""
        return range(number * self.rows, min((number + 1) * self.rows, self.images))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is an out-of-memory error of any library."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return _OUT_OF_MEMORY.search(str(error)) is not None or is_out_of_memory(error.__cause__)
