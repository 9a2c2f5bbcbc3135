"""Batches that fit: how many images at once, and what to do when memory runs out."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.errors import PredictionsError

BatchSize = int | Literal["auto"]

PIXELS_PER_BATCH = 2**22
PART_BYTES = 64 * 2**20
_WORDS_OF_FAILED_ALLOCATION = (
    "failed to allocate memory",
    "out of memory",
    "bfcarena",
    "cuda_error_out_of_memory",
    "bad_alloc",
)


def choose_batch_size(batch_size: BatchSize, image: Array) -> int:
    """Return the number of images per batch; 'auto' goes by the pixels of one [H, W, C], from 8 to 256."""
    if batch_size == "auto":
        return min(256, max(8, _power_of_two_up_to(PIXELS_PER_BATCH // (image.shape[0] * image.shape[1]))))
    if type(batch_size) is not int or batch_size < 1:  # True is an int, but no number of images
        raise PredictionsError(f"batch_size is {batch_size!r}; expected 'auto' or a number of images, at least 1.")
    return batch_size


def chunk_rows(image: Array) -> int:
    """Return how many images make one part: their pixels, [H, W, C] each, are held in memory together."""
    return min(1024, max(16, _power_of_two_up_to(PART_BYTES // image.nbytes)))


def _power_of_two_up_to(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


class HalvingBatches:
    """A classifier that is given smaller batches for good once a batch did not fit in memory."""

    def __init__(self, classify: Callable[[Array], Float32Array], batch_size: int) -> None:
        self._classify = classify
        self.batch_size = batch_size

    def __call__(self, images: Array) -> Float32Array:
        """Return the answers float32 [n, C] to images [n, H, W, C]."""
        answers: list[Float32Array] = []
        done = 0
        while done < len(images):
            batch = images[done : done + self.batch_size]
            try:
                answers.append(self._classify(batch))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(len(batch), error)
            else:
                done += len(batch)
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def _halve(self, tried: int, error: Exception) -> None:
        if tried == 1:
            raise PredictionsError(
                f"the classifier ran out of memory on a single image ({_first_line(error)}); "
                "use a smaller input size, a smaller classifier or a machine with more memory."
            ) from error
        self.batch_size = tried // 2


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or the one that caused it, says that memory ran out, in whatever way its library says so."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower()
    return any(words in message for words in _WORDS_OF_FAILED_ALLOCATION) or is_out_of_memory(error.__cause__)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__
