"""Sources: images with ids and labels, read one batch at a time, their subsets, and the registry of source schemes."""

import copy
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from pydantic import PositiveInt

from secondlook.arrays import Array, IntArray
from secondlook.errors import Repair, SourceError
from secondlook.registry import Registry
from secondlook.sources.labels import encode_labels, validate_class_names, validate_ids, validate_labels
from secondlook.sources.reading_threads import ReadingThreads, SharedMemory
from secondlook.specs import Spec

if TYPE_CHECKING:
    from torch import Tensor

OnError = Literal["fail", "skip"]
Limit = Literal["max_pixels", "max_bytes"]

DECODING_THREADS = min(32, os.cpu_count() or 1)

MAX_BYTES = 512_000_000
"""Maximum size of the decoded images in memory, in bytes."""

UNREADABLE = hashlib.sha256(b"unreadable").digest()
"""Content hash of every unreadable image."""


@dataclass(frozen=True)
class ReadOptions:
    """Handling of unreadable images, and the maximum of pixels per image and of decoded bytes in memory."""

    on_error: OnError = "fail"
    max_pixels: PositiveInt = 100_000_000
    max_bytes: PositiveInt = MAX_BYTES


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read, and why."""

    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Batch:
    """Images in source order: indices int64 [n], ids, and images uint8 [H, W, 1 or 3] of any sizes."""

    indices: IntArray
    ids: tuple[str, ...]
    images: list[Array]


class UnreadableImageError(SourceError):
    """An image cannot be read; if it exceeds a `limit`, `needed` is the value of the limit that would be enough."""

    def __init__(
        self, where: str, reason: str, *, limit: Limit | None = None, needed: int = 0, skippable: bool = False
    ) -> None:
        repair, arguments = "repair or remove it", dict[str, object]()
        if limit is not None:
            repair, arguments[limit] = f"pass {{{limit}}} to read it, or make it smaller or remove it", needed
        if skippable:
            repair, arguments["on_error"] = f"{repair}, or pass {{on_error}}", "skip"
        super().__init__(f"image {where} cannot be read: {reason}", repair=Repair(repair, **arguments))
        self.where, self.reason = where, reason
        self.limit, self.needed = limit, needed


class Source(ABC):
    """Images with ids and, if known, labels and class names; subclasses implement `read`."""

    threads: int = 1
    """Number of threads that read images; more than one helps if reading decodes a file."""

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
        vars(unlabeled).pop("_content_summary", None)  # a cached digest covers labels and class names
        return unlabeled

    def with_class_names(self, class_names: tuple[str, ...]) -> Self:
        """Return a copy with labels as indices of these class names; integer labels without class names count as names.

        A source without labels, or with other class names, is returned unchanged.
        """
        own = self.class_names
        if self.labels is None or own == class_names or not set(own or ()) <= set(class_names):
            return self
        renamed = self.with_on_error(self.on_error)
        texts = [str(label) if own is None else own[label] for label in self.labels.tolist()]
        renamed.labels, renamed.class_names = encode_labels(texts, class_names, self.spec), class_names
        vars(renamed).pop("_content_summary", None)  # a cached digest covers labels and class names
        return renamed

    def spread(self, n_images: int) -> "Subset":
        """Return one random image from each of `n_images` equal parts of the source, in random order with a fixed seed.

        Every n-th image instead could be of one class, if classes alternate.
        """
        rng = np.random.default_rng(0)
        n_images = min(n_images, len(self))
        edges = np.arange(n_images + 1) * len(self) // n_images
        return self.select(rng.permutation(rng.integers(edges[:-1], edges[1:])))

    def select(self, positions: IntArray, spec: str | None = None) -> "Subset":
        """Return the images at the given positions, in that order; `spec` is that of the source by default."""
        return Subset(self, positions, self.spec if spec is None else spec)

    def stack(self) -> Array:
        """Return all images, which must have the same size. -> uint8, or float32 in [0, 1], [N, H, W, 1 or 3]"""
        block = self.read_block(range(len(self)))
        if block is not None:
            return block if isinstance(block, np.ndarray) else block.cpu().numpy()
        images = [self.read(index) for index in range(len(self))]
        for id_, image in zip(self.ids, images, strict=True):
            if image.shape != images[0].shape:
                shapes = f"shape {list(image.shape)}, but {self.ids[0]!r} has {list(images[0].shape)}"
                raise SourceError(f"image {id_!r} of {self.spec!r} has {shapes}", repair="resize them to one size")
        return np.stack(images)

    def extract(self, positions: range | IntArray) -> "Source | None":
        """Return a subset without labels that can be read in another process or on another machine.

        Its pickle contains only the locations of its images. None if the images are only in memory.
        """
        return None

    def _copy_part(self, positions: range | IntArray, **attributes: object) -> Self:
        """Return a copy without labels, with the ids at some positions and with changed attributes."""
        part = self.with_on_error(self.on_error).without_labels()
        part.ids = tuple(self.ids[position] for position in positions)
        vars(part).update(attributes)
        return part

    @abstractmethod
    def read(self, index: int) -> Array:
        """Return one image, uint8 [H, W, 1 or 3], or raise `UnreadableImageError`."""

    def is_readable(self, index: int) -> bool:
        """Try to read one image."""
        return Source.hash_content(self, index) != UNREADABLE

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Return one image; overrides check `max_bytes` before decoding and raise `UnreadableImageError`."""
        return self.read(index)

    def read_block(self, positions: range | IntArray) -> "Array | Tensor | None":
        """Return one or more images of equal size as one array, [n, H, W, 1 or 3]; None to read them one by one.

        The block may be on a GPU, and may share memory with the images of the source: do not write to it. A source
        with blocks must be thread-safe.
        """
        return None

    def find_path(self, index: int) -> Path | None:
        """Return the absolute path of the local file of one image; None if it has no separate file."""
        return None

    def hash_content(self, index: int) -> bytes:
        """Return a digest of one image: of its pixels or, for a file, of its bytes."""
        try:
            return hash_pixels(self.read(index))
        except UnreadableImageError:
            return UNREADABLE

    @property
    def digest(self) -> str:
        """The sha256 (hex) of class names, ids, labels and image contents, in order."""
        return self._content_summary[0]

    def find_duplicates(self) -> list[int]:
        """Return the positions of images with the same pixels as an earlier image."""
        first_position: dict[bytes, int] = {}
        pixels = {index: Source.hash_content(self, index) for index in self._content_summary[1]}
        readable = [index for index in pixels if pixels[index] != UNREADABLE]
        return [index for index in readable if first_position.setdefault(pixels[index], index) != index]

    @cached_property
    def _content_summary(self) -> tuple[str, list[int]]:
        """The digest, and the positions of images whose content hash is not unique.

        Equal hashes do not prove equal images: for very large sources they cover only sizes and times of files.
        """
        total = hashlib.sha256(json.dumps(self.class_names).encode())
        labels: Iterable[int | None] = repeat(None, len(self)) if self.labels is None else self.labels.tolist()
        first_position: dict[bytes, int] = {}
        candidates: set[int] = set()
        with ReadingThreads(self._count_threads()) as readers:
            contents = readers.map(self.hash_content, range(len(self)))
            for index, (id_, label, content) in enumerate(zip(self.ids, labels, contents, strict=True)):
                # One line of JSON per image is unambiguous; `json.dumps` is slower.
                label_text = "null" if label is None else label
                total.update(f'\n[{encode_basestring_ascii(id_)}, {label_text}, "{content.hex()}"]'.encode())
                first = first_position.setdefault(content, index)
                if first != index and content != UNREADABLE:
                    candidates |= {first, index}
        return total.hexdigest(), sorted(candidates)

    def batches(self, batch_size: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Read the images from `start` to `stop` in order; batches omit skipped images and are never empty.

        A batch has fewer than `batch_size` images if they would take more than `max_bytes`.
        """
        stop = len(self) if stop is None else stop
        if batch_size < 1:
            raise SourceError("for a batch", argument="batch_size", value=batch_size, repair="expected 1 or more")
        for name, value in (("start", start), ("stop", stop)):
            if not 0 <= value <= len(self):
                fault = f"is out of range for {self.spec!r}"
                raise SourceError(fault, argument=name, value=value, repair=f"expected 0 to {len(self)}")
        return self._read_batches(range(start, stop), batch_size)

    def convert_images(
        self, convert: Callable[[str, Array], Array], positions: range
    ) -> Generator[tuple[int, Array], None, None]:
        """Yield the position and `convert(id, image)` of each image in order, without skipped images.

        Each thread reads and converts one image. Together they hold at most `max_bytes`, or a single larger image.
        """
        threads = self._count_threads()
        memory = SharedMemory(self.max_bytes, threads)

        def convert_one(index: int) -> Array | Skipped:
            with memory.reserve(memory.share):
                result = self._try_read(index, memory.share)
                if isinstance(result, np.ndarray):
                    return convert(self.ids[index], result)
            if isinstance(result, Skipped):
                return result
            with memory.reserve(result):  # an image above the share of a thread waits for memory
                whole = self._try_read(index)
                return convert(self.ids[index], whole) if isinstance(whole, np.ndarray) else cast(Skipped, whole)

        with ReadingThreads(threads) as readers:
            for index, result in zip(positions, readers.map(convert_one, positions), strict=True):
                if isinstance(result, Skipped):
                    self._skipped[result.id] = result
                else:
                    yield index, result

    def _count_threads(self) -> int:
        """Return the number of threads for work on each image; blocks can be read by any number."""
        return self.threads if self.read_block(range(1)) is None else DECODING_THREADS

    def _read_batches(self, positions: range, batch_size: int) -> Iterator[Batch]:
        with ReadingThreads(self.threads) as readers:
            for first in range(0, len(positions), batch_size):
                yield from self._read_batch(readers, positions[first : first + batch_size])

    def _read_batch(self, readers: ReadingThreads, positions: range) -> Iterator[Batch]:
        """Read all images at once if each fits an equal share of `max_bytes`, otherwise a few at a time."""
        share = self.max_bytes // len(positions) if len(positions) > 1 else None
        results = list(readers.map(lambda index: self._try_read(index, share), positions))
        largest = max((result for result in results if isinstance(result, int)), default=0)
        if largest:
            del results  # free the memory; the small images are read again
            step = max(1, self.max_bytes // largest)
            for first in range(0, len(positions), step):
                yield from self._read_batch(readers, positions[first : first + step])
            return
        self._skipped |= {result.id: result for result in results if isinstance(result, Skipped)}
        read = [position for position, image in zip(positions, results, strict=True) if isinstance(image, np.ndarray)]
        images = [image for image in results if isinstance(image, np.ndarray)]
        if images:
            yield Batch(np.array(read, dtype=np.int64), tuple(self.ids[position] for position in read), images)

    def _try_read(self, index: int, max_bytes: int | None = None) -> Array | Skipped | int:
        """Read one image; return its size in bytes instead if it takes more than `max_bytes`."""
        try:
            return self.read(index) if max_bytes is None else self.read_within(index, max_bytes)
        except UnreadableImageError as error:
            if max_bytes is not None and error.limit == "max_bytes":
                return error.needed
            if self.on_error == "fail":
                raise UnreadableImageError(
                    error.where, error.reason, limit=error.limit, needed=error.needed, skippable=True
                ) from error
            # The traceback of the error would keep decoded pixels in memory.
            return Skipped(self.ids[index], error.reason)


def hash_pixels(image: Array) -> bytes:
    """Return the sha256 of an array: dtype, shape and values."""
    pixels = np.ascontiguousarray(image)
    total = hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode())
    total.update(pixels.data)
    return total.digest()


class Subset(Source):
    """The images of another source at the given positions, in that order."""

    def __init__(self, whole: Source, positions: IntArray, spec: str) -> None:
        super().__init__(
            spec,
            [whole.ids[position] for position in positions],
            labels=None if whole.labels is None else whole.labels[positions],
            class_names=whole.class_names,
            on_error=whole.on_error,
        )
        self.whole = whole
        self.threads = whole.threads
        self.max_bytes = whole.max_bytes
        self.positions = positions

    def read(self, index: int) -> Array:
        """Read one image from the whole source. -> uint8 [H, W, 1 or 3]"""
        return self.whole.read(int(self.positions[index]))

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Read one image of at most `max_bytes` from the whole source."""
        return self.whole.read_within(int(self.positions[index]), max_bytes)

    def read_block(self, positions: range | IntArray) -> "Array | Tensor | None":
        """Return several images of the whole source as one array, if it supports that."""
        chosen = self.positions[as_index(positions)]
        first, stop = int(chosen[0]), int(chosen[0]) + len(chosen)
        return self.whole.read_block(range(first, stop) if np.array_equal(chosen, np.arange(first, stop)) else chosen)

    def extract(self, positions: range | IntArray) -> Source | None:
        """Return a subset of the whole source, if it supports that."""
        part = self.whole.extract(self.positions[as_index(positions)])
        return None if part is None else part.with_on_error(self.on_error)

    def find_path(self, index: int) -> Path | None:
        """Return the path of one image in the whole source."""
        return self.whole.find_path(int(self.positions[index]))

    def hash_content(self, index: int) -> bytes:
        """Return the content digest of one image in the whole source."""
        return self.whole.hash_content(int(self.positions[index]))


def as_index(positions: range | IntArray) -> slice | IntArray:
    """Return a range as a slice, which selects without a copy; other positions unchanged."""
    return slice(positions.start, positions.stop) if isinstance(positions, range) else positions


def check_image_bytes(where: str, what: str, n_bytes: int, max_bytes: int) -> None:
    """Raise for an image of more than `max_bytes`; `what` begins the reason."""
    if n_bytes > max_bytes:
        reason = f"{what} {n_bytes} bytes, above the limit of {max_bytes}"
        raise UnreadableImageError(where, reason, limit="max_bytes", needed=n_bytes)


Opener = Callable[[Spec, ReadOptions], Source]


@dataclass(frozen=True)
class SourceScheme:
    """A kind of source; `options` are those of this scheme only."""

    name: str
    form: str
    summary: str
    open: Opener
    options: tuple[str, ...] = ()
    extra: str | None = None


SOURCES: Registry[SourceScheme] = Registry("data source", SourceError)


def source_scheme(
    name: str, *, form: str, summary: str, options: Iterable[str] = (), extra: str | None = None
) -> Callable[[Opener], Opener]:
    """Register the decorated function as the opener of `name:...`."""

    def register(opener: Opener) -> Opener:
        SOURCES.add(SourceScheme(name, form, summary, opener, tuple(options), extra))
        return opener

    return register
