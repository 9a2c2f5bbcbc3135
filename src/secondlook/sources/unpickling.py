"""A restricted unpickler for arrays of numbers and plain containers; it never calls anything else in a pickle."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources.labels import to_text
from secondlook.sources.regular_files import MAX_LOADED_BYTES, open_regular_file, reject_damaged

NUMBER_DTYPE = re.compile(r"[<>=|]?[biuf][1248]")


class ForbiddenGlobalError(pickle.UnpicklingError):
    """A pickle that requests something other than an array."""


def read_pickled_arrays(path: Path) -> dict[str, Any]:
    """Read a pickled dict of numeric arrays, lists and plain values, written by Python 2 or 3; keys become text."""
    with reject_damaged(f"{str(path)!r} cannot be read as a pickle", "download the official file again"):
        try:
            with open_regular_file(path, MAX_LOADED_BYTES) as file:
                return _parse_content(_ArrayUnpickler(file, encoding="bytes").load(), path)
        except ForbiddenGlobalError as error:
            raise SourceError(
                f"{str(path)!r} is not safe to load: its pickle requests {error}, but only NumPy arrays and plain"
                " containers are allowed; download the official file again."
            ) from error


def parse_names(values: object, where: str) -> tuple[str, ...]:
    """Return a pickled list of names as text; names pickled by Python 2 are bytes."""
    if not isinstance(values, list) or not all(isinstance(value, bytes | str) for value in values):
        raise SourceError(f"{where} is not a list of names; download the official file again.")
    return tuple(to_text(value) for value in values)


def _parse_content(content: object, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise SourceError(f"{str(path)!r} contains a {type(content).__name__}; expected a dict of arrays.")
    return {to_text(key): value.array if isinstance(value, _PickledArray) else value for key, value in content.items()}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that replaces every global by one of this module, or rejects it."""

    def find_class(self, module: str, name: str) -> Any:
        allowed: dict[str, Callable[..., object]] = {
            "numpy.ndarray": _PickledArray,
            "numpy.dtype": _PickledDtype,
            "numpy.core.multiarray._reconstruct": _reconstruct,
            "numpy._core.multiarray._reconstruct": _reconstruct,
            "_codecs.encode": _encode_latin1,
        }
        if f"{module}.{name}" not in allowed:
            raise ForbiddenGlobalError(f"{module}.{name}")
        return allowed[f"{module}.{name}"]


class _PickledDtype:
    """Replaces `numpy.dtype`, which would accept any flags that a pickle sets; allows numeric dtypes only."""

    def __init__(self, text: object, *_flags: object) -> None:
        if not NUMBER_DTYPE.fullmatch(to_text(text)):
            raise ForbiddenGlobalError(f"an array of dtype {to_text(text)!r}")
        self.dtype = np.dtype(to_text(text))

    def __setstate__(self, state: tuple[object, ...]) -> None:
        byte_order = to_text(state[1])
        self.dtype = self.dtype.newbyteorder(">" if byte_order == ">" else "<")


class _PickledArray:
    """Replaces `numpy.ndarray`; its state sets `array`."""

    array: Array

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _version, shape, dtype, fortran_order, content = state
        if not (isinstance(shape, tuple) and isinstance(dtype, _PickledDtype) and isinstance(content, bytes)):
            raise ValueError("malformed array state")
        self.array = np.frombuffer(content, dtype.dtype).reshape(shape, order="F" if fortran_order else "C")


def _reconstruct(kind: object, _shape: object, _typecode: object) -> _PickledArray:
    if kind is not _PickledArray:
        raise ForbiddenGlobalError("an array of another class")
    return _PickledArray()


def _encode_latin1(text: object, encoding: object) -> bytes:
    """Replace `_codecs.encode`, which old pickle protocols use to write bytes; other codecs could decompress."""
    if not isinstance(text, str) or to_text(encoding) not in ("latin1", "latin-1"):
        raise ForbiddenGlobalError(f"the codec {to_text(encoding)!r}")
    return text.encode("latin-1")
