"""`folder:DIR`: one folder of images per class, or a flat folder without labels, local or behind a URL."""

import re
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from secondlook.errors import SourceError
from secondlook.file_systems import LOCATION_OPTIONS, is_url, open_location
from secondlook.sources.encoded_sources import FileSource, Labeling, RemoteFileSource
from secondlook.sources.image_files import FORMATS, SUFFIXES
from secondlook.sources.labels import encode_labels, read_class_names
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
    root = location.local_path
    if root is not None and not root.is_dir():
        found = "is not a folder" if root.exists() else "does not exist"
        raise SourceError(f"{spec.location!r} {found}; folder: needs the path of a folder.")
    entries = {entry.name: entry for entry in location.list_files()}
    names, labeling = _choose_images(spec, sorted(entries, key=_folder_order), location.list_folders())
    if root is None:
        return RemoteFileSource(str(spec), location, [entries[name] for name in names], read_options, labeling)
    root = root if is_url(spec.location) else spec.path
    return FileSource(str(spec), [root / name for name in names], names, read_options, labeling, root)


def _folder_order(name: str) -> list[tuple[bool, str]]:
    """Return the key that sorts the files of a folder before those of its subfolders."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]


def _choose_images(spec: Spec, files: list[str], folders: list[str]) -> tuple[list[str], Labeling]:
    """Return the names of the images among the files of a folder, and their labels."""
    _warn_about_unsupported(files, spec)
    images = [name for name in files if name.lower().endswith(SUFFIXES)]
    if not images:
        raise SourceError(f"no images ({', '.join(SUFFIXES)}) in {spec.location!r}; expected a folder of images.")
    flat = [name for name in images if "/" not in name]
    is_unlabeled = spec.choice("labels", ("folders", "none"), "folders", SourceError) == "none"
    if 0 < len(flat) < len(images) and not is_unlabeled:
        raise SourceError(
            f"{spec.location!r} contains both {len(flat)} images and {len(folders)} folders of images; move the images"
            " into the folders of their classes, or add ?labels=none to read all images without labels."
        )
    if not flat and not is_unlabeled:
        class_names = read_class_names(spec) or tuple(folders)
        labels = encode_labels([name.partition("/")[0] for name in images], class_names, str(spec))
        return images, Labeling(labels, class_names)
    if "classes" in spec.options:
        raise SourceError(f"classes= in {str(spec)!r} applies to one folder per class only; omit it.")
    return images, Labeling()


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
