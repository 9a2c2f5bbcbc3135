"""Arrays of images: in memory, uncompressed in a file, or in a tensor on a GPU."""

import copy
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray, check_pixels, default_ids
from secondlook.errors import SecondLookError, SourceError
from secondlook.sources.regular_files import make_absolute, missing_root_error, open_regular_file
from secondlook.sources.source import OnError, Source, as_index, check_image_bytes

if TYPE_CHECKING:
    from torch import Tensor

BYTES_PER_BLOCK = 2**24


class ArraySource(Source):
    """An array of images in memory, in a file or on a GPU: uint8, or float32 in [0, 1]; [N, H, W, 1 or 3]."""

    def __init__(
        self,
        images: "Array | StoredImages | DeviceImages",
        *,
        spec: str | None = None,
        ids: Sequence[str] | None = None,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
        on_error: OnError = "fail",
    ) -> None:
        spec = f"array:{list(np.shape(images))}" if spec is None else spec
        check = _check_elsewhere if isinstance(images, StoredImages | DeviceImages) else check_pixels
        check(images, f"the images of {spec!r}", SourceError)
        if not len(images):
            raise SourceError(f"no images in {spec!r} (shape {list(images.shape)}); expected at least one.")
        self.images = images
        ids = default_ids(len(images)) if ids is None else ids
        if len(ids) != len(images):
            raise SourceError(f"{len(ids)} ids for the {len(images)} images of {spec!r}; expected one id per image.")
        super().__init__(spec, ids, labels=labels, class_names=class_names, on_error=on_error)

    def read(self, index: int) -> Array:
        """Return a contiguous copy of one image, uint8 or float32 [H, W, 1 or 3]."""
        image = self.images[index]
        return np.array(image, order="C") if isinstance(self.images, np.ndarray) else np.ascontiguousarray(image)

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Return one image, if it takes at most `max_bytes`."""
        check_image_bytes(self.ids[index], "it takes", self._image_bytes, max_bytes)
        return self.read(index)

    def read_block(self, positions: range | IntArray) -> "Array | Tensor | None":
        """Return images together where they are, without a copy where possible. -> uint8 or float32 [n, H, W, 1 or 3]

        Images are read one by one, and the block is None, where a copy would take more than `max_bytes`.
        """
        if getattr(self.read, "__func__", None) is not ArraySource.read:
            return None  # the images of a subclass are those that its `read` returns
        is_copied = isinstance(self.images, StoredImages) or not isinstance(positions, range)
        if is_copied and len(positions) * self._image_bytes > self.max_bytes:
            return None
        if isinstance(self.images, StoredImages):
            return self.images.read_range(positions) if isinstance(positions, range) else None
        return self.images[as_index(positions)]

    def extract(self, positions: range | IntArray) -> "ArraySource | None":
        """Return some of the images of a file, which is opened again where they are read; None for other arrays."""
        if type(self) is not ArraySource or not isinstance(self.images, StoredImages):
            return None
        return self._copy_part(positions, images=self.images.select(positions))

    @property
    def _image_bytes(self) -> int:
        return math.prod(self.images.shape[1:]) * self.images.dtype.itemsize


class DeviceImages:
    """A torch tensor [N, C, H, W] on a GPU as images [N, H, W, C]: uint8, or float32 converted block by block."""

    def __init__(self, tensor: "Tensor") -> None:
        self._pixels = tensor.detach().movedim(-3, -1)
        self.shape = tuple(self._pixels.shape)
        is_float = self._pixels.is_floating_point()
        self.dtype = np.dtype("float32" if is_float else str(tensor.dtype).removeprefix("torch."))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, positions: int | slice | IntArray) -> Any:
        """Return one image on the host, or several on their device, without a copy where possible."""
        import torch

        is_array = isinstance(positions, np.ndarray)
        pixels = self._pixels[torch.as_tensor(positions, device=self._pixels.device) if is_array else positions]
        pixels = pixels.float() if pixels.is_floating_point() else pixels
        return pixels.cpu().numpy() if isinstance(positions, int) else pixels

    def find_range(self) -> tuple[float, float]:
        """Return the lowest and the highest value."""
        import torch

        low, high = torch.stack(torch.aminmax(self._pixels)).float().tolist()
        return low, high


class StoredImages:
    """An array of images in C order in a part of a file, which is opened for each read.

    It is not memory-mapped, because a process that reads a mapped file is killed if the file is truncated. A file whose
    version (size and modification time) is another one than when its images were found is an error.
    """

    def __init__(
        self, path: Path, version: tuple[int, int], dtype: np.dtype[Any], shape: tuple[int, ...], start: int = 0
    ) -> None:
        self.path = make_absolute(path)
        self.dtype = dtype
        self.shape = shape
        self._version = version
        self._start = start
        self._positions: range | IntArray = range(shape[0])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Array:
        """Read one image."""
        position = range(len(self))[index]
        image: Array = self.read_range(range(position, position + 1))[0]
        return image

    def read_range(self, positions: range) -> Array:
        """Read consecutive images at once. -> [n, ...]"""
        chosen = self._positions[positions.start : positions.stop]
        images = np.empty((len(chosen), *self.shape[1:]), dtype=self.dtype)
        parts = [(chosen.start, images)] if isinstance(chosen, range) else zip(chosen.tolist(), images, strict=True)
        try:
            with open_regular_file(self.path) as file:
                for position, part in parts:
                    file.seek(self._start + position * math.prod(self.shape[1:]) * self.dtype.itemsize)
                    if file.readinto(part.data) != part.nbytes or find_version(file) != self._version:
                        raise SourceError(f"{str(self.path)!r} has changed while it was in use; open it again.")
        except FileNotFoundError as error:
            raise missing_root_error(self.path) from error
        except OSError as error:
            raise SourceError(f"{str(self.path)!r} cannot be opened ({error.strerror}); make it readable.") from error
        return images

    def select(self, positions: range | IntArray) -> "StoredImages":
        """Return some of the images, which are read from the same file, also in another process."""
        selected = copy.copy(self)
        if isinstance(positions, range):
            selected._positions = self._positions[positions.start : positions.stop]
        else:
            selected._positions = np.asarray(self._positions)[positions]
        selected.shape = (len(positions), *self.shape[1:])
        return selected

    def find_range(self) -> tuple[float, float]:
        """Return the lowest and the highest value."""
        count = max(1, BYTES_PER_BLOCK // (math.prod(self.shape[1:]) * self.dtype.itemsize))
        blocks = (self.read_range(range(first, first + count)) for first in range(0, len(self), count))
        ranges = np.array([(block.min(), block.max()) for block in blocks], dtype=np.float32)
        return float(ranges[:, 0].min()), float(ranges[:, 1].max())


def _check_elsewhere(images: Any, name: str, error: type[SecondLookError]) -> None:
    """Check images that are not in memory; only floats are read for it."""
    is_float = images.dtype == np.float32
    check_pixels(np.broadcast_to(np.zeros((), np.uint8 if is_float else images.dtype), images.shape), name, error)
    if is_float and len(images):
        check_pixels(np.array(images.find_range(), dtype=np.float32).reshape(2, 1, 1, 1), name, error)


def find_version(file: BinaryIO) -> tuple[int, int]:
    """Return what changes with the content of an open file: its size and modification time."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
