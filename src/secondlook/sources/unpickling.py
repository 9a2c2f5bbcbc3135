"""Reading pickles that hold nothing but arrays and plain containers; nothing else in them is ever called."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import SourceError

NUMBER_DTYPE = re.compile(r"[<>=|]?[biuf][1248]")

UNPICKLING_FAILURES = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    MemoryError,
    OverflowError,
    pickle.UnpicklingError,
)


class ForbiddenGlobalError(pickle.UnpicklingError):
    """A pickle that asks for something other than an array."""


def read_arrays_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict of arrays of numbers, lists and plain values, written by Python 2 or 3; keys become text."""
    try:
        with path.open("rb") as file:
            return _named_entries(_ArraysUnpickler(file, encoding="bytes").load(), path)
    except ForbiddenGlobalError as error:
        raise SourceError(
            f"{str(path)!r} is refused: its pickle asks for {error}, and only NumPy arrays and plain containers are"
            " admitted; get the official file again."
        ) from error
    except UNPICKLING_FAILURES as error:
        raise SourceError(
            f"{str(path)!r} cannot be read as a pickle: {error or type(error).__name__}; get the official file again."
        ) from error


def texts(values: object, where: str) -> tuple[str, ...]:
    """Return a pickled list of names as texts; Python 2 left them as bytes."""
    if not isinstance(values, list) or not all(isinstance(value, bytes | str) for value in values):
        raise SourceError(f"{where} is not a list of names; get the official file again.")
    return tuple(_text(value) for value in values)


def _named_entries(content: object, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise SourceError(f"{str(path)!r} holds a {type(content).__name__}; a dict of arrays was expected.")
    return {_text(key): _unwrapped(value) for key, value in content.items()}


def _unwrapped(value: object) -> object:
    return value.array if isinstance(value, _PickledArray) else value


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _ArraysUnpickler(pickle.Unpickler):
    """An unpickler whose every global is replaced by one of this module, or refused."""

    def find_class(self, module: str, name: str) -> Any:
        admitted: dict[str, Callable[..., object]] = {
            "numpy.ndarray": _PickledArray,
            "numpy.dtype": _PickledDtype,
            "numpy.core.multiarray._reconstruct": _empty_array,
            "numpy._core.multiarray._reconstruct": _empty_array,
            "_codecs.encode": _latin1_bytes,
        }
        if f"{module}.{name}" not in admitted:
            raise ForbiddenGlobalError(f"{module}.{name}")
        return admitted[f"{module}.{name}"]


class _PickledDtype:
    """Stands for a dtype of numbers; NumPy's own would believe any flags that a pickle claims for it."""

    def __init__(self, text: object, *_flags: object) -> None:
        if not NUMBER_DTYPE.fullmatch(_text(text)):
            raise ForbiddenGlobalError(f"an array of dtype {_text(text)!r}")
        self.dtype = np.dtype(_text(text))

    def __setstate__(self, state: tuple[object, ...]) -> None:
        byte_order = _text(state[1])
        self.dtype = self.dtype.newbyteorder(">" if byte_order == ">" else "<")


class _PickledArray:
    """Stands for an array until its shape, its dtype and its bytes are known; `array` is then the real one."""

    array: Array

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _version, shape, dtype, in_columns, content = state
        if not (isinstance(shape, tuple) and isinstance(dtype, _PickledDtype) and isinstance(content, bytes)):
            raise ValueError("an array's state is malformed")
        self.array = np.frombuffer(content, dtype.dtype).reshape(shape, order="F" if in_columns else "C")


def _empty_array(kind: object, _shape: object, _typecode: object) -> _PickledArray:
    if kind is not _PickledArray:
        raise ForbiddenGlobalError("an array of another class")
    return _PickledArray()


def _latin1_bytes(text: object, encoding: object) -> bytes:
    """Stand for `_codecs.encode`, by which old pickle protocols write bytes; other codecs could decompress."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise ForbiddenGlobalError(f"the codec {_text(encoding)!r}")
    return text.encode("latin-1")
