"""Checks of what surrounds the images: ids, labels and class names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import IntArray
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean

ID_DIGITS = 6


def numbered_ids(count: int) -> tuple[str, ...]:
    """Return ids for images that have no names: their positions, padded so that they sort ('000042')."""
    return tuple(f"{position:0{ID_DIGITS}d}" for position in range(count))


def checked_ids(ids: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the ids as a tuple; there must be some, and no two the same."""
    if not ids:
        raise SourceError(f"{where!r} holds no images; at least one is needed.")
    if len(set(ids)) < len(ids):
        repeated, times = Counter(ids).most_common(1)[0]
        raise SourceError(f"id {repeated!r} stands {times} times in {where!r}; every image needs an id of its own.")
    for id_ in ids:
        try:
            id_.encode()
        except UnicodeEncodeError:
            raise SourceError(f"the name {id_!r} in {where!r} is not UTF-8; rename the file.") from None
    return tuple(ids)


def text_of(name: object) -> str:
    """Return a name as text; an array of bytes holds UTF-8."""
    return name.decode("utf-8", errors="replace") if isinstance(name, bytes) else str(name)


def checked_class_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the class names as a tuple; there must be some, and no two the same."""
    class_names = tuple(text_of(name) for name in (np.atleast_1d(names) if isinstance(names, np.ndarray) else names))
    if not class_names:
        raise SourceError(f"the list of class names in {where!r} is empty; give a name per class, or leave it out.")
    repeated, times = Counter(class_names).most_common(1)[0]
    if times > 1:
        raise SourceError(f"class name {repeated!r} stands {times} times in {where!r}; make the names differ.")
    return class_names


def checked_labels(labels: ArrayLike, count: int, class_names: tuple[str, ...] | None, where: str) -> IntArray:
    """Return the labels as int64 [N]; [N] or [N, 1] whole numbers from 0 to the number of classes - 1 are taken."""
    numbers = np.asarray(labels)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (count,):
        raise SourceError(
            f"the labels of {where!r} have shape {list(np.shape(labels))}; [{count}] was expected, one per image."
        )
    if not np.issubdtype(numbers.dtype, np.integer):
        raise SourceError(
            f"the labels of {where!r} are {numbers.dtype}; whole numbers were expected: the index of each image's"
            " class."
        )
    _check_range(numbers, class_names, where)
    return numbers.astype(np.int64)


def _check_range(labels: IntArray, class_names: tuple[str, ...] | None, where: str) -> None:
    most = np.iinfo(np.int64).max if class_names is None else len(class_names) - 1
    outside = np.flatnonzero((labels < 0) | (labels > most))
    if outside.size:
        position = int(outside[0])
        allowed = "0 or more" if class_names is None else f"0 to {most} (there are {most + 1} class names)"
        raise SourceError(
            f"label {labels[position]} of image {position} in {where!r} is outside the classes; {allowed} was expected."
        )


def labels_of_names(names: Sequence[str], class_names: tuple[str, ...], where: str) -> IntArray:
    """Return the index in `class_names` of each name. -> int64 [N]"""
    index_of = {name: index for index, name in enumerate(class_names)}
    for position, name in enumerate(names):
        if name not in index_of:
            raise SourceError(
                f"class {name!r} of image {position} in {where!r} is not among the {len(class_names)} class names."
                + did_you_mean(name, class_names)
            )
    return np.array([index_of[name] for name in names], dtype=np.int64)


def read_class_names(path: Path, where: str) -> tuple[str, ...]:
    """Read a text file with one class name on each line, in the order of the classifier's outputs."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"class names file {str(path)!r} of {where!r} cannot be read: {error}; a text of one name per line is"
            " needed."
        ) from error
    return checked_class_names((line.strip() for line in lines if line.strip()), str(path))
