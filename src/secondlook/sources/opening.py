"""Opening any source: a text, an array, or a source that is open already."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

# Importing a module of openers registers its schemes.
from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources import archive, cifar, folder, hugging_face, imagenet, listing, stl10, svhn  # noqa: F401
from secondlook.sources.in_memory import ArraySource
from secondlook.sources.schemes import scheme_named
from secondlook.sources.selection import SELECTION_OPTIONS, Selection, SubsetName, selection_from, whole_number
from secondlook.sources.source import OnError, ReadOptions, Source
from secondlook.sources.spec import Spec, parse_spec, with_options
from secondlook.sources.subset import Subset

READING_OPTIONS: Mapping[str, str] = {
    "on_error": "'fail' (the default) or 'skip' for an image that cannot be read",
    "max_pixels": f"refuse to decode images of more pixels than this, {ReadOptions.max_pixels} unless said",
}


def open_source(
    spec: "str | Array | Source",
    *,
    labels: ArrayLike | None = None,
    class_names: Iterable[str] | None = None,
    part: SubsetName | None = None,
    fraction: float | None = None,
    count: int | None = None,
    seed: int | None = None,
    indices: str | Path | None = None,
    limit: int | None = None,
    on_error: OnError | None = None,
    max_pixels: int | None = None,
) -> Source:
    """Open a source of images.

    Parameters
    ----------
    spec
        A text such as 'folder:val/?part=evaluation', an array uint8 [N, H, W, 1 or 3] (or float32 in [0, 1]), or a
        source.
    labels, class_names
        For an array: int [N] class indices, and the names of the classes. Other sources bring their own.
    part, fraction, count, seed
        The 'experimental' part is `count` images, or the `fraction` (0.1 unless said) of them, whose hash of seed (0
        unless said) and id is smallest; 'evaluation' is the rest.
    indices, limit
        A file of the indices to take, instead of a part; and how many images to take at most, after any other choice.
    on_error
        'fail' (unless said): an image that cannot be read stops the reading; 'skip': it is left out and listed in
        `skipped`.
    max_pixels
        How many pixels an image file may have, 100 million unless said; checked before it is decoded.
    """
    selected = {"part": part, "fraction": fraction, "count": count, "seed": seed, "indices": indices, "limit": limit}
    reading = {"on_error": on_error, "max_pixels": max_pixels}
    if isinstance(spec, str):
        if labels is not None or class_names is not None:
            raise SourceError(f"labels and class_names go with an array; {spec!r} brings its own, so leave them out.")
        return _open_text(_with_arguments(parse_spec(spec), {**selected, **reading}))
    if max_pixels is not None:
        raise SourceError(
            "max_pixels is for files that are yet to be decoded; leave it out for an array or an open source."
        )
    source = _opened(spec, labels, class_names, _checked_on_error(on_error, "the source"))
    return _select(source, selection_from(selected, source.spec), with_options(source.spec, _texts(selected)))


def _opened(
    spec: object, labels: ArrayLike | None, class_names: Iterable[str] | None, on_error: OnError | None
) -> Source:
    if isinstance(spec, np.ndarray):
        return ArraySource(spec, labels=labels, class_names=class_names, on_error=on_error or "fail")
    if not isinstance(spec, Source):
        raise SourceError(
            f"a source is a text such as 'folder:val/', a numpy array or a Source; got {type(spec).__name__}:"
            f" {spec!r:.80}."
        )
    if labels is not None or class_names is not None:
        raise SourceError(f"labels and class_names go with an array; {spec.spec!r} brings its own, so leave them out.")
    return spec if on_error in (None, spec.on_error) else spec.with_on_error(on_error)


def _open_text(spec: Spec) -> Source:
    if spec.scheme == "array":
        raise SourceError(f"{str(spec)!r} stands for an array in memory; pass the array itself, or save it for npz:.")
    scheme = scheme_named(spec.scheme, str(spec))
    known = {**scheme.options, **SELECTION_OPTIONS, **READING_OPTIONS}
    for name in spec.options:
        if name not in known:
            raise SourceError(
                f"unknown option {name!r} in {str(spec)!r}; known options:"
                f" {', '.join(known)}.{did_you_mean(name, known)}"
            )
    selected = {name: spec.options[name] for name in SELECTION_OPTIONS if name in spec.options}
    selection = selection_from(selected, str(spec))
    whole = spec.without(SELECTION_OPTIONS)
    text = str(Spec(spec.scheme, spec.location, {**whole.options, **selected}))
    return _select(scheme.open(whole, _reading_rules(spec)), selection, text)


def _select(source: Source, selection: Selection | None, text: str) -> Source:
    """Return the selected images; the text names source and selection, so that it opens again."""
    if selection is None:
        return source
    if isinstance(source, Subset):
        raise SourceError(f"{source.spec!r} is a part already; select from the whole source instead.")
    return Subset(source, selection.positions(source.ids, source.spec), text, source.on_error)


def _with_arguments(spec: Spec, arguments: Mapping[str, object]) -> Spec:
    """Return the spec with the arguments among its options; nothing may be said twice."""
    given = _texts(arguments)
    for name in given:
        if name in spec.options:
            raise SourceError(f"{name}= is given as an argument and in {str(spec)!r}; say it once.")
    return Spec(spec.scheme, spec.location, {**spec.options, **given})


def _texts(arguments: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in arguments.items() if value is not None}


def _reading_rules(spec: Spec) -> ReadOptions:
    on_error = _checked_on_error(spec.options.get("on_error"), str(spec)) or "fail"
    max_pixels = whole_number("max_pixels", spec.options.get("max_pixels"), str(spec))
    return ReadOptions(on_error, ReadOptions.max_pixels if max_pixels is None else max_pixels)


def _checked_on_error(value: str | None, where: str) -> OnError | None:
    allowed: tuple[OnError, ...] = get_args(OnError)
    if value is not None and value not in allowed:
        raise SourceError(f"on_error={value!r} of {where!r} is none of fail, skip.{did_you_mean(value, allowed)}")
    return next((choice for choice in allowed if choice == value), None)
