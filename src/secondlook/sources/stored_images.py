"""Images stored uncompressed in a file, read when they are needed."""

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from secondlook.arrays import Array, describe_image_fault
from secondlook.errors import SourceError
from secondlook.sources.regular_files import open_regular_file

BYTES_PER_BLOCK = 2**24


class StoredImages:
    """An array of images in C order in a part of a file, read when they are needed.

    The file is not memory-mapped, because a process that reads a mapped file is killed if the file is truncated. A file
    that has changed since it was opened is an error.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        start: int = 0,
        axes: tuple[int, ...] | None = None,
    ) -> None:
        """Open a file; `axes` is the order in which to return the axes of a stored image, as in `numpy.transpose`."""
        self.path = path
        self.dtype = dtype
        self.shape = shape if axes is None else (shape[0], *(shape[1 + axis] for axis in axes))
        self._stored_shape = shape[1:]
        self._axes = axes
        self._start = start
        self._lock = threading.Lock()
        self._file = open_regular_file(path)
        weakref.finalize(self, self._file.close)
        self.status = read_status(self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Array:
        """Read one image."""
        position = range(len(self))[index]
        image: Array = self.read_range(range(position, position + 1))[0]
        return image

    def read_range(self, positions: range) -> Array:
        """Read consecutive images at once. -> [n, ...]"""
        images = self._read(positions.start, len(positions))
        return images if self._axes is None else images.transpose(0, *(1 + axis for axis in self._axes))

    @property
    def image_bytes(self) -> int:
        """Number of bytes of one image."""
        return math.prod(self._stored_shape) * self.dtype.itemsize

    def describe_fault(self) -> str | None:
        """Return how these images fail to be uint8, or float32 in [0, 1], [N, H, W, 1 or 3]; None where they do not."""
        return describe_fault(self.dtype, self.shape, self._find_range)

    def _find_range(self) -> tuple[float, float]:
        ranges = np.array([(block.min(), block.max()) for block in self._blocks()], dtype=np.float32)
        return float(ranges[:, 0].min()), float(ranges[:, 1].max())

    def _blocks(self) -> Iterator[Array]:
        count = max(1, BYTES_PER_BLOCK // self.image_bytes)
        for first in range(0, len(self), count):
            yield self._read(first, min(count, len(self) - first))

    def _read(self, first: int, count: int) -> Array:
        images = np.empty((count, *self._stored_shape), dtype=self.dtype)
        with self._lock:
            self._file.seek(self._start + first * self.image_bytes)
            n_read = self._file.readinto(images.data)
            is_changed = read_status(self._file) != self.status
        if is_changed or n_read != images.nbytes:
            raise SourceError(f"{str(self.path)!r} has changed while it was in use; open it again.")
        return images


def describe_fault(
    dtype: np.dtype[Any], shape: tuple[int, ...], find_range: Callable[[], tuple[float, float]]
) -> str | None:
    """Return how images that are not in memory fail to be images; `find_range` finds their lowest and highest value."""
    is_float = dtype == np.float32
    outline = np.broadcast_to(np.zeros((), dtype=np.uint8 if is_float else dtype), shape)
    fault = describe_image_fault(outline)
    if fault is not None or not is_float or not shape[0]:
        return fault
    return describe_image_fault(np.array(find_range(), dtype=np.float32).reshape(2, 1, 1, 1))


def read_status(file: BinaryIO) -> tuple[int, ...]:
    """Return what identifies the content of an open file: device, inode, size and modification time."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
