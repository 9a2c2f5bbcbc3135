"""Sources: images with ids and labels, read one batch at a time, and the registry of source schemes."""

import copy
import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray, default_ids, describe_image_fault
from secondlook.errors import Repair, SourceError
from secondlook.registry import Registry
from secondlook.sources.device_images import DeviceImages
from secondlook.sources.labels import validate_class_names, validate_ids, validate_labels
from secondlook.sources.reading_threads import ReadingThreads, SharedMemory
from secondlook.sources.stored_images import StoredImages
from secondlook.specs import Spec

if TYPE_CHECKING:
    from torch import Tensor

OnError = Literal["fail", "skip"]

DECODING_THREADS = min(32, os.cpu_count() or 1)
IMAGES_PER_HASHING_BLOCK = 256
BYTES_HASHED_PER_TASK = 2**16
"""Smaller images are hashed faster than a thread picks up a task."""

MAX_BYTES = 512_000_000
"""Maximum size of the decoded images that a source holds at once, in bytes."""


@dataclass(frozen=True)
class ReadOptions:
    """What to do with unreadable images, the maximum number of pixels per image, and that of decoded bytes at once."""

    on_error: OnError = "fail"
    max_pixels: int = 100_000_000
    max_bytes: int = MAX_BYTES


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read, and why."""

    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Batch:
    """Images in source order: indices int64 [n], ids, and images uint8 [H, W, 1 or 3], whose sizes may differ."""

    indices: IntArray
    ids: tuple[str, ...]
    images: list[Array]


class UnreadableImageError(SourceError):
    """An image that cannot be read; with on_error="skip" it is skipped instead.

    Digests and stored predictions contain the reasons, so the wording of a reason must not change.
    """

    def __init__(
        self, where: str, reason: str, *, repair: str = "repair or remove it", skippable: bool = False
    ) -> None:
        full = Repair(f"{repair}, or pass {{on_error}}", on_error="skip") if skippable else repair
        super().__init__(f"image {where} cannot be read: {reason}", repair=full)
        self.where = where
        self.reason = reason
        self.plain_repair = repair


class LargeImageError(UnreadableImageError):
    """An image that takes more memory than allowed: `n_bytes` bytes."""

    def __init__(self, where: str, reason: str, n_bytes: int) -> None:
        super().__init__(where, reason, repair=suggest_limit("max_bytes", n_bytes))
        self.n_bytes = n_bytes


def suggest_limit(option: str, value: int) -> str:
    """Return how to read an image that is above a limit."""
    return f"pass {option}={value} (in a spec: ?{option}={value}) to read it, or make it smaller or remove it"


class Source(ABC):
    """Images with ids and, where known, labels and class names.

    Subclasses pass the ids to `__init__` and implement `read`.
    """

    threads: int = 1
    """Number of threads that read images; more than one pays off where reading decodes a file."""

    max_bytes: int = MAX_BYTES
    """Maximum total size of the images of a batch in bytes, except for a single image."""

    def __init__(
        self,
        spec: str,
        ids: Sequence[str],
        *,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
        on_error: OnError = "fail",
    ) -> None:
        self.spec = spec
        self.ids: Sequence[str] = validate_ids(ids, spec)
        self.class_names = None if class_names is None else validate_class_names(class_names, spec)
        self.labels: IntArray | None = None
        if labels is not None:
            self.labels, self.class_names = validate_labels(labels, len(self.ids), self.class_names, spec)
        self.on_error = on_error
        # Keyed by id: a source may be read more than once, and each skipped image is listed once.
        self._skipped: dict[str, Skipped] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec!r}: {len(self)} images>"

    @property
    def skipped(self) -> list[Skipped]:
        """The images skipped so far, each listed once; always empty with on_error="fail"."""
        return list(self._skipped.values())

    def with_on_error(self, on_error: OnError) -> Self:
        """Return a copy with another `on_error` and an empty list of skipped images."""
        changed = copy.copy(self)
        changed.on_error, changed._skipped = on_error, {}
        return changed

    def without_labels(self) -> Self:
        """Return a copy without labels and class names."""
        unlabeled = copy.copy(self)
        unlabeled.labels = unlabeled.class_names = None
        unlabeled.__dict__.pop("_content_summary", None)  # a cached digest covers labels and class names
        return unlabeled

    def extract(self, positions: range | IntArray) -> "Source | None":
        """Return a source of some of the images, without labels, to be read in another process or on another machine.

        It is pickled at a size that depends on these images only, and has the same ids, images and reasons. Images are
        read from where they are stored; None where they are in memory only, or how they are stored is not known.
        """
        return None

    def _copy_part(self, positions: range | IntArray, **attributes: object) -> Self:
        """Return a copy with the ids of some images, without labels, and with other attributes."""
        part = self.with_on_error(self.on_error).without_labels()
        part.ids = tuple(self.ids[position] for position in positions)
        vars(part).update(attributes)
        return part

    @abstractmethod
    def read(self, index: int) -> Array:
        """Return one image, uint8 [H, W, 1 or 3], or raise `UnreadableImageError`."""

    def is_readable(self, index: int) -> bool:
        """Whether one image can be read, which is tried."""
        try:
            self.read(index)
        except UnreadableImageError:
            return False
        return True

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Return one image, or raise `LargeImageError` before reading its pixels if they take more than `max_bytes`.

        Without an override, images are read whatever their size.
        """
        return self.read(index)

    def read_block(self, positions: range | IntArray) -> "Array | Tensor | None":
        """Return one or more images of equal size together, [n, H, W, 1 or 3]; None to have them read one by one.

        The block may be on a GPU, and may share memory with the images of the source: do not write to it. A
        source that has blocks must allow several threads to read.
        """
        return None

    def hash_content(self, index: int) -> bytes:
        """Return a digest of the content of one image: of its pixels, or, for files, of the bytes of the file."""
        try:
            return hash_pixels(self.read(index))
        except UnreadableImageError as error:
            return error.reason.encode()

    @property
    def digest(self) -> str:
        """The sha256 (hex) of class names, ids, labels and image contents, in order."""
        return self._content_summary[0]

    def find_duplicates(self) -> list[int]:
        """Return the positions of the images that have the same pixels as an earlier one, in order."""
        seen: set[bytes] = set()
        duplicates = []
        for index in self._content_summary[1]:
            try:
                pixels = hash_pixels(self.read(index))
            except UnreadableImageError:
                continue
            if pixels in seen:
                duplicates.append(index)
            seen.add(pixels)
        return duplicates

    @cached_property
    def _content_summary(self) -> tuple[str, list[int]]:
        """The digest, and the positions of images whose content hash is not unique.

        Equal hashes are no proof of equal images: for very large sources they cover sizes and times of files only.
        """
        total = hashlib.sha256(json.dumps(self.class_names).encode())
        labels: Iterable[int | None] = repeat(None, len(self)) if self.labels is None else self.labels.tolist()
        first_position: dict[bytes, int] = {}
        candidates: set[int] = set()
        for index, (id_, label, content) in enumerate(zip(self.ids, labels, self._hash_contents(), strict=True)):
            # One line of JSON per image: no two lists of images have the same text. `json.dumps` takes twice as long.
            label_text = "null" if label is None else label
            total.update(f'\n[{encode_basestring_ascii(id_)}, {label_text}, "{content.hex()}"]'.encode())
            first = first_position.setdefault(content, index)
            if first != index:
                candidates |= {first, index}
        return total.hexdigest(), sorted(candidates)

    def batches(self, batch_size: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Read the images from `start` to `stop` in order; batches omit skipped images and are never empty.

        A batch has fewer than `batch_size` images where they would take more than `max_bytes`.
        """
        stop = len(self) if stop is None else stop
        if batch_size < 1:
            raise SourceError(f"batch_size={batch_size} for {self.spec!r}; expected 1 or more.")
        if not 0 <= start <= stop <= len(self):
            raise SourceError(
                f"start={start}, stop={stop} is out of range for {self.spec!r}; expected 0 <= start <= stop <="
                f" {len(self)}."
            )
        return self._read_batches(range(start, stop), batch_size)

    def convert_images(
        self, convert: Callable[[str, Array], Array], positions: range, threads: int | None = None
    ) -> Generator[tuple[int, Array], None, None]:
        """Yield the position and `convert(id, image)` of each image in order, without skipped images.

        Each image is converted by the thread that reads it and held until then: one image per thread, and together at
        most `max_bytes`, except for a single image. By default, the threads are those of the source.
        """
        threads = self.threads if threads is None else threads
        memory = SharedMemory(self.max_bytes, threads)
        with ReadingThreads(threads) as readers:
            results = readers.map(lambda index: self._convert_within(index, convert, memory), positions)
            for index, result in zip(positions, results, strict=True):
                if isinstance(result, Skipped):
                    self._skipped[result.id] = result
                else:
                    yield index, result

    def _convert_within(
        self, index: int, convert: Callable[[str, Array], Array], memory: SharedMemory
    ) -> Array | Skipped:
        """Read and convert one image; one above the share of a thread waits for memory."""
        with memory.reserve(memory.share):
            result = self._try_convert(index, convert, memory.share)
        if not isinstance(result, int):
            return result
        with memory.reserve(result):
            return cast(Array | Skipped, self._try_convert(index, convert))

    def _try_convert(
        self, index: int, convert: Callable[[str, Array], Array], max_bytes: int | None = None
    ) -> Array | Skipped | int:
        result = self._try_read(index, max_bytes)
        return result if isinstance(result, Skipped | int) else convert(self.ids[index], result)

    def _read_batches(self, positions: range, batch_size: int) -> Iterator[Batch]:
        with ReadingThreads(self.threads) as readers:
            for first in range(0, len(positions), batch_size):
                yield from self._read_together(readers, positions[first : first + batch_size])

    def _read_together(self, readers: ReadingThreads, positions: range) -> Iterator[Batch]:
        """Read images together if they are small, and otherwise as many at a time as `max_bytes` allows."""
        share = self.max_bytes // len(positions)
        results = list(readers.map(lambda index: self._try_read(index, share), positions))
        groups = [positions]
        if any(isinstance(result, int) for result in results):
            groups = _split_by_size(positions, [_measure_result(result) for result in results], self.max_bytes)
            results = []  # the small images are read again: they must not add to the large ones
        for group in groups:
            batch = self._make_batch(group, results or readers.map(self._try_read, group))
            if batch.images:
                yield batch
            del batch  # its images must not stay in memory while the next ones are read

    def _try_read(self, index: int, max_bytes: int | None = None) -> Array | Skipped | int:
        """Read one image; return its size in bytes instead if it takes more than `max_bytes`.

        Errors are not returned, because their tracebacks would keep what was decoded in memory.
        """
        try:
            return self.read(index) if max_bytes is None else self.read_within(index, max_bytes)
        except UnreadableImageError as error:
            if max_bytes is not None and isinstance(error, LargeImageError):
                return error.n_bytes
            if self.on_error == "fail":
                raise UnreadableImageError(
                    error.where, error.reason, repair=error.plain_repair, skippable=True
                ) from error
            return Skipped(self.ids[index], error.reason)

    def _make_batch(self, positions: range, results: Iterable[Array | Skipped | int]) -> Batch:
        images: dict[int, Array] = {}
        for index, result in zip(positions, results, strict=True):
            if isinstance(result, Skipped):
                self._skipped[result.id] = result
            elif not isinstance(result, int):
                images[index] = result
        return Batch(np.array(list(images), dtype=np.int64), tuple(self.ids[i] for i in images), list(images.values()))

    def _hash_contents(self) -> Iterator[bytes]:
        with ReadingThreads(self.threads) as readers:
            for first in range(0, len(self), IMAGES_PER_HASHING_BLOCK):
                positions = range(first, min(first + IMAGES_PER_HASHING_BLOCK, len(self)))
                block = self.read_block(positions) if self._hashes_pixels else None
                if block is None:
                    yield from readers.map(self.hash_content, positions)
                else:
                    yield from _hash_images(block if isinstance(block, np.ndarray) else block.cpu().numpy())

    @property
    def _hashes_pixels(self) -> bool:
        """Whether `hash_content` hashes the pixels."""
        return getattr(self.hash_content, "__func__", None) is Source.hash_content


def _measure_result(result: Array | Skipped | int) -> int:
    if isinstance(result, int):
        return result
    return 0 if isinstance(result, Skipped) else result.nbytes


def _split_by_size(positions: range, sizes: Sequence[int], max_bytes: int) -> list[range]:
    """Split positions into ranges whose sizes add up to at most `max_bytes`; one larger image is a range of its own."""
    ranges, first, total = [], 0, 0
    for place, size in enumerate(sizes):
        if place > first and total + size > max_bytes:
            ranges.append(positions[first:place])
            first, total = place, 0
        total += size
    return [*ranges, positions[first:]]


def _hash_images(images: Array) -> Iterator[bytes]:
    """Yield `hash_pixels` of each image, [N, H, W, C]."""
    images = np.ascontiguousarray(images)
    if images[0].nbytes < BYTES_HASHED_PER_TASK:
        start = _start_hash(images[0])
        for image in images:
            total = start.copy()
            total.update(image.data)
            yield total.digest()
        return
    with ThreadPoolExecutor(DECODING_THREADS) as pool:
        yield from pool.map(hash_pixels, images)


def hash_pixels(image: Array) -> bytes:
    """Return the sha256 of an array: dtype, shape and values."""
    pixels = np.ascontiguousarray(image)
    total = _start_hash(pixels)
    total.update(pixels.data)
    return total.digest()


def _start_hash(pixels: Array) -> "hashlib._Hash":
    return hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode())


class ArraySource(Source):
    """An array of images in memory, in a file or on a GPU: uint8, or float32 in [0, 1]; [N, H, W, 1 or 3]."""

    def __init__(
        self,
        images: Array | StoredImages | DeviceImages,
        *,
        spec: str | None = None,
        ids: Sequence[str] | None = None,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
        on_error: OnError = "fail",
    ) -> None:
        spec = f"array:{list(np.shape(images))}" if spec is None else spec
        if isinstance(images, StoredImages | DeviceImages):
            fault = images.describe_fault()
        else:
            fault = describe_image_fault(images)
        if fault is not None:
            raise SourceError(f"the images of {spec!r} {fault}.")
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
        """Return one image, or raise `LargeImageError` if it takes more than `max_bytes`."""
        check_image_bytes(self.ids[index], self._image_bytes, max_bytes)
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
        key = as_index(positions)
        return self.images.select(key) if isinstance(self.images, DeviceImages) else self.images[key]

    def extract(self, positions: range | IntArray) -> "ArraySource | None":
        """Return some of the images of a file, which is opened again where they are read; None for other arrays."""
        if type(self) is not ArraySource or not isinstance(self.images, StoredImages):
            return None
        return self._copy_part(positions, images=self.images.select(positions))

    @property
    def _image_bytes(self) -> int:
        return math.prod(self.images.shape[1:]) * self.images.dtype.itemsize


def as_index(positions: range | IntArray) -> slice | IntArray:
    """Return consecutive positions as a slice, which selects without a copy; other positions as they are."""
    return slice(positions.start, positions.stop) if isinstance(positions, range) else positions


def check_image_bytes(id_: str, n_bytes: int, max_bytes: int) -> None:
    """Raise `LargeImageError` for an image in memory of more than `max_bytes`."""
    if n_bytes > max_bytes:
        raise LargeImageError(id_, f"it takes {n_bytes} bytes, above the limit of {max_bytes}", n_bytes)


Opener = Callable[[Spec, ReadOptions], Source]


@dataclass(frozen=True)
class SourceScheme:
    """A kind of source that a spec can name; `options` describes the options that only this scheme has."""

    name: str
    form: str
    summary: str
    open: Opener
    options: Mapping[str, str] = field(default_factory=dict)
    extra: str | None = None


SOURCES: Registry[SourceScheme] = Registry("data source", SourceError)
"""Every source scheme by name."""


def source_scheme(
    name: str, *, form: str, summary: str, options: Mapping[str, str] | None = None, extra: str | None = None
) -> Callable[[Opener], Opener]:
    """Register the decorated function as the opener of `name:...`."""

    def register(opener: Opener) -> Opener:
        SOURCES.add(SourceScheme(name, form, summary, opener, dict(options or {}), extra))
        return opener

    return register
