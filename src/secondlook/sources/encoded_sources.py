"""Sources of encoded images, and those in the files ("shards") of a location."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.file_systems import FileEntry, Location, open_location
from secondlook.sources.image_files import decode_image
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.regular_files import missing_root_error
from secondlook.sources.source import (
    DECODING_THREADS,
    UNREADABLE,
    ReadOptions,
    Source,
    UnreadableImageError,
    check_image_bytes,
)
from secondlook.specs import Spec

T = TypeVar("T")

REMOTE_THREADS = max(16, DECODING_THREADS)
"""Threads that read from another machine wait more than they decode."""

MAX_KEPT_BYTES = 64_000_000
"""Size of the encoded images that are kept for another attempt to decode them."""

MAX_HASHED_BYTES = 2_000_000_000
"""Digests cover the bytes of the files up to this total size, and their sizes and modification times above it."""


@dataclass(frozen=True)
class Labeling:
    """Labels and class names of images, where they are known."""

    labels: ArrayLike | None = None
    class_names: Iterable[str] | None = None


class EncodedSource(Source):
    """Encoded images, decoded by several threads when they are read."""

    threads: int = DECODING_THREADS
    hashes_bytes: bool = True
    """Whether digests cover the bytes of the images, rather than what `_describe_version` returns."""

    def __init__(self, spec: str, ids: Sequence[str], read_options: ReadOptions, labeling: Labeling) -> None:
        super().__init__(
            spec, ids, labels=labeling.labels, class_names=labeling.class_names, on_error=read_options.on_error
        )
        self.max_pixels = read_options.max_pixels
        self.max_bytes = read_options.max_bytes

    @abstractmethod
    def _read_encoded(self, index: int) -> bytes:
        """Read the bytes of one encoded image."""

    def _describe_version(self, index: int) -> str:
        """Return what changes with an image, without reading it."""
        raise NotImplementedError

    def _name_image(self, index: int) -> str:
        """Return the name of an image in errors."""
        return f"{self.ids[index]} of {self.spec}"

    def read(self, index: int) -> Array:
        """Decode one image. -> uint8 [H, W, 3]"""
        return self.read_within(index, self.max_bytes)

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Decode one image, if it takes at most `max_bytes` when decoded. -> uint8 [H, W, 3]"""
        return decode_image(self._read_encoded(index), self._name_image(index), self.max_pixels, max_bytes)

    def hash_content(self, index: int) -> bytes:
        """Return a digest of one encoded image: of its bytes, or of its version."""
        try:
            content = self._read_encoded(index) if self.hashes_bytes else self._describe_version(index).encode()
        except (UnreadableImageError, OSError, ValueError):
            return UNREADABLE
        return hashlib.sha256(content).digest()


class ShardedSource(EncodedSource):
    """Images in the files ("shards") of a location, one or many in each; those behind a URL are not read for digests.

    Subclasses tell what their places mean.
    """

    def __init__(
        self,
        spec: str,
        location: Location,
        shards: Sequence[FileEntry],
        places: IntArray,
        ids: Sequence[str],
        read_options: ReadOptions,
        labeling: Labeling,
    ) -> None:
        """Open images at their places, int64 [N, k]: number of the shard, and numbers that find an image in it."""
        super().__init__(spec, ids, read_options, labeling)
        self.location = location
        self.shards = tuple(shards)
        self.places = places
        self.is_remote = location.local_path is None
        self.threads = REMOTE_THREADS if self.is_remote else DECODING_THREADS
        self.hashes_bytes = not self.is_remote and sum(shard.size for shard in shards) <= MAX_HASHED_BYTES
        self._contents = SharedCache(MAX_KEPT_BYTES, len)

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Decode one image, if it takes at most `max_bytes` when decoded. -> uint8 [H, W, 3]"""
        if not self.is_remote:
            return super().read_within(index, max_bytes)
        # A large image is decoded again with more memory, but not sent again.
        content = self._contents.get(self.ids[index], lambda: self._read_encoded(index))
        return decode_image(content, self._name_image(index), self.max_pixels, max_bytes)

    def extract(self, positions: range | IntArray) -> Self:
        """Return some of the images, with the shards that they are in."""
        places = self.places[np.asarray(positions)]
        numbers, places[:, 0] = np.unique(places[:, 0], return_inverse=True)
        return self._copy_part(positions, shards=tuple(self.shards[number] for number in numbers), places=places)

    def _name_image(self, index: int) -> str:
        return self.location.locate(self.ids[index])

    def _check_encoded_size(self, index: int, n_bytes: int) -> None:
        check_image_bytes(self._name_image(index), "it is stored in", n_bytes, self.max_bytes)

    def _describe_version(self, index: int) -> str:
        number, *place = self.places[index].tolist()
        shard = self.shards[number]
        return f"shard {shard.name} size {shard.size} changed {shard.mtime_ns} place {place}"


def find_shards(spec: Spec, suffix: str) -> tuple[Location, list[FileEntry]]:
    """Return the folder and the files of a location: itself, or all files below it with the suffix."""
    location = open_location(spec.location, SourceError, spec.options)
    file = location.find()
    if file is not None:
        return location.parent, [file._replace(name=location.name)]
    shards = [file for file in location.list_files() if file.name.lower().endswith(suffix)]
    if not shards:
        found = f"has no {suffix} files" if location.exists() else "does not exist"
        raise SourceError(f"{location.url!r} {found}; {spec.scheme}: needs a {suffix} file, or a folder of them.")
    return location, shards


def open_shard(location: Location, shard: FileEntry) -> Any:
    """Open a shard that has not changed since it was listed: a `pyarrow.NativeFile`, which several threads may read."""
    found, where = location.find(shard.name), location.locate(shard.name)
    if found is None:
        raise missing_root_error(where)
    if found != shard:
        raise SourceError(f"{where!r} has changed while it was in use; open it again.")
    return location.open(shard.name)


def map_shards(function: Callable[[FileEntry], T], shards: Sequence[FileEntry]) -> list[T]:
    """Return the results of a function for each shard, which wait for other machines at the same time."""
    with ThreadPoolExecutor(min(REMOTE_THREADS, len(shards))) as pool:
        return list(pool.map(function, shards))
