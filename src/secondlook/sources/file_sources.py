"""Images in files of their own: `folder:DIR`, local or behind a URL, `csv:FILE`, a table of paths, and lists."""

import csv
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Self

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import SourceError, reject_failures
from secondlook.file_systems import LOCATION_OPTIONS, FileEntry, Location, is_url, open_location
from secondlook.sources.encoded_sources import MAX_HASHED_BYTES, EncodedSource, Labeling, LocatedSource
from secondlook.sources.image_files import FORMATS, SUFFIXES, read_image_file
from secondlook.sources.labels import encode_labels, parse_labels, read_class_names
from secondlook.sources.regular_files import (
    MAX_TEXT_BYTES,
    find_column,
    make_absolute,
    missing_root_error,
    open_regular_file,
    reject_url,
)
from secondlook.sources.source import ReadOptions, Source, UnreadableImageError, source_scheme
from secondlook.specs import Spec

UNSUPPORTED_SUFFIX = re.compile(r"\.(gif|avif|heic|heif|ppm|pgm|pbm|jp2|jxl|svg|psd|raw|dng|dcm|exr|tga|ico)")


class IgnoredFilesWarning(UserWarning):
    """A folder contains images of unsupported formats."""


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


class RemoteFileSource(LocatedSource):
    """Image files behind a URL; their ids are their names."""

    def __init__(
        self, spec: str, location: Location, files: Sequence[FileEntry], read_options: ReadOptions, labeling: Labeling
    ) -> None:
        super().__init__(spec, location, files, [file.name for file in files], read_options, labeling)
        self.versions: IntArray = np.array([(file.size, file.mtime_ns) for file in files], dtype=np.int64)

    def _read_encoded(self, index: int) -> bytes:
        self._check_encoded_size(index, int(self.versions[index, 0]))
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
        return "size {} changed {}".format(*self.versions[index])

    def extract(self, positions: range | IntArray) -> Self:
        """Return some of the files."""
        return self._copy_part(positions, versions=self.versions[np.asarray(positions)])


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
    images = sorted((name for name in entries if name.lower().endswith(SUFFIXES)), key=_folder_order)
    if not images:
        raise SourceError(f"no images ({', '.join(SUFFIXES)}) in {spec.location!r}; expected a folder of images.")
    labeling = _label_by_folder(spec, images, location.list_folders())
    if root is None:
        return RemoteFileSource(str(spec), location, [entries[name] for name in images], read_options, labeling)
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
        raise SourceError(
            f"{spec.location!r} contains both {n_flat} images and {len(folders)} folders of images; move the images"
            " into the folders of their classes, or add ?labels=none to read all images without labels."
        )
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
        warnings.warn(
            f"ignoring {counts.total()} files of {str(spec)!r} that are not {FORMATS} ({listed}); convert them to"
            " include them.",
            IgnoredFilesWarning,
            stacklevel=2,
        )


class TableRow(NamedTuple):
    """A row of a table of paths: its line number, and its path and label as text."""

    line: int
    path: str
    label: str


@source_scheme(
    "csv",
    form="csv:FILE.csv",
    summary="a table with the columns path (relative to the table) and optionally label (class index or class name)",
    options=("path", "label", "classes"),
)
def open_csv(spec: Spec, read_options: ReadOptions) -> FileSource:
    """Open a table of paths (comma-separated, or tab-separated if its name ends in .tsv)."""
    rows = _read_table(spec)
    line_of: dict[str, int] = {}
    for row in rows:
        where = f"line {row.line} of {spec.location!r}"
        if not row.path:
            raise SourceError(f"{where} has no path; every row needs one.")
        reject_url(row.path, where)
        if line_of.setdefault(row.path, row.line) != row.line:
            lines = f"lines {line_of[row.path]} and {row.line}"
            raise SourceError(f"duplicate path {row.path!r} in {lines} of {spec.location!r}; remove one.")
    labeling = Labeling(*parse_labels([row.label for row in rows], spec, lambda index: f"line {rows[index].line}"))
    paths = [spec.path.parent / row.path for row in rows]
    return FileSource(str(spec), paths, [row.path for row in rows], read_options, labeling)


def _read_table(spec: Spec) -> list[TableRow]:
    delimiter = "\t" if spec.path.suffix.lower() == ".tsv" else ","
    with (
        reject_failures(f"{spec.location!r} cannot be read as a table", "expected a UTF-8 CSV file", SourceError),
        io.TextIOWrapper(open_regular_file(spec.path, MAX_TEXT_BYTES), encoding="utf-8-sig", newline="") as file,
    ):
        reader = csv.DictReader(file, delimiter=delimiter, strict=True, restval="")
        columns = list(reader.fieldnames or ())
        path = find_column(spec, "path", columns)
        has_labels = "label" in columns or "label" in spec.options
        label = find_column(spec, "label", columns) if has_labels else None
        rows = []
        for cells in reader:
            if None in cells:
                raise SourceError(
                    f"line {reader.line_num} of {spec.location!r} has {len(columns) + len(cells[None])} cells, but the"
                    f" header has {len(columns)} columns; put text that contains the separator in double quotes."
                )
            rows.append(TableRow(reader.line_num, cells[path].strip(), "" if label is None else cells[label].strip()))
    return rows
