"""What a source is: ids, labels and images that are read one batch at a time."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.sources.digests import digest_of_pixels, digest_of_source
from secondlook.sources.labels import checked_class_names, checked_ids, checked_labels

OnError = Literal["fail", "skip"]
T = TypeVar("T")

DECODING_THREADS = min(8, os.cpu_count() or 1)
HASHED_AT_ONCE = 1024
IMAGES_OF_A_TASK = 8


@dataclass(frozen=True)
class ReadOptions:
    """What to do with an image that cannot be read, and how many pixels one may have."""

    on_error: OnError = "fail"
    max_pixels: int = 100_000_000


@dataclass(frozen=True)
class Skipped:
    """An image that was left out, and why."""

    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Batch:
    """Some images in the order of the source: indices int64 [n], ids, and images uint8 [H, W, 1 or 3] of any sizes."""

    indices: IntArray
    ids: tuple[str, ...]
    images: list[Array]


HOW_TO_SKIP = "pass on_error='skip' (--on-error skip)"


class UnreadableImageError(SourceError):
    """One image that cannot be read; with on_error="skip" the reading goes on without it."""

    def __init__(self, where: str, reason: str, *, can_be_skipped: bool = False) -> None:
        choice = f", or {HOW_TO_SKIP}" if can_be_skipped else ""
        super().__init__(f"image {where} cannot be read: {reason}; repair or remove it{choice}.")
        self.where = where
        self.reason = reason


class Source(ABC):
    """Images with ids and, where known, labels. A subclass gives the ids to `__init__` and defines `read`."""

    threads: int = 1
    """How many images `batches` reads at once: more than one pays where reading decodes a file."""

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
        self.ids: Sequence[str] = checked_ids(ids, spec)
        self.class_names = None if class_names is None else checked_class_names(class_names, spec)
        self.labels = None if labels is None else checked_labels(labels, len(self.ids), self.class_names, spec)
        self.on_error = on_error
        # By id, since a source may be read more than once and what was skipped is listed once.
        self._skipped: dict[str, Skipped] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec!r}: {len(self)} images>"

    @property
    def skipped(self) -> list[Skipped]:
        """The images left out of the batches read so far, each once; empty unless on_error="skip"."""
        return list(self._skipped.values())

    def with_on_error(self, on_error: OnError) -> Self:
        """Return the same source with another rule for images that cannot be read, and nothing skipped yet."""
        changed = copy.copy(self)
        changed.on_error, changed._skipped = on_error, {}
        return changed

    def without_labels(self) -> Self:
        """Return the images alone: what they are is not asked, and what a folder is called need not be a class."""
        alone = copy.copy(self)
        alone.labels = alone.class_names = None
        alone.__dict__.pop("digest", None)  # one that is known already covers labels and names
        return alone

    @abstractmethod
    def read(self, index: int) -> Array:
        """Return one image, uint8 [H, W, 1 or 3], or raise `UnreadableImageError`."""

    def content(self, index: int) -> bytes:
        """Return a digest of one image's content: here of its pixels; where there is a file, of its bytes."""
        try:
            return digest_of_pixels(self.read(index))
        except UnreadableImageError as error:
            return error.reason.encode()

    @cached_property
    def digest(self) -> str:
        """The sha256 (hex) of what the data is: class names, ids, labels and contents, in order."""
        return digest_of_source(self.ids, self.labels, self.class_names, self._contents())

    def batches(self, batch_size: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Read the images from `start` up to `stop` in order; a skipped one shortens its batch, none leaves it out."""
        stop = len(self) if stop is None else stop
        if batch_size < 1:
            raise SourceError(f"batch_size={batch_size} for {self.spec!r} makes no batch; pass 1 or more.")
        if not 0 <= start <= stop <= len(self):
            raise SourceError(
                f"start={start}, stop={stop} is no range of {self.spec!r}; 0 <= start <= stop <= {len(self)} is needed."
            )
        return self._read_batches(range(start, stop), batch_size)

    def _read_batches(self, positions: range, batch_size: int) -> Iterator[Batch]:
        with self._reading_threads() as pool:
            for first in range(0, len(positions), batch_size):
                chunk = positions[first : first + batch_size]
                batch = self._readable(chunk, _map_in_order(pool, self._attempt, chunk))
                if batch.images:
                    yield batch

    def _attempt(self, index: int) -> Array | UnreadableImageError:
        try:
            return self.read(index)
        except UnreadableImageError as error:
            if self.on_error == "fail":
                raise UnreadableImageError(error.where, error.reason, can_be_skipped=True) from error
            return error

    def _readable(self, positions: range, outcomes: Iterable[Array | UnreadableImageError]) -> Batch:
        read: dict[int, Array] = {}
        for index, outcome in zip(positions, outcomes, strict=True):
            if isinstance(outcome, UnreadableImageError):
                self._skipped[self.ids[index]] = Skipped(self.ids[index], outcome.reason)
            else:
                read[index] = outcome
        return Batch(np.array(list(read), dtype=np.int64), tuple(self.ids[i] for i in read), list(read.values()))

    def _contents(self) -> Iterator[bytes]:
        with self._reading_threads() as pool:
            for first in range(0, len(self), HASHED_AT_ONCE):
                positions = range(first, min(first + HASHED_AT_ONCE, len(self)))
                yield from _map_in_order(pool, self.content, positions)

    def _reading_threads(self) -> ThreadPoolExecutor | nullcontext[None]:
        return ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext()


def _map_in_order(pool: ThreadPoolExecutor | None, function: Callable[[int], T], positions: range) -> Iterator[T]:
    if pool is None:
        return map(function, positions)
    # Small images decode faster than a thread takes up a task, so a task is several of them.
    tasks = [positions[first : first + IMAGES_OF_A_TASK] for first in range(0, len(positions), IMAGES_OF_A_TASK)]
    return chain.from_iterable(pool.map(lambda task: [function(index) for index in task], tasks))
