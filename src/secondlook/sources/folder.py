"""`folder:DIR`: a folder of images per class, or one flat folder without labels."""

import os
from collections.abc import Iterator
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.sources.decoding import FORMATS, SUFFIXES
from secondlook.sources.image_files import FileSource
from secondlook.sources.labels import labels_of_names, read_class_names
from secondlook.sources.schemes import scheme
from secondlook.sources.source import ReadingRules
from secondlook.sources.spec import Spec


@scheme(
    "folder",
    form="folder:DIR",
    summary=f"a folder per class, or a flat folder without labels, of {FORMATS} files",
    options={
        "labels": "'none': take all images below DIR, without labels",
        "classes": "a text file with one class name per line, in the order of the classifier's outputs",
    },
)
def open_folder(spec: Spec, rules: ReadingRules) -> FileSource:
    """Open a folder; classes are the sub-folders in sorted order, unless a file gives another order."""
    root = existing_folder(spec.path, "folder:")
    if spec.one_of("labels", ("folders", "none"), "folders") == "none":
        return _without_labels(spec, rules, list(images_below(root)))
    flat = images_in(root)
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    per_class = {name: list(images_below(root / name)) for name in classes}
    if flat and any(per_class.values()):
        raise SourceError(
            f"{str(root)!r} mixes {len(flat)} images of its own with {len(classes)} folders of images; move the images"
            " into the folders of their classes, or add ?labels=none to read all of them without labels."
        )
    return _without_labels(spec, rules, flat) if flat else _with_labels(spec, rules, per_class)


def _without_labels(spec: Spec, rules: ReadingRules, paths: list[Path]) -> FileSource:
    if "classes" in spec.options:
        raise SourceError(f"{str(spec)!r} has no folder per class, so that classes= has no use; leave it out.")
    return FileSource(str(spec), _some(paths, spec), relative_ids(paths, spec.path), rules)


def _with_labels(spec: Spec, rules: ReadingRules, per_class: dict[str, list[Path]]) -> FileSource:
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
    return sorted(folder / entry.name for entry in os.scandir(folder) if entry.is_file() and _is_image(entry.name))


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the image files in a folder and below it, sorted; hidden files and folders are left out."""
    yield from images_in(folder)
    below = (entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    for name in sorted(below):
        if not name.startswith("."):
            yield from images_below(folder / name)


def relative_ids(paths: list[Path], root: Path) -> list[str]:
    """Return each path as text relative to the root, with forward slashes on every system."""
    return [path.relative_to(root).as_posix() for path in paths]


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")
