"""Images stored uncompressed in a file, read when they are needed."""

import copy
import io
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from secondlook.arrays import Array, IntArray, describe_image_fault
from secondlook.errors import SourceError
from secondlook.sources.regular_files import missing_root_error, open_regular_file

BYTES_PER_BLOCK = 2**24
DEVICE_AND_INODE = 2


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
        self._positions: range | IntArray = range(shape[0])
        self._file = _UnchangedFile(path)

    @property
    def status(self) -> tuple[int, ...]:
        """What identifies the content of the file, as `read_status` returns it."""
        return self._file.status

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Array:
        """Read one image."""
        position = range(len(self))[index]
        image: Array = self.read_range(range(position, position + 1))[0]
        return image

    def read_range(self, positions: range) -> Array:
        """Read consecutive images at once. -> [n, ...]"""
        images = self._read(self._positions[positions.start : positions.stop])
        return images if self._axes is None else images.transpose(0, *(1 + axis for axis in self._axes))

    def select(self, positions: range | IntArray) -> "StoredImages":
        """Return some of the images, which are read from the same file, also in another process."""
        selected = copy.copy(self)
        if isinstance(positions, range):
            selected._positions = self._positions[positions.start : positions.stop]
        elif isinstance(self._positions, range):
            selected._positions = positions + self._positions.start
        else:
            selected._positions = self._positions[positions]
        selected.shape = (len(positions), *self.shape[1:])
        return selected

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
            yield self._read(self._positions[first : first + count])

    def _read(self, positions: range | IntArray) -> Array:
        """Read the images at positions of the file. -> [n, ...], with the axes as they are stored"""
        images = np.empty((len(positions), *self._stored_shape), dtype=self.dtype)
        if isinstance(positions, range):
            self._file.read_into(self._start + positions.start * self.image_bytes, images)
        else:
            for image, position in zip(images, positions.tolist(), strict=True):
                self._file.read_into(self._start + position * self.image_bytes, image)
        return images


class _UnchangedFile:
    """A file whose change is an error; after it was sent to another process, it is opened again on the first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: io.BufferedReader | None = self._open()
        self.status = read_status(self._file)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": Path(os.path.abspath(self.path)), "status": self.status}  # noqa: PTH100 - keep links

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _file=None)

    def read_into(self, start: int, content: Array) -> None:
        """Fill an array with what follows the offset `start`."""
        with self._lock:
            if self._file is None:
                self._file = self._reopen()
            self._file.seek(start)
            n_read = self._file.readinto(content.data)
            is_changed = read_status(self._file) != self.status
        if is_changed or n_read != content.nbytes:
            raise self._changed_error()

    def _open(self) -> io.BufferedReader:
        file = open_regular_file(self.path)
        weakref.finalize(self, file.close)
        return file

    def _reopen(self) -> io.BufferedReader:
        try:
            file = self._open()
        except FileNotFoundError as error:
            raise missing_root_error(self.path) from error
        except OSError as error:
            raise SourceError(f"{str(self.path)!r} cannot be opened ({error.strerror}); make it readable.") from error
        status = read_status(file)
        if status[DEVICE_AND_INODE:] != self.status[DEVICE_AND_INODE:]:  # which differ between machines
            raise self._changed_error()
        self.status = status
        return file

    def _changed_error(self) -> SourceError:
        return SourceError(f"{str(self.path)!r} has changed while it was in use; open it again.")


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
