"""`folder:DIR`: one folder of images per class, or a flat folder without labels."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.sources.image_files import FORMATS, SUFFIXES, FileSource
from secondlook.sources.labels import encode_labels, read_class_names
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec

UNSUPPORTED_SUFFIX = re.compile(r"\.(gif|avif|heic|heif|ppm|pgm|pbm|jp2|jxl|svg|psd|raw|dng|dcm|exr|tga|ico)")


class IgnoredFilesWarning(UserWarning):
    """A folder contains images of unsupported formats."""


@source_scheme(
    "folder",
    form="folder:DIR",
    summary=f"one folder per class, or a flat folder without labels, of {FORMATS} files",
    options={
        "labels": "'none' to read all images below DIR without labels",
        "classes": "text file with one class name per line, in the order of the classifier's outputs",
    },
)
def open_folder(spec: Spec, read_options: ReadOptions) -> FileSource:
    """Open a folder; the classes are its subfolders in sorted order, or in the order of the `classes` file."""
    root = check_folder(spec.path, "folder:")
    if spec.choice("labels", ("folders", "none"), "folders", SourceError) == "none":
        files = list(_walk_files(root))
        _warn_about_unsupported(files, spec)
        return _open_unlabeled(spec, read_options, _filter_images(files))
    files, classes = _list_files(root), _list_folders(root, (root.resolve(),))
    files_of = {name: list(_walk_files(root / name, (root.resolve(),))) for name in classes}
    _warn_about_unsupported(chain(files, *files_of.values()), spec)
    flat = _filter_images(files)
    per_class = {name: _filter_images(members) for name, members in files_of.items()}
    if flat and any(per_class.values()):
        raise SourceError(
            f"{str(root)!r} contains both {len(flat)} images and {len(classes)} folders of images; move the images into"
            " the folders of their classes, or add ?labels=none to read all images without labels."
        )
    return _open_unlabeled(spec, read_options, flat) if flat else _open_labeled(spec, read_options, per_class)


def _open_unlabeled(spec: Spec, read_options: ReadOptions, paths: list[Path]) -> FileSource:
    if "classes" in spec.options:
        raise SourceError(f"classes= in {str(spec)!r} applies to one folder per class only; omit it.")
    _check_not_empty(paths, spec)
    return FileSource(str(spec), paths, make_relative_ids(paths, spec.path), read_options)


def _open_labeled(spec: Spec, read_options: ReadOptions, per_class: dict[str, list[Path]]) -> FileSource:
    paths = [path for members in per_class.values() for path in members]
    _check_not_empty(paths, spec)
    class_names = tuple(per_class)
    if "classes" in spec.options:
        class_names = read_class_names(Path(spec.options["classes"]).expanduser(), str(spec))
    folders = [name for name, members in per_class.items() for _ in members]
    labels = encode_labels(folders, class_names, str(spec))
    ids = make_relative_ids(paths, spec.path)
    return FileSource(str(spec), paths, ids, read_options, labels=labels, class_names=class_names)


def _check_not_empty(paths: list[Path], spec: Spec) -> None:
    if not paths:
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


def _warn_about_unsupported(paths: Iterable[Path], spec: Spec) -> None:
    counts = Counter(filter(UNSUPPORTED_SUFFIX.fullmatch, (path.suffix.lower() for path in paths)))
    if counts:
        listed = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
        warnings.warn(
            f"ignoring {counts.total()} files of {str(spec)!r} that are not {FORMATS} ({listed}); convert them to"
            " include them.",
            IgnoredFilesWarning,
            stacklevel=2,
        )
