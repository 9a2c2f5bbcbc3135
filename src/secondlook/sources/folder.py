"""`folder:DIR`: one folder of images per class, or a flat folder without labels, local or behind a URL."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from secondlook.arrays import IntArray
from secondlook.errors import SourceError
from secondlook.file_systems import LOCATION_OPTIONS, Location, is_url, open_location
from secondlook.sources.image_files import FORMATS, SUFFIXES, FileSource
from secondlook.sources.labels import encode_labels, read_class_names
from secondlook.sources.located_images import RemoteFileSource
from secondlook.sources.source import ReadOptions, Source, source_scheme
from secondlook.specs import Spec

UNSUPPORTED_SUFFIX = re.compile(r"\.(gif|avif|heic|heif|ppm|pgm|pbm|jp2|jxl|svg|psd|raw|dng|dcm|exr|tga|ico)")


class IgnoredFilesWarning(UserWarning):
    """A folder contains images of unsupported formats."""


@source_scheme(
    "folder",
    form="folder:DIR",
    summary=f"one folder per class, or a flat folder without labels, of {FORMATS} files; DIR may be a URL",
    options={
        "labels": "'none' to read all images below DIR without labels",
        "classes": "text file with one class name per line, in the order of the classifier's outputs",
        **LOCATION_OPTIONS,
    },
)
def open_folder(spec: Spec, read_options: ReadOptions) -> Source:
    """Open a folder; the classes are its subfolders in sorted order, or in the order of the `classes` file."""
    location = open_location(spec.location, SourceError, spec.options)
    if location.local_path is None:
        return _open_listing(spec, _list_remote_folder(spec, read_options, location))
    root = location.local_path if is_url(spec.location) else spec.path
    return _open_listing(spec, _list_local_folder(spec, read_options, check_folder(root, "folder:")))


OpenFiles = Callable[[Sequence[str], IntArray | None, tuple[str, ...] | None], Source]
"""Opens files of a folder, given their names, labels and class names."""


@dataclass(frozen=True)
class _Listing:
    """The names of all files of a folder, those of its subfolders, and how to open some of the files."""

    files: Sequence[str]
    folders: Sequence[str]
    open: OpenFiles


def _list_local_folder(spec: Spec, read_options: ReadOptions, root: Path) -> _Listing:
    def open_files(names: Sequence[str], labels: IntArray | None, class_names: tuple[str, ...] | None) -> FileSource:
        paths = [root / name for name in names]
        return FileSource(str(spec), paths, names, read_options, labels=labels, class_names=class_names, root=root)

    names = make_relative_ids(list(_walk_files(root)), root)
    return _Listing(names, _list_folders(root, (root.resolve(),)), open_files)


def _list_remote_folder(spec: Spec, read_options: ReadOptions, location: Location) -> _Listing:
    entries = {entry.name: entry for entry in location.list_files()}

    def open_files(names: Sequence[str], labels: IntArray | None, class_names: tuple[str, ...] | None) -> Source:
        files = [entries[name] for name in names]
        return RemoteFileSource(str(spec), location, files, read_options, labels=labels, class_names=class_names)

    return _Listing(sorted(entries, key=_folder_order), location.list_folders(), open_files)


def _folder_order(name: str) -> list[tuple[bool, str]]:
    """Return the key that sorts files as `_walk_files` does: those of a folder before those of its subfolders."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]


def _open_listing(spec: Spec, listing: _Listing) -> Source:
    _warn_about_unsupported(listing.files, spec)
    images = [name for name in listing.files if name.lower().endswith(SUFFIXES)]
    if spec.choice("labels", ("folders", "none"), "folders", SourceError) == "none":
        return _open_unlabeled(spec, images, listing.open)
    flat = [name for name in images if "/" not in name]
    if flat and len(images) > len(flat):
        raise SourceError(
            f"{spec.location!r} contains both {len(flat)} images and {len(listing.folders)} folders of images; move the"
            " images into the folders of their classes, or add ?labels=none to read all images without labels."
        )
    if flat:
        return _open_unlabeled(spec, flat, listing.open)
    return _open_labeled(spec, images, tuple(listing.folders), listing.open)


def _open_unlabeled(spec: Spec, images: Sequence[str], open_files: OpenFiles) -> Source:
    if "classes" in spec.options:
        raise SourceError(f"classes= in {str(spec)!r} applies to one folder per class only; omit it.")
    _check_not_empty(images, spec)
    return open_files(images, None, None)


def _open_labeled(spec: Spec, images: Sequence[str], class_names: tuple[str, ...], open_files: OpenFiles) -> Source:
    _check_not_empty(images, spec)
    if "classes" in spec.options:
        class_names = read_class_names(Path(spec.options["classes"]).expanduser(), str(spec))
    labels = encode_labels([name.partition("/")[0] for name in images], class_names, str(spec))
    return open_files(images, labels, class_names)


def _check_not_empty(images: Sequence[str], spec: Spec) -> None:
    if not images:
        raise SourceError(f"no images ({', '.join(SUFFIXES)}) in {spec.location!r}; expected a folder of images.")


def check_folder(path: Path, form: str) -> Path:
    """Return the path of an existing folder; `form` names what needs it."""
    if not path.is_dir():
        found = "is not a folder" if path.exists() else "does not exist"
        raise SourceError(f"{str(path)!r} {found}; {form} needs the path of a folder.")
    return path


def list_images(folder: Path) -> list[Path]:
    """Return the image files of a folder, sorted by name, without hidden files."""
    return _filter_images(_list_files(folder))


def walk_images(folder: Path) -> list[Path]:
    """Return the image files of a folder and its subfolders, sorted, without hidden files and folders."""
    return _filter_images(_walk_files(folder))


def make_relative_ids(paths: list[Path], root: Path) -> list[str]:
    """Return the paths relative to the root, with forward slashes on every system."""
    return [path.relative_to(root).as_posix() for path in paths]


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder / entry.name for entry in _scan(folder) if entry.is_file())


def _walk_files(folder: Path, parents: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted; follows links except to parents."""
    parents = (*parents, folder.resolve())
    yield from _list_files(folder)
    for name in _list_folders(folder, parents):
        yield from _walk_files(folder / name, parents)


def _list_folders(folder: Path, parents: tuple[Path, ...]) -> list[str]:
    """Return the names of the subfolders, sorted, without links that lead back to `parents` or above them."""
    names = sorted(entry.name for entry in _scan(folder) if entry.is_dir())
    targets = {name: (folder / name).resolve() for name in names}
    return [name for name in names if not any(parent.is_relative_to(targets[name]) for parent in parents)]


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, without hidden ones and broken or circular links."""
    for entry in os.scandir(folder):
        if not entry.name.startswith(".") and (not entry.is_symlink() or (folder / entry.name).exists()):
            yield entry


def _filter_images(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.name.lower().endswith(SUFFIXES)]


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
