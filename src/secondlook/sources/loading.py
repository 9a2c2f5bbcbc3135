"""`open_source`: open a spec, images in memory or an open source, and select images from it."""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike
from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from secondlook.arrays import IntArray
from secondlook.errors import ANY, Repair, SourceError, reject_failures
from secondlook.file_systems import is_url, reject_credentials
from secondlook.files import open_regular_file, read_regular_file
from secondlook.registry import did_you_mean

# Importing the modules registers their schemes.
from secondlook.sources import hugging_face, sharded_files  # noqa: F401
from secondlook.sources.encoded_sources import Labeling
from secondlook.sources.image_files import SUFFIXES
from secondlook.sources.object_sources import MEMORY_SCHEMES, find_kind, open_object
from secondlook.sources.regular_files import MAX_TEXT_BYTES
from secondlook.sources.source import SOURCES, OnError, ReadOptions, Source, Subset
from secondlook.specs import Spec, expand_path, parse_spec

SubsetName = Literal["experimental", "evaluation"]
Options = TypeVar("Options")

SCHEME_OF_SUFFIX = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".tar": "webdataset"}
QUOTED = re.compile("'(.+?)'")


@dataclass(frozen=True)
class Selection:
    """Which images to select: a subset or a file of indices, then a sample of at most `limit` of them."""

    subset: SubsetName | None = None
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    count: PositiveInt | None = None
    seed: NonNegativeInt = 0
    indices: str | None = None
    limit: PositiveInt | None = None


SELECTION_OPTIONS = tuple(option.name for option in fields(Selection))
READ_OPTIONS = tuple(option.name for option in fields(ReadOptions))
_SELECTION, _READ_OPTIONS = TypeAdapter(Selection), TypeAdapter(ReadOptions)


def open_source(
    data: Any,
    *,
    labels: ArrayLike | None = None,
    class_names: Iterable[str] | None = None,
    subset: SubsetName | None = None,
    fraction: float | None = None,
    count: int | None = None,
    seed: int | None = None,
    indices: str | Path | None = None,
    limit: int | None = None,
    on_error: OnError | None = None,
    max_pixels: int | None = None,
    max_bytes: int | None = None,
) -> Source:
    """Open a source of images.

    Parameters
    ----------
    data
        A text like 'folder:val/?subset=evaluation'; an open source; an image: a path, the bytes of an image file, a
        PIL image, an array uint8 [H, W, 1 or 3] (or float32 in [0, 1]) or a torch tensor [C, H, W]; a list or pandas
        column of images; an array or tensor of several images; a torch `Dataset` or `DataLoader` (the loader's data
        set is read directly); or a `datasets.Dataset`.
    labels, class_names
        Class index or class name of each image, [N], and all class names; not for sources given as text.
        Without `class_names`, class names among the labels are sorted, as in a folder.
    subset, fraction, count, seed
        The 'experimental' subset is the `count` images, or the `fraction` of the images (0.1 by default), with the
        smallest hash of seed (0 by default) and id; the 'evaluation' subset is all other images.
    indices, limit
        A file of indices to select, instead of a subset; and the maximum number of images, applied last. Images are
        sampled by a hash of their ids, so the sample is always the same; they keep their order.
    on_error
        'fail' (the default) raises an error at the first unreadable image; 'skip' lists unreadable images in
        `Source.skipped`.
    max_pixels, max_bytes
        Maximum number of pixels of an image file (100 million by default), and maximum size of the decoded images
        in memory (512 MB by default): batches of large image files are smaller.
    """
    selection = _to_texts(SELECTION_OPTIONS, (subset, fraction, count, seed, indices, limit))
    reading = _to_texts(READ_OPTIONS, (on_error, max_pixels, max_bytes))
    labeling = Labeling(labels, class_names)
    if isinstance(data, str) and _is_spec(data):
        _check_unlabeled(data, labeling)
        return _open_spec(data, {**selection, **reading})
    source = _open_object(data, labeling, reading)
    return _select(source, _parse_selection(selection, source.spec), _append_options(source.spec, selection))


def _to_texts(names: Sequence[str], values: Sequence[object]) -> dict[str, str]:
    return {name: str(value) for name, value in zip(names, values, strict=True) if value is not None}


def _is_spec(text: str) -> bool:
    """Whether a text is the spec of a source, and not the path of an image file with a colon in its name."""
    scheme, colon, _ = text.partition(":")
    is_spec = bool(colon) and (scheme in SOURCES or not os.path.isfile(text))  # noqa: PTH113 - accepts any text
    return is_spec or not _is_image_path(text)


def _is_image_path(text: str) -> bool:
    """Whether a path is an image file: by its suffix, or because it is a file and not a source."""
    suffix = os.path.splitext(text)[1].lower()  # noqa: PTH122
    return suffix in SUFFIXES or (suffix not in SCHEME_OF_SUFFIX and os.path.isfile(expand_path(text)))  # noqa: PTH113


def _suggest_spec(text: str) -> str:
    """Guess the scheme of a bare path."""
    path = expand_path(text)
    scheme = "folder" if os.path.isdir(path) else SCHEME_OF_SUFFIX.get(path.suffix.lower())  # noqa: PTH112
    if is_url(text):
        scheme = {".parquet": "parquet", ".tar": "webdataset"}.get(path.suffix.lower(), "folder")
    return f"perhaps {scheme + ':' + text!r}" if scheme else "for example 'folder:val/' or 'npz:test.npz'"


def _open_object(data: Any, labeling: Labeling, reading: Mapping[str, str]) -> Source:
    if isinstance(data, os.PathLike) and not _is_image_path(text := os.fsdecode(data)):
        raise SourceError(f"{text!r} is not an image file; expected the path of one, or a text, {_suggest_spec(text)}.")
    limits = [name for name in reading if name != "on_error"]
    if limits and (isinstance(data, Source) or find_kind(data) in ("array", "tensor")):
        repair = "omit it for an array or an open source"
        raise SourceError("applies to image files only", argument=limits[0], repair=repair)
    options = _parse_options(_READ_OPTIONS, reading, "the source")
    if not isinstance(data, Source):
        return open_object(data, labeling, options)
    _check_unlabeled(data.spec, labeling)
    return data if reading.get("on_error", data.on_error) == data.on_error else data.with_on_error(options.on_error)


def _check_unlabeled(spec: str, labeling: Labeling) -> None:
    if labeling.labels is not None or labeling.class_names is not None:
        repair = Repair("omit {labels} and {class_names}", labels=ANY, class_names=ANY)
        raise SourceError(
            f"{spec!r} defines its own labels; only images in memory and paths take others", repair=repair
        )


def _open_spec(text: str, arguments: Mapping[str, str]) -> Source:
    reject_credentials(text, SourceError)
    if ":" not in text or is_url(text):
        raise SourceError(f"{text!r} has no scheme; expected SCHEME:LOCATION, {_suggest_spec(text)}.")
    spec = parse_spec(text, SourceError)
    for name in arguments:
        if name in spec.options:
            raise SourceError(f"is given both as an argument and in {text!r}", argument=name, repair="give it once")
    spec = spec.with_options(arguments)
    if spec.scheme in MEMORY_SCHEMES:
        raise SourceError(f"{str(spec)!r} refers to images in memory; pass the images, or save them and use npz:.")
    scheme = SOURCES.find(spec.scheme, f" in {str(spec)!r}")
    known = (*scheme.options, *SELECTION_OPTIONS, *READ_OPTIONS)
    for name in spec.options:
        if name not in known:
            listed = f"{', '.join(known)}.{did_you_mean(name, known)}"
            raise SourceError(f"unknown option {name!r} in {str(spec)!r}; known: {listed}")
    given = {name: spec.options[name] for name in SELECTION_OPTIONS if name in spec.options}
    selection = _parse_selection(given, str(spec))
    whole = spec.without(SELECTION_OPTIONS)
    source = scheme.open(whole, _parse_options(_READ_OPTIONS, spec.options, str(spec)))
    return _select(source, selection, str(whole.with_options(given)))


def _append_options(text: str, options: Mapping[str, str]) -> str:
    """Return the spec of an open source with options added; the spec of a custom source may be any text."""
    try:
        return str(parse_spec(text, SourceError).with_options(options))
    except SourceError:
        return str(Spec("", text, options)).removeprefix(":")


def _parse_options(kind: TypeAdapter[Options], texts: Mapping[str, str], where: str) -> Options:
    try:
        return kind.validate_python(dict(texts))
    except ValidationError as error:
        first = error.errors()[0]
        name, text = str(first["loc"][0]), first["input"]
        expected = first["msg"].replace("Input", "it")
        repair = f"{expected}.{did_you_mean(text, QUOTED.findall(expected))}"
        raise SourceError(f"of {where!r}", argument=name, value=text, repair=repair) from None


def _parse_selection(given: Mapping[str, str], where: str) -> Selection | None:
    """Parse options given as text; None if there are none."""
    for option in ("fraction", "count", "seed"):
        if option in given and "subset" not in given:
            repair = Repair("pass {subset}, or 'evaluation'", subset="experimental")
            raise SourceError(f"of {where!r} needs a subset", argument=option, repair=repair)
    for first, second in (("subset", "indices"), ("fraction", "count")):
        if first in given and second in given:
            repair = Repair(f"omit one of {{{first}}} and {{{second}}}", **{first: ANY, second: ANY})
            raise SourceError(f"the selection from {where!r} is ambiguous", repair=repair)
    return _parse_options(_SELECTION, given, where) if given else None


def _select(source: Source, selection: Selection | None, spec: str) -> Source:
    """Return the selected images; `spec` contains the selection, to open the same images again."""
    if selection is None:
        return source
    if isinstance(source, Subset):
        raise SourceError(f"{source.spec!r} is already a subset; select from the whole source instead.")
    if selection.indices is not None:
        positions = _read_indices(expand_path(selection.indices), len(source))
    elif selection.subset is not None:
        positions = _find_subset(source, selection)
    else:
        positions = np.arange(len(source), dtype=np.int64)
    if selection.limit is not None and selection.limit < len(positions):
        # The first images may be of one class. The prefix is not a seed, so the sample does not depend on subsets.
        ranking = _rank_by_hash([source.ids[position] for position in positions.tolist()], "limit")
        positions = positions[np.sort(ranking[: selection.limit])]
    return source.select(positions, spec)


def _rank_by_hash(ids: Iterable[str], prefix: object) -> IntArray:
    """Return the positions of ids, ordered by the sha256 of 'prefix:id'. -> int64 [n]"""
    keys = [hashlib.sha256(f"{prefix}:{id_}".encode()).digest() for id_ in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def _find_subset(source: Source, selection: Selection) -> IntArray:
    """Return the images with the smallest sha256 of 'seed:id', or all others, in the order of the source.

    The hash depends only on the id: the order of the images does not matter, and adding or removing an image moves at
    most one other image to another subset.
    """
    n_images, where = len(source), source.spec
    count = math.floor(selection.fraction * n_images + 0.5) if selection.count is None else selection.count
    if count > n_images:
        fault = f"exceeds the {n_images} images of {where!r}"
        raise SourceError(fault, argument="count", value=count, repair="choose a smaller count")
    ranking = _rank_by_hash(source.ids, selection.seed)
    positions = np.sort(ranking[:count] if selection.subset == "experimental" else ranking[count:])
    if not positions.size:
        fault = f"the {selection.subset} subset of the {n_images} images of {where!r} is empty"
        raise SourceError(fault, repair="choose another fraction or count")
    return positions


def _read_indices(path: Path, n_images: int) -> IntArray:
    """Read unique indices from a .npy file, or from a text file of integers separated by white space. -> int64 [n]"""
    with reject_failures(f"indices file {str(path)!r} cannot be read", "expected integers", SourceError):
        if path.suffix == ".npy":
            with open_regular_file(path, MAX_TEXT_BYTES) as file:
                indices = npy.read_array(file, allow_pickle=False)
        else:
            indices = np.array([int(number) for number in read_regular_file(path).split()], dtype=np.int64)
    if indices.ndim != 1 or not indices.size or not np.issubdtype(indices.dtype, np.integer):
        found = f"{indices.dtype} {list(indices.shape)}"
        raise SourceError(f"indices file {str(path)!r} holds {found}; expected integers [n], n >= 1.")
    invalid = np.flatnonzero((indices < 0) | (indices >= n_images))
    if invalid.size:
        place = f"index {indices[invalid[0]]} at position {invalid[0]} of {str(path)!r}"
        raise SourceError(f"{place} is out of range; expected 0 to {n_images - 1}.")
    values, counts = np.unique(indices, return_counts=True)
    if counts.max() > 1:
        duplicate = f"duplicate index {values[counts.argmax()]} ({counts.max()} times)"
        raise SourceError(f"{duplicate} in {str(path)!r}; indices must be unique.")
    return indices.astype(np.int64)
