"""Validation of ids, labels and class names."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray, is_text, to_host
from secondlook.errors import SourceError, reject_failures
from secondlook.files import read_regular_file
from secondlook.registry import did_you_mean
from secondlook.specs import Spec, expand_path

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?")
MAX_CLASS_INDEX = np.iinfo(np.int64).max


def validate_ids(ids: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the ids as a tuple; there must be at least one, all unique and encodable as UTF-8."""
    if not ids:
        raise SourceError(f"no images in {where!r}; expected at least one.")
    if len(set(ids)) < len(ids):
        duplicate, times = Counter(ids).most_common(1)[0]
        raise SourceError(f"duplicate id {duplicate!r} ({times} times) in {where!r}; ids must be unique.")
    try:
        "".join(ids).encode()
    except UnicodeEncodeError:
        id_ = next(id_ for id_ in ids if any("\ud800" <= character <= "\udfff" for character in id_))
        raise SourceError(f"id {id_!r} in {where!r} is not valid UTF-8; rename the file.") from None
    return tuple(ids)


def validate_class_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the class names as a tuple; there must be at least one, all unique."""
    class_names = tuple(to_text(name) for name in (np.atleast_1d(names) if isinstance(names, np.ndarray) else names))
    if not class_names:
        raise SourceError(f"the class names of {where!r} are empty; pass one name per class, or omit them.")
    duplicate, times = Counter(class_names).most_common(1)[0]
    if times > 1:
        raise SourceError(f"duplicate class name {duplicate!r} ({times} times) in {where!r}; names must be unique.")
    return class_names


def validate_labels(
    labels: ArrayLike, n_images: int, class_names: tuple[str, ...] | None, where: str
) -> tuple[IntArray, tuple[str, ...] | None]:
    """Return the labels as int64 [N], and the class names.

    Labels are integers from 0 to the number of classes - 1, [N] or [N, 1], or class names. Without `class_names`, the
    class names are the sorted names among the labels, as in a folder.
    """
    given = to_host(labels)
    values = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    if values.shape != (n_images,):
        shape = list(given.shape)
        raise SourceError(f"the labels of {where!r} have shape {shape}; expected [{n_images}], one per image.")
    if is_text(labels):
        texts = [to_text(value) for value in values.tolist()]
        names = class_names or tuple(sorted(set(texts)))
        return encode_labels(texts, names, where), names
    if values.dtype.kind in "OTU":
        items = list(labels if isinstance(labels, list | tuple) else given.flat)
        index = next(index for index, value in enumerate(items) if not isinstance(value, str))
        fault = f"label {items[index]!r} of image {index} in {where!r} is not a class name, but other labels are"
        raise SourceError(fault, repair="use only names, or only class indices")
    if not np.issubdtype(values.dtype, np.integer):
        expected = "integers, the class index of each image, or the class name of each"
        raise SourceError(f"the labels of {where!r} have dtype {values.dtype}; expected {expected}.")
    highest = MAX_CLASS_INDEX if class_names is None else len(class_names) - 1
    invalid = np.flatnonzero((values < 0) | (values > highest))
    if invalid.size:
        fault = f"label {values[invalid[0]]} of image {invalid[0]} in {where!r} is out of range"
        expected = "0 or more" if class_names is None else f"0 to {highest} ({highest + 1} class names)"
        raise SourceError(f"{fault}; expected {expected}.")
    return values.astype(np.int64), class_names


def encode_labels(names: Sequence[str], class_names: tuple[str, ...], where: str) -> IntArray:
    """Return the index of each name in `class_names`. -> int64 [N]"""
    index_of = {name: index for index, name in enumerate(class_names)}
    for position, name in enumerate(names):
        if name not in index_of:
            fault = f"class {name!r} of image {position} in {where!r} is not among the {len(class_names)} class names."
            raise SourceError(fault + did_you_mean(name, class_names))
    return np.array([index_of[name] for name in names], dtype=np.int64)


def parse_labels(
    texts: Sequence[str], spec: Spec, name_row: Callable[[int], str]
) -> tuple[IntArray | None, tuple[str, ...] | None]:
    """Parse numbers as class indices, other text as class names: sorted, or in the order of the `classes` file.

    Tables often contain 3.0 for 3. A name in the `classes` file is a name even if it looks like a number. If all texts
    are empty, there are no labels. `name_row` names a row in errors. Returns labels int64 [N] and class names.
    """
    class_names, where = read_class_names(spec), spec.location
    if not any(texts):
        return None, class_names
    if not all(texts):
        row = name_row(texts.index(""))
        raise SourceError(f"{row} of {where!r} has no label, but other rows do; label all rows or none.")
    numbers = [index for index, text in enumerate(texts) if NUMBER.fullmatch(text)]
    if len(numbers) == len(texts) and (all(map(str.isdecimal, texts)) or not set(texts) <= set(class_names or ())):
        for index, number in enumerate(map(Decimal, texts)):
            if not 0 <= number <= MAX_CLASS_INDEX or number != int(number):
                fault = f"label {texts[index]} in {name_row(index)} of {where!r} is not a class index"
                raise SourceError(fault, repair="expected 0, 1, 2, ..., or class names listed in ?classes=FILE")
        return np.array([int(Decimal(text)) for text in texts], dtype=np.int64), class_names
    if numbers and class_names is None:
        found = f"{texts[numbers[0]]!r} in {name_row(numbers[0])}"
        repair = "use only one of them, or add ?classes=FILE"
        raise SourceError(f"the labels of {where!r} mix numbers ({found}) and names", repair=repair)
    names = class_names or tuple(sorted(set(texts)))
    return encode_labels(texts, names, where), names


def hide_unpublished(labels: Array) -> Array | None:
    """Return the labels, or None if all are -1, as in test splits with unpublished labels."""
    return None if labels.size and bool((labels == -1).all()) else labels


def read_class_names(spec: Spec) -> tuple[str, ...] | None:
    """Read the file of the option `classes`, one class name per line; None without the option."""
    if "classes" not in spec.options:
        return None
    path = expand_path(spec.options["classes"])
    what = f"class names file {str(path)!r} of {str(spec)!r} cannot be read"
    with reject_failures(what, "expected a UTF-8 text file with one name per line", SourceError):
        lines = read_regular_file(path).decode("utf-8-sig").splitlines()
    return validate_class_names((line.strip() for line in lines if line.strip()), str(path))


def to_text(value: object) -> str:
    """Return a name as text; bytes are decoded as UTF-8."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
