"""`open_source`: open a spec, images in memory or an open source, and select images from it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from numpy.typing import ArrayLike

from secondlook.errors import SourceError
from secondlook.file_systems import is_url, reject_credentials
from secondlook.registry import did_you_mean

# Importing these modules registers their schemes.
from secondlook.sources import (  # noqa: F401
    csv_file,
    folder,
    hugging_face,
    imagenet,
    npz_file,
    official_files,
    parquet_files,
    webdataset,
)
from secondlook.sources.image_files import SUFFIXES
from secondlook.sources.image_objects import find_kind
from secondlook.sources.labels import is_text
from secondlook.sources.object_sources import MEMORY_SCHEMES, Labeling, open_object
from secondlook.sources.source import SOURCES, OnError, ReadOptions, Source
from secondlook.sources.subset import (
    SELECTION_OPTIONS,
    Selection,
    Subset,
    SubsetName,
    parse_integer,
    parse_selection,
)
from secondlook.specs import Spec, expand_path, parse_spec

SCHEME_OF_SUFFIX = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "hf", ".tar": "webdataset"}

READ_OPTIONS: Mapping[str, str] = {
    "on_error": "'fail' (the default) or 'skip' images that cannot be read",
    "max_pixels": f"maximum number of pixels per image, {ReadOptions.max_pixels} by default",
    "max_bytes": f"maximum size of the decoded images in memory at once, {ReadOptions.max_bytes} bytes by default",
}


def open_source(
    spec: Any,
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
    spec
        A text such as 'folder:val/?subset=evaluation'; an open source; an image, that is a path, the bytes of an image
        file, a PIL image, an array uint8 [H, W, 1 or 3] (or float32 in [0, 1]) or a torch tensor [C, H, W]; a list or
        a pandas column of these; an array [N, H, W, 1 or 3] or a torch tensor [N, C, H, W]; a torch `Dataset` or
        `DataLoader`, which is read through its data set; or a `datasets.Dataset`.
    labels, class_names
        Class index or class name of each image, [N], and all class names, for images that are not named by a text.
        Without `class_names`, labels that are names are numbered in sorted order, as the classes of a folder are.
    subset, fraction, count, seed
        The 'experimental' subset is the `count` images, or the `fraction` of the images (0.1 by default), with the
        smallest hash of seed (0 by default) and id; the 'evaluation' subset is all other images.
    indices, limit
        A file of the indices to select, instead of a subset; and the maximum number of images, applied last.
    on_error
        'fail' (the default) raises an error at the first image that cannot be read; 'skip' skips such images and
        lists them in `Source.skipped`.
    max_pixels
        Maximum number of pixels of an image file (100 million by default), checked before decoding.
    max_bytes
        Maximum size of the decoded images that are held at once, in bytes (512 MB by default): batches of large image
        files are smaller, and a larger image cannot be read.
    """
    selection = {
        "subset": subset,
        "fraction": fraction,
        "count": count,
        "seed": seed,
        "indices": indices,
        "limit": limit,
    }
    if isinstance(spec, str) and not _is_path(spec):
        _check_unlabeled(spec, labels, class_names)
        arguments = {**selection, "on_error": on_error, "max_pixels": max_pixels, "max_bytes": max_bytes}
        return _open_spec(_add_arguments(_parse_source_spec(spec), arguments))
    arguments = {"on_error": on_error, "max_pixels": max_pixels, "max_bytes": max_bytes}
    source = _open_object(spec, Labeling(labels, class_names), arguments)
    parsed = parse_selection(selection, source.spec)
    return source if parsed is None else _select(source, parsed, _append_options(source.spec, _to_texts(selection)))


def open_labeled(
    data: Any, labels: ArrayLike | None, class_names: Sequence[str] | None, on_error: OnError | None = None
) -> Source:
    """Open images for a classifier: labels that are names refer to its class names, where it has them."""
    named = class_names if labels is not None and is_text(labels) else None
    return open_source(data, labels=labels, class_names=named, on_error=on_error)


def _is_path(text: str) -> bool:
    """Whether a text names an image file rather than a source; a colon may be part of the name of an existing file."""
    scheme, colon, _ = text.partition(":")
    is_spec = bool(colon) and (scheme in SOURCES or not os.path.isfile(text))  # noqa: PTH113 - accepts any text
    return not is_spec and _is_image_path(text)


def _is_image_path(text: str) -> bool:
    """Whether a path is that of an image file: by its suffix, or because it is a file that is no source."""
    suffix = os.path.splitext(text)[1].lower()  # noqa: PTH122
    return suffix in SUFFIXES or (suffix not in SCHEME_OF_SUFFIX and os.path.isfile(expand_path(text)))  # noqa: PTH113


def _parse_source_spec(text: str) -> Spec:
    reject_credentials(text, SourceError)
    if ":" not in text or is_url(text):
        raise SourceError(f"{text!r} has no scheme; expected SCHEME:LOCATION, {_suggest_spec(text)}.")
    return parse_spec(text, SourceError)


def _suggest_spec(text: str) -> str:
    """Guess the scheme of a bare path from what it points to."""
    path = expand_path(text)
    scheme = "folder" if os.path.isdir(path) else SCHEME_OF_SUFFIX.get(path.suffix.lower())  # noqa: PTH112
    if is_url(text):
        scheme = {".parquet": "parquet", ".tar": "webdataset"}.get(path.suffix.lower(), "folder")
    return f"perhaps {scheme + ':' + text!r}" if scheme else "such as 'folder:val/' or 'npz:test.npz'"


def _open_object(data: Any, labeling: Labeling, arguments: Mapping[str, Any]) -> Source:
    if isinstance(data, os.PathLike) and not _is_image_path(text := os.fsdecode(data)):
        raise SourceError(f"{text!r} is not an image file; expected the path of one, or a text, {_suggest_spec(text)}.")
    on_error = _parse_on_error(arguments["on_error"], "the source")
    limits = {name: arguments[name] for name in ("max_pixels", "max_bytes") if arguments[name] is not None}
    if limits and (isinstance(data, Source) or find_kind(data) in ("array", "tensor")):
        raise SourceError(f"{next(iter(limits))} applies to image files only; omit it for an array or an open source.")
    if not isinstance(data, Source):
        return open_object(data, labeling, _make_read_options(on_error, limits, "the source"))
    _check_unlabeled(data.spec, labeling.labels, labeling.class_names)
    return data if on_error in (None, data.on_error) else data.with_on_error(on_error)


def _check_unlabeled(spec: str, labels: ArrayLike | None, class_names: Iterable[str] | None) -> None:
    if labels is not None or class_names is not None:
        raise SourceError(
            f"labels and class_names apply to images in memory and lists of paths; {spec!r} has its own, so omit them."
        )


def _open_spec(spec: Spec) -> Source:
    if spec.scheme in MEMORY_SCHEMES:
        raise SourceError(f"{str(spec)!r} names images in memory; pass the images, or save them and use npz:.")
    scheme = SOURCES.find(spec.scheme, f" in {str(spec)!r}")
    known = {**scheme.options, **SELECTION_OPTIONS, **READ_OPTIONS}
    for name in spec.options:
        if name not in known:
            raise SourceError(
                f"unknown option {name!r} in {str(spec)!r}; known: {', '.join(known)}.{did_you_mean(name, known)}"
            )
    options = {name: spec.options[name] for name in SELECTION_OPTIONS if name in spec.options}
    selection = parse_selection(options, str(spec))
    whole = spec.without(SELECTION_OPTIONS)
    source = scheme.open(whole, _parse_read_options(spec))
    return source if selection is None else _select(source, selection, str(whole.with_options(options)))


def _select(source: Source, selection: Selection, spec: str) -> Source:
    """Return the selected images; `spec` names source and selection, so that it opens the same images again."""
    if isinstance(source, Subset):
        raise SourceError(f"{source.spec!r} is already a subset; select from the whole source instead.")
    return Subset(source, selection.find_positions(source.ids, source.spec), spec, source.on_error)


def _add_arguments(spec: Spec, arguments: Mapping[str, object]) -> Spec:
    """Return the spec with arguments added to its options; each may be given once only."""
    options = _to_texts(arguments)
    for name in options:
        if name in spec.options:
            raise SourceError(f"{name}= is given both as an argument and in {str(spec)!r}; give it once.")
    return spec.with_options(options)


def _append_options(text: str, options: Mapping[str, str]) -> str:
    """Return the spec of an open source with options added; a user's own source may have any text as its spec."""
    try:
        return str(parse_spec(text, SourceError).with_options(options))
    except SourceError:
        return str(Spec("", text, options)).removeprefix(":")


def _to_texts(arguments: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in arguments.items() if value is not None}


def _parse_read_options(spec: Spec) -> ReadOptions:
    on_error = _parse_on_error(spec.options.get("on_error"), str(spec))
    return _make_read_options(on_error, spec.options, str(spec))


def _make_read_options(on_error: OnError | None, limits: Mapping[str, object], where: str) -> ReadOptions:
    parsed = {name: parse_integer(name, limits.get(name), where) for name in ("max_pixels", "max_bytes")}
    return ReadOptions(on_error or "fail", **{name: limit for name, limit in parsed.items() if limit is not None})


def _parse_on_error(value: str | None, where: str) -> OnError | None:
    allowed: tuple[OnError, ...] = get_args(OnError)
    if value is not None and value not in allowed:
        raise SourceError(
            f"on_error={value!r} of {where!r}; expected one of {', '.join(allowed)}.{did_you_mean(value, allowed)}"
        )
    return next((choice for choice in allowed if choice == value), None)
