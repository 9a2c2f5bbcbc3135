"""`open_source`: open a spec, an array or an open source, and select images from it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean

# Importing these modules registers their schemes.
from secondlook.sources import csv_file, folder, hugging_face, imagenet, npz_file, official_files  # noqa: F401
from secondlook.sources.source import SOURCES, ArraySource, OnError, ReadOptions, Source
from secondlook.sources.subset import (
    SELECTION_OPTIONS,
    Selection,
    Subset,
    SubsetName,
    parse_integer,
    parse_selection,
)
from secondlook.specs import Spec, parse_spec

READ_OPTIONS: Mapping[str, str] = {
    "on_error": "'fail' (the default) or 'skip' images that cannot be read",
    "max_pixels": f"maximum number of pixels per image, {ReadOptions.max_pixels} by default",
    "max_bytes": f"maximum size of the decoded images in memory at once, {ReadOptions.max_bytes} bytes by default",
}


def open_source(
    spec: "str | Array | Source",
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
        A text such as 'folder:val/?subset=evaluation', an array uint8 [N, H, W, 1 or 3] (or float32 in [0, 1]), or an
        open source.
    labels, class_names
        Class indices int [N] and class names of an array. Other sources have their own.
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
    if isinstance(spec, str):
        _check_unlabeled(spec, labels, class_names)
        arguments = {**selection, "on_error": on_error, "max_pixels": max_pixels, "max_bytes": max_bytes}
        return _open_spec(_add_arguments(_parse_source_spec(spec), arguments))
    for name, value in (("max_pixels", max_pixels), ("max_bytes", max_bytes)):
        if value is not None:
            raise SourceError(f"{name} applies to image files only; omit it for an array or an open source.")
    source = _open_object(spec, labels, class_names, _parse_on_error(on_error, "the source"))
    parsed = parse_selection(selection, source.spec)
    return source if parsed is None else _select(source, parsed, _append_options(source.spec, _to_texts(selection)))


def _parse_source_spec(text: str) -> Spec:
    if ":" not in text:
        raise SourceError(f"{text!r} has no scheme; expected SCHEME:LOCATION, {_suggest_spec(text)}.")
    return parse_spec(text, SourceError)


def _suggest_spec(text: str) -> str:
    """Guess the scheme of a bare path from what it points to."""
    path = Path(text).expanduser()
    by_suffix = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "hf"}
    scheme = "folder" if path.is_dir() else by_suffix.get(path.suffix.lower())
    return f"perhaps {scheme + ':' + text!r}" if scheme else "such as 'folder:val/' or 'npz:test.npz'"


def _open_object(
    spec: object, labels: ArrayLike | None, class_names: Iterable[str] | None, on_error: OnError | None
) -> Source:
    if isinstance(spec, np.ndarray):
        return ArraySource(spec, labels=labels, class_names=class_names, on_error=on_error or "fail")
    if not isinstance(spec, Source):
        raise SourceError(
            f"cannot open {spec!r:.80} of type {type(spec).__name__}; expected a text such as 'folder:val/', a NumPy"
            " array or a Source."
        )
    _check_unlabeled(spec.spec, labels, class_names)
    return spec if on_error in (None, spec.on_error) else spec.with_on_error(on_error)


def _check_unlabeled(spec: str, labels: ArrayLike | None, class_names: Iterable[str] | None) -> None:
    if labels is not None or class_names is not None:
        raise SourceError(f"labels and class_names apply to arrays only; {spec!r} has its own, so omit them.")


def _open_spec(spec: Spec) -> Source:
    if spec.scheme == "array":
        raise SourceError(f"{str(spec)!r} names an array in memory; pass the array itself, or save it and use npz:.")
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
    on_error = _parse_on_error(spec.options.get("on_error"), str(spec)) or "fail"
    limits = {name: parse_integer(name, spec.options.get(name), str(spec)) for name in ("max_pixels", "max_bytes")}
    return ReadOptions(on_error, **{name: limit for name, limit in limits.items() if limit is not None})


def _parse_on_error(value: str | None, where: str) -> OnError | None:
    allowed: tuple[OnError, ...] = get_args(OnError)
    if value is not None and value not in allowed:
        raise SourceError(
            f"on_error={value!r} of {where!r}; expected one of {', '.join(allowed)}.{did_you_mean(value, allowed)}"
        )
    return next((choice for choice in allowed if choice == value), None)
