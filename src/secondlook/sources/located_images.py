"""Encoded images in the files of a location, local or behind a URL: one per file, or many in each."""

import hashlib
import io
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.file_systems import FileEntry, Location
from secondlook.sources.image_files import MAX_HASHED_BYTES, EncodedSource, Labeling, decode_image
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.regular_files import missing_root_error
from secondlook.sources.source import DECODING_THREADS, UNREADABLE, ReadOptions, UnreadableImageError

REMOTE_THREADS = max(16, DECODING_THREADS)
"""Threads that read from another machine wait more than they decode."""

MAX_KEPT_BYTES = 64_000_000
"""Size of the encoded images that are kept for another attempt to decode them."""


class LocatedSource(EncodedSource):
    """Encoded images in the files of a location, read and decoded one at a time."""

    def __init__(
        self,
        spec: str,
        location: Location,
        files: Sequence[FileEntry],
        ids: Sequence[str],
        read_options: ReadOptions,
        labeling: Labeling,
    ) -> None:
        super().__init__(spec, ids, read_options, labeling)
        self.location = location
        self.is_remote = location.local_path is None
        self.threads = REMOTE_THREADS if self.is_remote else DECODING_THREADS
        self._hashes_bytes = not self.is_remote and sum(file.size for file in files) <= MAX_HASHED_BYTES
        self._contents = SharedCache(MAX_KEPT_BYTES, len)

    @abstractmethod
    def read_encoded(self, index: int) -> bytes:
        """Read the bytes of one encoded image."""

    @abstractmethod
    def describe_version(self, index: int) -> str:
        """Return what changes with an image, from the listing of its files alone."""

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Decode one image, if it takes at most `max_bytes` when decoded. -> uint8 [H, W, 3]"""
        if self.is_remote:  # a large image is decoded again with more memory, but not sent again
            content = self._contents.get(self.ids[index], lambda: self.read_encoded(index))
        else:
            content = self.read_encoded(index)
        return decode_image(io.BytesIO(content), self._name_image(index), self.max_pixels, max_bytes)

    def hash_content(self, index: int) -> bytes:
        """Return a digest of one encoded image: of its bytes in local files, and otherwise of size and time of files.

        Images elsewhere are never read for a digest.
        """
        if not self._hashes_bytes:
            return hashlib.sha256(self.describe_version(index).encode()).digest()
        try:
            return hashlib.sha256(self.read_encoded(index)).digest()
        except UnreadableImageError:
            return UNREADABLE

    def _name_image(self, index: int) -> str:
        return self.location.locate(self.ids[index])

    def _check_encoded_size(self, index: int, n_bytes: int) -> None:
        """Raise for an image that must not be read into memory."""
        if n_bytes > self.max_bytes:
            reason = f"it is stored in {n_bytes} bytes, above the limit max_bytes={self.max_bytes}"
            raise UnreadableImageError(self._name_image(index), reason, limit="max_bytes", needed=n_bytes)


class RemoteFileSource(LocatedSource):
    """Image files behind a URL; their ids are their names."""

    def __init__(
        self, spec: str, location: Location, files: Sequence[FileEntry], read_options: ReadOptions, labeling: Labeling
    ) -> None:
        super().__init__(spec, location, files, [file.name for file in files], read_options, labeling)
        self.sizes: IntArray = np.array([file.size for file in files], dtype=np.int64)
        self.mtimes_ns: IntArray = np.array([file.mtime_ns for file in files], dtype=np.int64)

    def read_encoded(self, index: int) -> bytes:
        """Read one file."""
        self._check_encoded_size(index, int(self.sizes[index]))
        try:
            return self.location.read_bytes(self.ids[index])
        except SourceError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if not self.location.exists():
                raise missing_root_error(self.location) from error
            reason = f"the file cannot be opened ({error.__cause__.strerror})"
            raise UnreadableImageError(self._name_image(index), reason) from error

    def describe_version(self, index: int) -> str:
        """Return size and modification time of one file."""
        return f"size {self.sizes[index]} changed {self.mtimes_ns[index]}"

    def extract(self, positions: range | IntArray) -> Self:
        """Return some of the files."""
        chosen = np.asarray(positions)
        return self._copy_part(positions, sizes=self.sizes[chosen], mtimes_ns=self.mtimes_ns[chosen])


class ShardedSource(LocatedSource):
    """Images of which many are in each file ("shard"). Subclasses tell what their places mean."""

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
        """Open images at their places, int64 [N, 3]: number of the shard, and two numbers that find an image in it."""
        super().__init__(spec, location, shards, ids, read_options, labeling)
        self.shards = tuple(shards)
        self.places = places

    def describe_version(self, index: int) -> str:
        """Return size and modification time of the shard of one image, and its place there."""
        number, *place = self.places[index].tolist()
        shard = self.shards[number]
        return f"shard {shard.name} size {shard.size} changed {shard.mtime_ns} place {place}"

    def extract(self, positions: range | IntArray) -> Self:
        """Return some of the images, with the shards that they are in."""
        places = self.places[np.asarray(positions)]
        numbers, places[:, 0] = np.unique(places[:, 0], return_inverse=True)
        return self._copy_part(positions, shards=tuple(self.shards[number] for number in numbers), places=places)


def find_shards(location: Location, suffix: str, form: str) -> tuple[Location, list[FileEntry]]:
    """Return the folder and the files of a location: itself, or all files below it with the suffix."""
    file = location.find()
    if file is not None:
        return location.parent, [file._replace(name=location.name)]
    shards = [file for file in location.list_files() if file.name.lower().endswith(suffix)]
    if not shards:
        found = f"has no {suffix} files" if location.exists() else "does not exist"
        raise SourceError(f"{location.url!r} {found}; {form} needs a {suffix} file, or a folder of them.")
    return location, shards


def open_shard(location: Location, shard: FileEntry) -> Any:
    """Open a shard that has not changed since it was listed: a `pyarrow.NativeFile`, which several threads may read."""
    found = location.find(shard.name)
    where = location.locate(shard.name)
    if found is None:
        raise missing_root_error(where)
    if found != shard:
        raise SourceError(f"{where!r} has changed while it was in use; open it again.")
    return location.open(shard.name)
