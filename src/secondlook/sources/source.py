"""Sources: images with ids and labels, read one batch at a time, and the registry of source schemes."""

import copy
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray, default_ids, describe_image_fault
from secondlook.errors import SourceError
from secondlook.registry import Registry
from secondlook.sources.labels import validate_class_names, validate_ids, validate_labels
from secondlook.specs import Spec

OnError = Literal["fail", "skip"]
T = TypeVar("T")

DECODING_THREADS = min(8, os.cpu_count() or 1)
IMAGES_PER_HASHING_BLOCK = 1024
IMAGES_PER_TASK = 8


@dataclass(frozen=True)
class ReadOptions:
    """What to do with unreadable images, and the maximum number of pixels per image."""

    on_error: OnError = "fail"
    max_pixels: int = 100_000_000


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

    def __init__(self, where: str, reason: str, *, skippable: bool = False) -> None:
        alternative = ", or pass on_error='skip'" if skippable else ""
        super().__init__(f"image {where} cannot be read: {reason}; repair or remove it{alternative}.")
        self.where = where
        self.reason = reason


class Source(ABC):
    """Images with ids and, where known, labels and class names.

    Subclasses pass the ids to `__init__` and implement `read`.
    """

    threads: int = 1
    """Number of threads that read images; more than one pays off where reading decodes a file."""

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
        self.labels = None if labels is None else validate_labels(labels, len(self.ids), self.class_names, spec)
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
        unlabeled.__dict__.pop("digest", None)  # a cached digest covers labels and class names
        return unlabeled

    @abstractmethod
    def read(self, index: int) -> Array:
        """Return one image, uint8 [H, W, 1 or 3], or raise `UnreadableImageError`."""

    def hash_content(self, index: int) -> bytes:
        """Return a digest of the content of one image: of its pixels, or, for files, of the bytes of the file."""
        try:
            return hash_pixels(self.read(index))
        except UnreadableImageError as error:
            return error.reason.encode()

    @cached_property
    def digest(self) -> str:
        """The sha256 (hex) of class names, ids, labels and image contents, in order."""
        total = hashlib.sha256(json.dumps(self.class_names).encode())
        labels: Iterable[int | None] = repeat(None, len(self)) if self.labels is None else self.labels.tolist()
        for id_, label, content in zip(self.ids, labels, self._hash_contents(), strict=True):
            # One line of JSON per image: no two lists of images have the same text.
            total.update(f"\n{json.dumps([id_, label, content.hex()])}".encode())
        return total.hexdigest()

    def batches(self, batch_size: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Read the images from `start` to `stop` in order; batches omit skipped images and are never empty."""
        stop = len(self) if stop is None else stop
        if batch_size < 1:
            raise SourceError(f"batch_size={batch_size} for {self.spec!r}; expected 1 or more.")
        if not 0 <= start <= stop <= len(self):
            raise SourceError(
                f"start={start}, stop={stop} is out of range for {self.spec!r}; expected 0 <= start <= stop <="
                f" {len(self)}."
            )
        return self._read_batches(range(start, stop), batch_size)

    def _read_batches(self, positions: range, batch_size: int) -> Iterator[Batch]:
        with self._open_pool() as pool:
            for first in range(0, len(positions), batch_size):
                indices = positions[first : first + batch_size]
                batch = self._make_batch(indices, _map_in_order(pool, self._try_read, indices))
                if batch.images:
                    yield batch

    def _try_read(self, index: int) -> Array | UnreadableImageError:
        try:
            return self.read(index)
        except UnreadableImageError as error:
            if self.on_error == "fail":
                raise UnreadableImageError(error.where, error.reason, skippable=True) from error
            return error

    def _make_batch(self, positions: range, results: Iterable[Array | UnreadableImageError]) -> Batch:
        images: dict[int, Array] = {}
        for index, result in zip(positions, results, strict=True):
            if isinstance(result, UnreadableImageError):
                self._skipped[self.ids[index]] = Skipped(self.ids[index], result.reason)
            else:
                images[index] = result
        return Batch(np.array(list(images), dtype=np.int64), tuple(self.ids[i] for i in images), list(images.values()))

    def _hash_contents(self) -> Iterator[bytes]:
        with self._open_pool() as pool:
            for first in range(0, len(self), IMAGES_PER_HASHING_BLOCK):
                positions = range(first, min(first + IMAGES_PER_HASHING_BLOCK, len(self)))
                yield from _map_in_order(pool, self.hash_content, positions)

    def _open_pool(self) -> ThreadPoolExecutor | nullcontext[None]:
        return ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext()


def _map_in_order(pool: ThreadPoolExecutor | None, function: Callable[[int], T], positions: range) -> Iterator[T]:
    if pool is None:
        return map(function, positions)
    # Small images decode faster than a thread picks up a task, so each task reads several images.
    tasks = [positions[first : first + IMAGES_PER_TASK] for first in range(0, len(positions), IMAGES_PER_TASK)]
    return chain.from_iterable(pool.map(lambda task: [function(index) for index in task], tasks))


def hash_pixels(image: Array) -> bytes:
    """Return the sha256 of an array: dtype, shape and values."""
    pixels = np.ascontiguousarray(image)
    total = hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode())
    total.update(pixels.data)
    return total.digest()


class ArraySource(Source):
    """An array of images in memory or memory-mapped: uint8, or float32 in [0, 1]; [N, H, W, 1 or 3]."""

    def __init__(
        self,
        images: Array,
        *,
        spec: str | None = None,
        ids: Sequence[str] | None = None,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
        on_error: OnError = "fail",
    ) -> None:
        spec = f"array:{list(np.shape(images))}" if spec is None else spec
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
        return np.array(self.images[index], order="C")


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
