"""`folder:DIR`: a folder of images per class, or one flat folder without labels."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.sources.decoding import FORMATS, SUFFIXES
from secondlook.sources.image_files import FileSource
from secondlook.sources.labels import labels_of_names, read_class_names
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import ReadOptions
from secondlook.sources.spec import Spec

UNREAD = re.compile(r"\.(gif|avif|heic|heif|ppm|pgm|pbm|jp2|jxl|svg|psd|raw|dng|dcm|exr|tga|ico)")
"""The endings of what is usually an image too, but of no kind that is read."""


class IgnoredFilesWarning(UserWarning):
    """A folder holds images of a kind that is not read."""


@source_scheme(
    "folder",
    form="folder:DIR",
    summary=f"a folder per class, or a flat folder without labels, of {FORMATS} files",
    options={
        "labels": "'none': take all images below DIR, without labels",
        "classes": "a text file with one class name per line, in the order of the classifier's outputs",
    },
)
def open_folder(spec: Spec, rules: ReadOptions) -> FileSource:
    """Open a folder; classes are the sub-folders in sorted order, unless a file gives another order."""
    root = existing_folder(spec.path, "folder:")
    if spec.one_of("labels", ("folders", "none"), "folders") == "none":
        everything = list(files_below(root))
        _warn_of_unread(everything, spec)
        return _without_labels(spec, rules, _images_among(everything))
    files, classes = files_in(root), _folders_in(root, (root.resolve(),))
    files_of = {name: list(files_below(root / name, (root.resolve(),))) for name in classes}
    _warn_of_unread(chain(files, *files_of.values()), spec)
    flat = _images_among(files)
    per_class = {name: _images_among(members) for name, members in files_of.items()}
    if flat and any(per_class.values()):
        raise SourceError(
            f"{str(root)!r} mixes {len(flat)} images of its own with {len(classes)} folders of images; move the images"
            " into the folders of their classes, or add ?labels=none to read all of them without labels."
        )
    return _without_labels(spec, rules, flat) if flat else _with_labels(spec, rules, per_class)


def _without_labels(spec: Spec, rules: ReadOptions, paths: list[Path]) -> FileSource:
    if "classes" in spec.options:
        raise SourceError(f"{str(spec)!r} has no folder per class, so that classes= has no use; leave it out.")
    return FileSource(str(spec), _some(paths, spec), relative_ids(paths, spec.path), rules)


def _with_labels(spec: Spec, rules: ReadOptions, per_class: dict[str, list[Path]]) -> FileSource:
    paths = _some([path for members in per_class.values() for path in members], spec)
    class_names = tuple(per_class)
    if "classes" in spec.options:
        class_names = read_class_names(Path(spec.options["classes"]).expanduser(), str(spec))
    folders = [name for name, members in per_class.items() for _ in members]
    labels = labels_of_names(folders, class_names, str(spec))
    ids = relative_ids(paths, spec.path)
    return FileSource(str(spec), paths, ids, rules, labels=labels, class_names=class_names)


def _some(paths: list[Path], spec: Spec) -> list[Path]:
    if not paths:
        raise SourceError(
            f"no images ({', '.join(SUFFIXES)}) lie in {spec.location!r}; give the folder that holds them."
        )
    return paths


def existing_folder(path: Path, form: str) -> Path:
    """Return the path if it is a folder."""
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise SourceError(f"{str(path)!r} is no folder ({found} is there); {form} needs the path of one.")
    return path


def images_in(folder: Path) -> list[Path]:
    """Return the image files directly in a folder, sorted by name; hidden ones are left out."""
    return _images_among(files_in(folder))


def images_below(folder: Path) -> list[Path]:
    """Return the image files in a folder and below it, sorted; hidden files and folders are left out."""
    return _images_among(files_below(folder))


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder, sorted by name; hidden ones are left out."""
    return sorted(folder / entry.name for entry in _entries_in(folder) if entry.is_file())


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files in a folder and below it, sorted; links are followed unless they lead back up."""
    here = (*above, folder.resolve())
    yield from files_in(folder)
    for name in _folders_in(folder, here):
        yield from files_below(folder / name, here)


def _folders_in(folder: Path, here: tuple[Path, ...]) -> list[str]:
    """Return the names of the folders in a folder, sorted, less the links to what holds one of `here`."""
    names = sorted(entry.name for entry in _entries_in(folder) if entry.is_dir())
    targets = {name: (folder / name).resolve() for name in names}
    return [name for name in names if not any(each.is_relative_to(targets[name]) for each in here)]


def _entries_in(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder, less what is hidden and links that lead nowhere or to themselves."""
    for entry in os.scandir(folder):
        if not entry.name.startswith(".") and (not entry.is_symlink() or (folder / entry.name).exists()):
            yield entry


def relative_ids(paths: list[Path], root: Path) -> list[str]:
    """Return each path as text relative to the root, with forward slashes on every system."""
    return [path.relative_to(root).as_posix() for path in paths]


def _images_among(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.name.lower().endswith(SUFFIXES)]


def _warn_of_unread(paths: Iterable[Path], spec: Spec) -> None:
    """Say once how many images are of a kind that is not read."""
    endings = Counter(filter(UNREAD.fullmatch, (path.suffix.lower() for path in paths)))
    if endings:
        counts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
        warnings.warn(
            f"{str(spec)!r} leaves out {endings.total()} files that are not {FORMATS} ({counts}); convert them to one"
            " of these to have them read.",
            IgnoredFilesWarning,
            stacklevel=2,
        )
