"""Untrusted archive files: a restricted unpickler for pickles, and a separate process for MATLAB files."""

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from reproduction import mat_reader
from secondlook.arrays import Array
from secondlook.errors import SourceError

MAX_FILE_BYTES = 4 * 2**30
"""Maximum size of a file, and of the arrays in a MATLAB file."""

MAT_READER_SECONDS = 60.0
MAT_READER_BYTES_PER_SECOND = 5_000_000
MAT_READER_BYTES = 2 * 2**30
"""Time and address space of the process that reads a MATLAB file, besides those for its content."""

NUMBER_DTYPE = re.compile(r"[<>=|]?[biuf][1248]")


class ForbiddenGlobalError(pickle.UnpicklingError):
    """A pickle that requests something other than an array."""


@contextmanager
def open_archive(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file of limited size; any error of a parser becomes a `SourceError`."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")  # reading a pipe or a device may never end
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OSError(f"{path.stat().st_size} bytes, above the limit of {MAX_FILE_BYTES}")
        with path.open("rb") as file:
            yield file
    except SourceError:
        raise
    except Exception as error:  # parsers raise many types on damaged files
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
        raise SourceError(f"{str(path)!r} cannot be read: {reason}; download the official file again.") from error


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict of numeric arrays, lists and plain values, written by Python 2 or 3; keys become text."""
    with open_archive(path) as file:
        try:
            content = _ArrayUnpickler(file, encoding="bytes").load()
        except ForbiddenGlobalError as error:
            raise SourceError(
                f"{str(path)!r} is not safe to load: its pickle requests {error}, but only NumPy arrays and plain"
                " containers are allowed; download the official file again."
            ) from error
        if not isinstance(content, dict):
            raise SourceError(f"{str(path)!r} contains a {type(content).__name__}; expected a dict of arrays.")
        return {
            to_text(key): value.array if isinstance(value, _PickledArray) else value for key, value in content.items()
        }


def to_text(value: object) -> str:
    """Return a key or a name as text; Python 2 pickles them as bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


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


def read_mat_file(path: Path, names: Sequence[str]) -> list[Array]:
    """Read arrays of a MATLAB file (up to version 7), each named VARIABLE or STRUCTURE.FIELD.

    A separate process reads them, because scipy crashes on some damaged files.
    """
    with open_archive(path) as file, tempfile.TemporaryFile() as output:
        _run_mat_reader(file, names, output)
        output.seek(0)
        return [npy.read_array(output, allow_pickle=False) for _ in names]


def _run_mat_reader(file: BinaryIO, names: Sequence[str], output: IO[bytes]) -> None:
    seconds = MAT_READER_SECONDS + os.fstat(file.fileno()).st_size / MAT_READER_BYTES_PER_SECOND
    # -P: modules beside the program must not hide others.
    command = [sys.executable, "-P", mat_reader.__file__, str(MAX_FILE_BYTES + MAT_READER_BYTES), *names]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, stdin=file, stdout=output, stderr=subprocess.PIPE, env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"reading it took more than {seconds:.0f} seconds") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"its reader crashed (exit code {done.returncode})")
