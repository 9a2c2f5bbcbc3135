"""Sources of encoded images: in files of their own, on this machine or behind a URL, or many in each file ("shard")."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.file_systems import FileEntry, Location
from secondlook.sources.image_files import decode_image, read_image_file
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.regular_files import make_absolute, missing_root_error
from secondlook.sources.source import (
    DECODING_THREADS,
    UNREADABLE,
    ReadOptions,
    Source,
    UnreadableImageError,
    check_image_bytes,
)

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
    """Whether digests cover the bytes of the images, rather than what `describe_version` returns."""

    def __init__(self, spec: str, ids: Sequence[str], read_options: ReadOptions, labeling: Labeling) -> None:
        super().__init__(
            spec, ids, labels=labeling.labels, class_names=labeling.class_names, on_error=read_options.on_error
        )
        self.max_pixels = read_options.max_pixels
        self.max_bytes = read_options.max_bytes

    @abstractmethod
    def read_encoded(self, index: int) -> bytes:
        """Read the bytes of one encoded image."""

    def describe_version(self, index: int) -> str:
        """Return what changes with an image, without reading it."""
        raise NotImplementedError

    def name_image(self, index: int) -> str:
        """Return the name of an image in errors."""
        return f"{self.ids[index]} of {self.spec}"

    def read(self, index: int) -> Array:
        """Decode one image. -> uint8 [H, W, 3]"""
        return self.read_within(index, self.max_bytes)

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Decode one image, if it takes at most `max_bytes` when decoded. -> uint8 [H, W, 3]"""
        return decode_image(self.read_encoded(index), self.name_image(index), self.max_pixels, max_bytes)

    def hash_content(self, index: int) -> bytes:
        """Return a digest of one encoded image: of its bytes, or of its version."""
        try:
            content = self.read_encoded(index) if self.hashes_bytes else self.describe_version(index).encode()
        except (UnreadableImageError, OSError, ValueError):
            return UNREADABLE
        return hashlib.sha256(content).digest()


class FileSource(EncodedSource):
    """A list of image files on this machine."""

    def __init__(
        self,
        spec: str,
        paths: Sequence[Path],
        ids: Sequence[str],
        read_options: ReadOptions,
        labeling: Labeling,
        root: Path | None = None,
    ) -> None:
        """Open files; a `root` that is given and gone is an error, rather than each file that is missing."""
        super().__init__(spec, ids, read_options, labeling)
        self.paths = tuple(paths)
        self.root = root

    def read_encoded(self, index: int) -> bytes:
        """Read one file."""
        try:
            return read_image_file(self.paths[index], self.name_image(index), self.max_bytes)
        except UnreadableImageError as error:
            if self.root is not None and isinstance(error.__cause__, FileNotFoundError) and not self.root.is_dir():
                raise missing_root_error(self.root) from error
            raise

    def describe_version(self, index: int) -> str:
        """Return size and modification time of one file."""
        status = self.paths[index].stat()
        return f"size {status.st_size} changed {status.st_mtime_ns}"

    def name_image(self, index: int) -> str:
        """Return the path of one file."""
        return str(self.paths[index])

    def extract(self, positions: range | IntArray) -> "FileSource | None":
        """Return some of the files, with absolute paths."""
        if type(self) is not FileSource:
            return None
        paths = tuple(make_absolute(self.paths[position]) for position in positions)
        return self._copy_part(positions, paths=paths, root=self._existing_root)

    def find_path(self, index: int) -> Path | None:
        """Return the absolute path of one file."""
        return self.paths[index].absolute()

    @cached_property
    def hashes_bytes(self) -> bool:  # type: ignore[override]
        """Whether the files are small enough, all together, to be read for a digest."""
        return sum(map(_find_file_size, self.paths)) <= MAX_HASHED_BYTES

    @cached_property
    def _existing_root(self) -> Path | None:
        """The deepest folder on this machine that contains all files, or should; None where there is none."""
        if self.root is not None:
            return make_absolute(self.root)
        common = find_common_folder([make_absolute(path) for path in self.paths])
        folders = () if common is None else (common, *common.parents)
        return next((folder for folder in folders if folder.is_dir()), None)


def find_common_folder(paths: Sequence[Path]) -> Path | None:
    """Return the deepest folder that contains all files, given by absolute paths; None on different drives."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:
        return None


def _find_file_size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 where it cannot be opened."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        return 0


class LocatedSource(EncodedSource):
    """Encoded images in the files of a location; those behind a URL are never read for a digest."""

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
        self.hashes_bytes = not self.is_remote and sum(file.size for file in files) <= MAX_HASHED_BYTES
        self._contents = SharedCache(MAX_KEPT_BYTES, len)

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Decode one image, if it takes at most `max_bytes` when decoded. -> uint8 [H, W, 3]"""
        if not self.is_remote:
            return super().read_within(index, max_bytes)
        # A large image is decoded again with more memory, but not sent again.
        content = self._contents.get(self.ids[index], lambda: self.read_encoded(index))
        return decode_image(content, self.name_image(index), self.max_pixels, max_bytes)

    def name_image(self, index: int) -> str:
        """Return the URL or the path of an image."""
        return self.location.locate(self.ids[index])

    def check_encoded_size(self, index: int, n_bytes: int) -> None:
        """Raise for an image that must not be read into memory."""
        check_image_bytes(self.name_image(index), "it is stored in", n_bytes, self.max_bytes)


class RemoteFileSource(LocatedSource):
    """Image files behind a URL; their ids are their names."""

    def __init__(
        self, spec: str, location: Location, files: Sequence[FileEntry], read_options: ReadOptions, labeling: Labeling
    ) -> None:
        super().__init__(spec, location, files, [file.name for file in files], read_options, labeling)
        self.versions: IntArray = np.array([(file.size, file.mtime_ns) for file in files], dtype=np.int64)

    def read_encoded(self, index: int) -> bytes:
        """Read one file."""
        self.check_encoded_size(index, int(self.versions[index, 0]))
        try:
            return self.location.read_bytes(self.ids[index])
        except SourceError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if not self.location.exists():
                raise missing_root_error(self.location) from error
            reason = f"the file cannot be opened ({error.__cause__.strerror})"
            raise UnreadableImageError(self.name_image(index), reason) from error

    def describe_version(self, index: int) -> str:
        """Return size and modification time of one file."""
        return "size {} changed {}".format(*self.versions[index])

    def extract(self, positions: range | IntArray) -> Self:
        """Return some of the files."""
        return self._copy_part(positions, versions=self.versions[np.asarray(positions)])


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
