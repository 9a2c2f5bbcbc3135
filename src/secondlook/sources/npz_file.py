"""`npz:FILE`: images, labels and class names in a NumPy archive."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.labels import to_text
from secondlook.sources.source import ArraySource, ReadOptions, source_scheme
from secondlook.specs import Spec

LOCAL_HEADER_BYTES = 30


@source_scheme(
    "npz",
    form="npz:FILE.npz",
    summary="a NumPy archive with the array images, and optionally labels, class_names and ids",
    options={
        "images": "name of the array of images, 'images' by default",
        "labels": "name of the array of labels, 'labels' by default",
        "class_names": "name of the array of class names, 'class_names' by default",
    },
)
def open_npz(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open an archive; uncompressed images are memory-mapped, compressed images are decompressed once."""
    path = spec.path
    with _open_archive(path) as archive:
        images = _read_array(path, archive, spec.options.get("images", "images"))
        labels, class_names = (_read_optional_array(spec, archive, name) for name in ("labels", "class_names"))
        ids = _read_optional_array(spec, archive, "ids")
    return ArraySource(
        images,
        spec=str(spec),
        ids=None if ids is None else [to_text(id_) for id_ in np.atleast_1d(ids)],
        labels=labels,
        class_names=class_names,
        on_error=read_options.on_error,
    )


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise SourceError(f"no such file {str(path)!r}; expected the path of an .npz file.")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise SourceError(
            f"{str(path)!r} cannot be read as a NumPy archive: {error}; save it with numpy.savez."
        ) from error


def _read_optional_array(spec: Spec, archive: zipfile.ZipFile, name: str) -> Array | None:
    """Read an array that may be missing, except where the spec names it."""
    if name not in spec.options and f"{name}.npy" not in archive.namelist():
        return None
    return _read_array(spec.path, archive, spec.options.get(name, name))


def _read_array(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    known = [member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy")]
    if name not in known:
        raise SourceError(
            f"no array {name!r} in {str(path)!r}; its arrays: {', '.join(known) or 'none'}.{did_you_mean(name, known)}"
        )
    with archive.open(f"{name}.npy") as member:
        shape, fortran_order, dtype = _read_header(member)
        if dtype.hasobject:
            raise SourceError(
                f"array {name!r} of {str(path)!r} contains pickled Python objects, which are never loaded; save it"
                " with a plain dtype (numbers, or text such as '<U20')."
            )
        compressed = archive.getinfo(f"{name}.npy").compress_type != zipfile.ZIP_STORED
        if not compressed and 0 not in shape:
            start = _find_data_start(path, archive.getinfo(f"{name}.npy")) + member.tell()
            return np.memmap(path, dtype, "r", start, shape, "F" if fortran_order else "C")
    with archive.open(f"{name}.npy") as member:
        return npy.read_array(member, allow_pickle=False)


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read the header of an array; the file position is then that of the first value."""
    version = npy.read_magic(member)
    return npy.read_array_header_1_0(member) if version == (1, 0) else npy.read_array_header_2_0(member)


def _find_data_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Return the offset of a stored member's data, after its local header; the directory does not hold its length."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(LOCAL_HEADER_BYTES)
    name_length, extra_length = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return member.header_offset + LOCAL_HEADER_BYTES + name_length + extra_length
