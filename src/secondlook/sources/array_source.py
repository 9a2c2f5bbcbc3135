"""Arrays of images: in memory, in a tensor on a GPU, or in a NumPy archive (`npz:FILE`)."""

import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike

from secondlook.arrays import Array, Float32Array, IntArray, default_ids, to_float32, validate_pixels
from secondlook.errors import SourceError, reject_failures
from secondlook.files import open_regular_file
from secondlook.sources.labels import to_text
from secondlook.sources.regular_files import (
    MAX_LOADED_BYTES,
    MAX_LOADED_ROWS,
    find_name,
    make_absolute,
    missing_root_error,
)
from secondlook.sources.source import OnError, ReadOptions, Source, as_index, check_image_bytes, source_scheme
from secondlook.specs import Spec

if TYPE_CHECKING:
    from torch import Tensor

BYTES_PER_BLOCK, BYTES_PER_CHECKED_BLOCK = 2**24, 2**18
LOCAL_HEADER_BYTES = 30
END_RECORD_BYTES = 22


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
        images = _validate_images(images, f"the images of {spec!r}")
        if not len(images):
            raise SourceError(f"no images in {spec!r} (shape {list(images.shape)}); expected at least one.")
        self.images = images
        ids = default_ids(len(images)) if ids is None else ids
        if len(ids) != len(images):
            raise SourceError(f"{len(ids)} ids for the {len(images)} images of {spec!r}; expected one id per image.")
        super().__init__(spec, ids, labels=labels, class_names=class_names, on_error=on_error)

    def read(self, index: int) -> Array:
        """Return a contiguous copy of one image, uint8 or float32 [H, W, 1 or 3]."""
        return np.array(self.images[int(index)], order="C")

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Return one image of at most `max_bytes`."""
        check_image_bytes(self.ids[index], "it takes", _count_bytes(self.images), max_bytes)
        return self.read(index)

    def read_block(self, positions: range | IntArray) -> "Array | Tensor | None":
        """Return several images, without a copy if possible; None if a copy would take more than `max_bytes`."""
        if getattr(self.read, "__func__", None) is not ArraySource.read:
            return None  # a subclass defines its images by `read`
        is_copied = isinstance(self.images, StoredImages) or not isinstance(positions, range)
        if is_copied and len(positions) * _count_bytes(self.images) > self.max_bytes:
            return None
        return self.images[as_index(positions)]

    def extract(self, positions: range | IntArray) -> "ArraySource | None":
        """Return a subset that reopens the file to read images; None for arrays in memory."""
        if type(self) is not ArraySource or not isinstance(self.images, StoredImages):
            return None
        return self._copy_part(positions, images=self.images.select(positions))


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
        """Return one image on the host, or several on their device, without a copy if possible."""
        import torch

        is_array = isinstance(positions, np.ndarray)
        pixels = self._pixels[torch.as_tensor(positions, device=self._pixels.device) if is_array else positions]
        pixels = pixels.float() if pixels.is_floating_point() else pixels
        return pixels.cpu().numpy() if isinstance(positions, int) else pixels

    def find_ranges(self) -> Float32Array:
        """Return the minimum and maximum of each image, float32 [N, 2]."""
        import torch

        pixels = self._pixels.flatten(1)
        ranges: Float32Array = torch.stack([pixels.amin(1), pixels.amax(1)], dim=1).float().cpu().numpy()
        return ranges


@dataclass(frozen=True, eq=False)
class StoredImages:
    """An array of images in C order in a part of a file. Every read opens the file.

    The file is not memory-mapped: truncating a mapped file kills the process that reads it. A change of the file's
    version (size and modification time) is an error.
    """

    path: Path
    version: tuple[int, int]
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    positions: range | IntArray

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice | IntArray) -> Array:
        """Read one image, or several at once. -> [...] or [n, ...]"""
        if isinstance(key, int):
            position = range(len(self))[key]
            image: Array = self[position : position + 1][0]
            return image
        chosen = self._choose(key)
        images = np.empty((len(chosen), *self.shape[1:]), dtype=self.dtype)
        parts = [(chosen.start, images)] if isinstance(chosen, range) else zip(chosen.tolist(), images, strict=True)
        try:
            with open_regular_file(self.path) as file:
                for position, part in parts:
                    file.seek(self.start + position * _count_bytes(self))
                    if file.readinto(part.data) != part.nbytes or _find_version(file) != self.version:
                        raise SourceError(f"{str(self.path)!r} has changed while it was in use; open it again.")
        except FileNotFoundError as error:
            raise missing_root_error(self.path) from error
        except OSError as error:
            raise SourceError(f"{str(self.path)!r} cannot be opened ({error.strerror}); make it readable.") from error
        return to_float32(images) if self.dtype.kind == "f" else images

    def select(self, positions: range | IntArray) -> "StoredImages":
        """Return a subset of the images in the same file; it can be read in another process."""
        return replace(self, positions=self._choose(as_index(positions)), shape=(len(positions), *self.shape[1:]))

    def _choose(self, key: slice | IntArray) -> range | IntArray:
        return self.positions[key] if isinstance(key, slice) else np.asarray(self.positions)[key]

    def find_ranges(self) -> Float32Array:
        """Return the minimum and maximum of each image, float32 [N, 2]."""
        count = max(1, BYTES_PER_BLOCK // _count_bytes(self))
        blocks = (
            self[first : first + count].reshape(-1, math.prod(self.shape[1:])) for first in range(0, len(self), count)
        )
        return np.concatenate([np.stack([block.min(1), block.max(1)], axis=1) for block in blocks])


def _count_bytes(images: "Array | StoredImages | DeviceImages") -> int:
    """Return the size of one image in bytes."""
    return math.prod(images.shape[1:]) * images.dtype.itemsize


def _validate_images(images: Any, name: str) -> Any:
    """Validate images and convert those in memory to uint8 or float32; of other images, only floats are read."""
    if not isinstance(images, StoredImages | DeviceImages):
        return validate_pixels(images, name, SourceError)
    is_float = images.dtype.kind == "f"
    empty = np.broadcast_to(np.zeros((), np.uint8 if is_float else images.dtype), images.shape)
    validate_pixels(empty, name, SourceError)
    if is_float and len(images):
        validate_pixels(images.find_ranges()[:, :, None, None], name, SourceError)
    return images


def _find_version(file: BinaryIO) -> tuple[int, int]:
    """Return the size and modification time of an open file, to detect changes."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


@source_scheme(
    "npz",
    form="npz:FILE.npz",
    summary="a NumPy archive with the array images, and optionally labels, class_names and ids",
    options=("images", "labels", "class_names"),
)
def open_npz(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open an archive. Uncompressed images are read one at a time; compressed images are decompressed once."""
    what = f"{str(spec.path)!r} cannot be read as a NumPy archive"
    with (
        reject_failures(what, "save it with numpy.savez", SourceError),
        open_regular_file(spec.path) as file,
        zipfile.ZipFile(file) as members,
    ):
        _check_directory(file, members)
        archive = _Archive(spec, file, members)
        images = archive.read_images(spec.options.get("images", "images"))
        labels, class_names, ids = (archive.read_optional_array(name) for name in ("labels", "class_names", "ids"))
    return ArraySource(
        images,
        spec=str(spec),
        ids=None if ids is None else [to_text(id_) for id_ in np.atleast_1d(ids)],
        labels=labels,
        class_names=class_names,
        on_error=read_options.on_error,
    )


def _check_directory(file: BinaryIO, members: zipfile.ZipFile) -> None:
    """Check the names and number of members: a damaged directory could hide the labels."""
    for member in members.infolist():
        members.open(member).close()  # compares the directory with the local header
    file.seek(-END_RECORD_BYTES - len(members.comment), os.SEEK_END)
    expected = int.from_bytes(file.read(END_RECORD_BYTES)[10:12], "little")
    if len(members.infolist()) != expected and expected != 0xFFFF:  # 0xFFFF means more
        raise zipfile.BadZipFile(f"its directory lists {len(members.infolist())} of {expected} members")


class _Header(NamedTuple):
    """The header of an array, and its size in bytes."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]
    n_bytes: int


class _Archive:
    """The arrays of an open archive. Sizes are checked before reading."""

    def __init__(self, spec: Spec, file: BinaryIO, members: zipfile.ZipFile) -> None:
        self.spec, self.file, self.members = spec, file, members
        self.loaded_bytes = 0

    def read_optional_array(self, name: str) -> Array | None:
        """Read an array, or return None if it is missing and the spec does not name it."""
        if name not in self.spec.options and f"{name}.npy" not in self.members.namelist():
            return None
        return self.read_array(self.spec.options.get(name, name))

    def read_images(self, name: str) -> Array | StoredImages:
        """Verify the checksum of an uncompressed array and open it, or read a compressed array."""
        member, header = self._find_array(name)
        if member.compress_type != zipfile.ZIP_STORED or header.fortran_order or 0 in header.shape:
            return self.read_array(name)
        with self.members.open(member) as file:
            while file.read(BYTES_PER_CHECKED_BLOCK):  # raises at the end if the checksum differs
                pass
        path, version, shape = make_absolute(self.spec.path), _find_version(self.file), header.shape
        start = self._find_data_start(member) + header.n_bytes
        return StoredImages(path, version, start, header.dtype, shape, range(shape[0]))

    def read_array(self, name: str) -> Array:
        """Read an array into memory and verify its checksum."""
        member, header = self._find_array(name)
        self.loaded_bytes += member.file_size
        if self.loaded_bytes > MAX_LOADED_BYTES:
            fault = f"the arrays of {str(self.spec.path)!r} take {self.loaded_bytes} bytes or more in memory, above the"
            repair = "save them with numpy.savez in C order, to read images one at a time"
            raise SourceError(f"{fault} limit of {MAX_LOADED_BYTES}", repair=repair)
        if math.prod(header.shape[:1]) > MAX_LOADED_ROWS:
            fault = f"{self._locate(name)} has length {header.shape[0]}, above the limit of {MAX_LOADED_ROWS}"
            raise SourceError(fault, repair="split the archive")
        with self.members.open(member) as file:
            return npy.read_array(file, allow_pickle=False)

    def _find_array(self, name: str) -> tuple[zipfile.ZipInfo, _Header]:
        known = [member.removesuffix(".npy") for member in self.members.namelist() if member.endswith(".npy")]
        member = self.members.getinfo(f"{find_name(name, known, 'array', str(self.spec.path))}.npy")
        # The other decompressors of `zipfile` do not limit the size of the output.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            fault = f"{self._locate(name)} uses compression method {member.compress_type}"
            raise SourceError(fault, repair="save it with numpy.savez_compressed")
        header = self._read_header(member)
        if header.dtype.hasobject:
            fault = f"{self._locate(name)} contains pickled Python objects, which are never loaded"
            raise SourceError(fault, repair="save it with a plain dtype (numbers, or text like '<U20')")
        n_bytes = header.n_bytes + math.prod(header.shape) * header.dtype.itemsize
        if n_bytes != member.file_size or min(header.shape, default=0) < 0 or not header.dtype.itemsize:
            needed = f"{header.dtype} {list(header.shape)} needs {n_bytes}"
            fault = f"{self._locate(name)} has {member.file_size} bytes, but {needed}"
            raise SourceError(fault, repair="save it again with numpy.savez")
        return member, header

    def _locate(self, name: str) -> str:
        return f"array {name!r} of {str(self.spec.path)!r}"

    def _read_header(self, member: zipfile.ZipInfo) -> _Header:
        with self.members.open(member) as file:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"unknown version {version} of the .npy format")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            return _Header(*read(file), file.tell())

    def _find_data_start(self, member: zipfile.ZipInfo) -> int:
        """Return the offset of a member's data; only the local header contains its own length."""
        self.file.seek(member.header_offset)
        header = self.file.read(LOCAL_HEADER_BYTES)
        name_length, extra_length = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        return member.header_offset + LOCAL_HEADER_BYTES + name_length + extra_length
