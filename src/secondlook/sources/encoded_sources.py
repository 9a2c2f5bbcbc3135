"""Encoded images: in separate files (`folder:DIR`, `csv:FILE`, lists of paths), or in shards of a location."""

import csv
import hashlib
import io
import os
import re
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError, reject_failures
from secondlook.file_systems import LOCATION_OPTIONS, FileEntry, Location, find_broken_links, is_url, open_location
from secondlook.files import open_regular_file
from secondlook.sources.image_files import FORMATS, SUFFIXES, decode_image, read_image_file
from secondlook.sources.labels import encode_labels, parse_labels, read_class_names
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.regular_files import (
    MAX_TEXT_BYTES,
    find_column,
    make_absolute,
    missing_root_error,
    reject_url,
)
from secondlook.sources.source import (
    DECODING_THREADS,
    UNREADABLE,
    ReadOptions,
    Source,
    UnreadableImageError,
    check_image_bytes,
    source_scheme,
)
from secondlook.specs import Spec

REMOTE_THREADS = max(16, DECODING_THREADS)
"""Number of threads for remote images; they mostly wait for the network."""

MAX_KEPT_BYTES = 64_000_000
"""Size of the cache of encoded images, used to decode an image again."""

MAX_HASHED_BYTES = 2_000_000_000
"""Digests cover the bytes of files up to this total size, above it only sizes and modification times."""

UNSUPPORTED_SUFFIX = re.compile(r"\.(gif|avif|heic|heif|ppm|pgm|pbm|jp2|jxl|svg|psd|raw|dng|dcm|exr|tga|ico)")


@dataclass(frozen=True)
class Labeling:
    """Labels and class names of images, if known."""

    labels: ArrayLike | None = None
    class_names: Iterable[str] | None = None


class EncodedSource(Source):
    """Encoded images, decoded by several threads when they are read."""

    threads: int = DECODING_THREADS
    hashes_bytes: bool = True
    """Whether digests cover the bytes of the images, or only the output of `_describe_version`."""

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
        """Return a text that changes when an image changes, without reading the image."""
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
    """Images in the files ("shards") of a location, one or many per file; digests do not read remote images."""

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
        """Open images at their places, int64 [N, k]: the shard number, and the position of the image in the shard."""
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
        # A large image is decoded again with more memory, but not downloaded again.
        content = self._contents.get(self.ids[index], lambda: self._read_encoded(index))
        return decode_image(content, self._name_image(index), self.max_pixels, max_bytes)

    def extract(self, positions: range | IntArray) -> Self:
        """Return a subset of the images, with only the shards that contain them."""
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


class IgnoredFilesWarning(UserWarning):
    """A folder contains images of unsupported formats, or broken links."""


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
        """Open files. A missing `root` is one error, instead of one for each file."""
        super().__init__(spec, ids, read_options, labeling)
        self.paths = tuple(paths)
        self.root = root

    def _read_encoded(self, index: int) -> bytes:
        try:
            return read_image_file(self.paths[index], self._name_image(index), self.max_bytes)
        except UnreadableImageError as error:
            if self.root is not None and isinstance(error.__cause__, FileNotFoundError) and not self.root.is_dir():
                raise missing_root_error(self.root) from error
            raise

    def _describe_version(self, index: int) -> str:
        status = self.paths[index].stat()
        return f"size {status.st_size} changed {status.st_mtime_ns}"

    def _name_image(self, index: int) -> str:
        return str(self.paths[index])

    def extract(self, positions: range | IntArray) -> Self:
        """Return a subset of the files, with absolute paths."""
        paths = tuple(make_absolute(self.paths[position]) for position in positions)
        return self._copy_part(positions, paths=paths, root=self._existing_root)

    def find_path(self, index: int) -> Path | None:
        """Return the absolute path of one file."""
        return self.paths[index].absolute()

    @cached_property
    def hashes_bytes(self) -> bool:  # type: ignore[override]
        """Whether the total size of the files is small enough to read them for a digest; missing files count as 0."""
        sizes = (os.path.getsize(path) for path in self.paths if os.path.isfile(path))  # noqa: PTH113, PTH202
        return sum(sizes) <= MAX_HASHED_BYTES

    @cached_property
    def _existing_root(self) -> Path | None:
        """The root, or else the deepest existing folder that contains all files; None if there is none."""
        if self.root is not None:
            return make_absolute(self.root)
        common = find_common_folder([make_absolute(path) for path in self.paths])
        folders = () if common is None else (common, *common.parents)
        return next((folder for folder in folders if folder.is_dir()), None)


def find_common_folder(paths: Sequence[Path]) -> Path | None:
    """Return the deepest folder that contains all absolute paths; None on different drives."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:
        return None


class RemoteFileSource(ShardedSource):
    """Image files at a URL: each file is a shard of one image, and its name is the id."""

    def _read_encoded(self, index: int) -> bytes:
        self._check_encoded_size(index, self._find_file(index).size)
        try:
            return self.location.read_bytes(self.ids[index])
        except SourceError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if not self.location.exists():
                raise missing_root_error(self.location) from error
            reason = f"the file cannot be opened ({error.__cause__.strerror})"
            raise UnreadableImageError(self._name_image(index), reason) from error

    def _describe_version(self, index: int) -> str:
        file = self._find_file(index)
        return f"size {file.size} changed {file.mtime_ns}"

    def _find_file(self, index: int) -> FileEntry:
        return self.shards[int(self.places[index, 0])]


@source_scheme(
    "folder",
    form="folder:DIR",
    summary=f"one folder per class, or a flat folder without labels, of {FORMATS} files; DIR may be a URL",
    options=("labels", "classes", *LOCATION_OPTIONS),
)
def open_folder(spec: Spec, read_options: ReadOptions) -> Source:
    """Open a folder; the classes are its subfolders in sorted order, or in the order of the `classes` file."""
    location = open_location(spec.location, SourceError, spec.options)
    root = location.local_path
    if root is not None and not root.is_dir():
        found = "is not a folder" if root.exists() else "does not exist"
        raise SourceError(f"{spec.location!r} {found}; folder: needs the path of a folder.")
    entries = {entry.name: entry for entry in location.list_files()}
    _warn_about_unsupported(entries, spec)
    broken = [] if root is None else [name for name in find_broken_links(root) if name.lower().endswith(SUFFIXES)]
    if broken:
        fault = f"ignoring {len(broken)} broken links in {str(spec)!r}, for example {broken[0]!r}"
        warnings.warn(f"{fault}; restore their targets or remove them.", IgnoredFilesWarning, stacklevel=2)
    images = sorted((name for name in entries if name.lower().endswith(SUFFIXES)), key=_folder_order)
    if not images:
        raise SourceError(f"no images ({', '.join(SUFFIXES)}) in {spec.location!r}; expected a folder of images.")
    labeling = _label_by_folder(spec, images, location.list_folders())
    if root is None:
        files, places = [entries[name] for name in images], np.arange(len(images))[:, None]
        return RemoteFileSource(str(spec), location, files, places, images, read_options, labeling)
    root = root if is_url(spec.location) else spec.path
    return FileSource(str(spec), [root / name for name in images], images, read_options, labeling, root)


def _folder_order(name: str) -> list[tuple[bool, str]]:
    """Return the key that sorts the files of a folder before those of its subfolders."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]


def _label_by_folder(spec: Spec, images: Sequence[str], folders: Sequence[str]) -> Labeling:
    is_unlabeled = spec.choice("labels", ("folders", "none"), "folders", SourceError) == "none"
    n_flat = sum("/" not in name for name in images)
    if 0 < n_flat < len(images) and not is_unlabeled:
        repair = "move the images into the folders of their classes, or add ?labels=none to read all without labels"
        fault = f"{spec.location!r} contains both {n_flat} images and {len(folders)} folders of images"
        raise SourceError(fault, repair=repair)
    if not n_flat and not is_unlabeled:
        class_names = read_class_names(spec) or tuple(folders)
        return Labeling(encode_labels([name.partition("/")[0] for name in images], class_names, str(spec)), class_names)
    if "classes" in spec.options:
        fault = f"of {str(spec)!r} applies to one folder per class only"
        raise SourceError(fault, argument="classes", repair="omit it")
    return Labeling()


def _warn_about_unsupported(names: Iterable[str], spec: Spec) -> None:
    counts = Counter(filter(UNSUPPORTED_SUFFIX.fullmatch, (PurePosixPath(name).suffix.lower() for name in names)))
    if counts:
        listed = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
        ignored = f"ignoring {counts.total()} files of {str(spec)!r} that are not {FORMATS} ({listed})"
        warnings.warn(f"{ignored}; convert them to include them.", IgnoredFilesWarning, stacklevel=2)


@source_scheme(
    "csv",
    form="csv:FILE.csv",
    summary="a table with the columns path (relative to the table) and optionally label (class index or class name)",
    options=("path", "label", "classes"),
)
def open_csv(spec: Spec, read_options: ReadOptions) -> FileSource:
    """Open a table of paths (comma-separated, or tab-separated if its name ends in .tsv)."""
    rows = list(_read_table(spec))
    line_of: dict[str, int] = {}
    for line, path, _ in rows:
        where = f"line {line} of {spec.location!r}"
        if not path:
            raise SourceError(f"{where} has no path; every row needs one.")
        reject_url(path, where)
        if path in line_of:
            fault = f"duplicate path {path!r} in lines {line_of[path]} and {line} of {spec.location!r}"
            raise SourceError(f"{fault}; remove one.")
        line_of[path] = line
    labeling = Labeling(*parse_labels([label for _, _, label in rows], spec, lambda index: f"line {rows[index][0]}"))
    return FileSource(str(spec), [spec.path.parent / id_ for id_ in line_of], list(line_of), read_options, labeling)


def _read_table(spec: Spec) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the path and the label of each row."""
    delimiter = "\t" if spec.path.suffix.lower() == ".tsv" else ","
    with (
        reject_failures(f"{spec.location!r} cannot be read as a table", "expected a UTF-8 CSV file", SourceError),
        io.TextIOWrapper(open_regular_file(spec.path, MAX_TEXT_BYTES), encoding="utf-8-sig", newline="") as file,
    ):
        reader = csv.DictReader(file, delimiter=delimiter, strict=True, restval="")
        columns = list(reader.fieldnames or ())
        path = find_column(spec, "path", columns)
        label = find_column(spec, "label", columns) if "label" in (*columns, *spec.options) else None
        for cells in reader:
            if None in cells:
                n_cells = len(columns) + len(cells[None])
                fault = f"line {reader.line_num} of {spec.location!r} has {n_cells} cells, but {len(columns)} columns"
                raise SourceError(fault, repair="put text that contains the separator in double quotes")
            yield reader.line_num, cells[path].strip(), "" if label is None else cells[label].strip()
