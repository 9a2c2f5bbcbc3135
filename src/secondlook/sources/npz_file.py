"""`npz:FILE`: images, labels and class names in a NumPy archive."""

import math
import os
import zipfile
from dataclasses import dataclass
from typing import IO, BinaryIO

import numpy as np
from numpy.lib import format as npy

from secondlook.arrays import Array
from secondlook.errors import SourceError, reject_failures
from secondlook.sources.array_source import ArraySource, StoredImages, find_version
from secondlook.sources.labels import to_text
from secondlook.sources.regular_files import (
    MAX_LOADED_BYTES,
    MAX_LOADED_ROWS,
    find_name,
    open_regular_file,
)
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec

LOCAL_HEADER_BYTES = 30
END_RECORD_BYTES = 22
UNKNOWN_COUNT = 2**16 - 1
BYTES_PER_CHECKED_BLOCK = 2**18
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@source_scheme(
    "npz",
    form="npz:FILE.npz",
    summary="a NumPy archive with the array images, and optionally labels, class_names and ids",
    options=("images", "labels", "class_names"),
)
def open_npz(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open an archive; uncompressed images are read one at a time, compressed images are decompressed once."""
    what = f"{str(spec.path)!r} cannot be read as a NumPy archive"
    with (
        reject_failures(what, "save it with numpy.savez", SourceError),
        open_regular_file(spec.path) as file,
        zipfile.ZipFile(file) as members,
    ):
        _check_directory(file, members)
        archive = _Archive(spec, file, members)
        images = archive.read_images(spec.options.get("images", "images"))
        labels = archive.read_optional_array("labels")
        class_names, ids = (archive.read_optional_texts(name) for name in ("class_names", "ids"))
    return ArraySource(
        images, spec=str(spec), ids=ids, labels=labels, class_names=class_names, on_error=read_options.on_error
    )


def _check_directory(file: BinaryIO, members: zipfile.ZipFile) -> None:
    """Check names and number of members, so that damage to the directory does not hide an array, such as the labels."""
    for member in members.infolist():
        members.open(member).close()  # compares the name in the directory with that in front of the member
    file.seek(-END_RECORD_BYTES - len(members.comment), os.SEEK_END)
    end_record = file.read(END_RECORD_BYTES)
    expected = int.from_bytes(end_record[10:12], "little")
    if len(members.infolist()) != expected and expected != UNKNOWN_COUNT:
        raise zipfile.BadZipFile(f"its directory lists {len(members.infolist())} of {expected} members")


@dataclass(frozen=True)
class _Header:
    """The header of an array, and its size in bytes."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]
    n_bytes: int


class _Archive:
    """The arrays of an open archive, whose sizes are checked before they are read."""

    def __init__(self, spec: Spec, file: BinaryIO, members: zipfile.ZipFile) -> None:
        self.spec = spec
        self.path = str(spec.path)
        self.file = file
        self.members = members
        self.loaded_bytes = 0

    def read_optional_array(self, name: str) -> Array | None:
        """Read an array that may be missing, except where the spec names it."""
        if name not in self.spec.options and f"{name}.npy" not in self.members.namelist():
            return None
        return self.read_array(self.spec.options.get(name, name))

    def read_optional_texts(self, name: str) -> list[str] | None:
        """Read an array of texts that may be missing."""
        texts = self.read_optional_array(name)
        return None if texts is None else [to_text(text) for text in np.atleast_1d(texts)]

    def read_images(self, name: str) -> Array | StoredImages:
        """Open an uncompressed array of images after its checksum is verified, or read a compressed one."""
        member, header = self._find_array(name)
        if member.compress_type != zipfile.ZIP_STORED or header.fortran_order or 0 in header.shape:
            return self.read_array(name)
        with self.members.open(member) as file:
            while file.read(BYTES_PER_CHECKED_BLOCK):  # raises at the end if the checksum differs
                pass
        start = self._find_data_start(member) + header.n_bytes
        return StoredImages(self.spec.path, find_version(self.file), header.dtype, header.shape, start)

    def read_array(self, name: str) -> Array:
        """Read an array into memory; its checksum is verified."""
        member, header = self._find_array(name)
        self.loaded_bytes += member.file_size
        if self.loaded_bytes > MAX_LOADED_BYTES:
            raise SourceError(
                f"the arrays of {self.path!r} take {self.loaded_bytes} bytes or more in memory, above the limit of"
                f" {MAX_LOADED_BYTES}; save them with numpy.savez in C order, so that images are read one at a time."
            )
        if math.prod(header.shape[:1]) > MAX_LOADED_ROWS:
            raise SourceError(
                f"array {name!r} of {self.path!r} has length {header.shape[0]}, above the limit of {MAX_LOADED_ROWS};"
                " split the archive."
            )
        with self.members.open(member) as file:
            return npy.read_array(file, allow_pickle=False)

    def _find_array(self, name: str) -> tuple[zipfile.ZipInfo, _Header]:
        known = [member.removesuffix(".npy") for member in self.members.namelist() if member.endswith(".npy")]
        member = self.members.getinfo(f"{find_name(name, known, 'array', self.path)}.npy")
        if member.compress_type not in COMPRESSION_METHODS:
            # Their decompressors in `zipfile` have no limit on the size of the output.
            raise SourceError(
                f"array {name!r} of {self.path!r} uses compression method {member.compress_type}; save it with"
                " numpy.savez_compressed."
            )
        with self.members.open(member) as file:
            header = _read_header(file)
        if header.dtype.hasobject:
            raise SourceError(
                f"array {name!r} of {self.path!r} contains pickled Python objects, which are never loaded; save it"
                " with a plain dtype (numbers, or text such as '<U20')."
            )
        n_bytes = header.n_bytes + math.prod(header.shape) * header.dtype.itemsize
        if n_bytes != member.file_size or min(header.shape, default=0) < 0 or not header.dtype.itemsize:
            raise SourceError(
                f"array {name!r} of {self.path!r} has {member.file_size} bytes, but {header.dtype}"
                f" {list(header.shape)} needs {n_bytes}; save it again with numpy.savez."
            )
        return member, header

    def _find_data_start(self, member: zipfile.ZipInfo) -> int:
        """Return the offset of a member's data, after its local header; the directory does not hold its length."""
        self.file.seek(member.header_offset)
        header = self.file.read(LOCAL_HEADER_BYTES)
        name_length, extra_length = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        return member.header_offset + LOCAL_HEADER_BYTES + name_length + extra_length


def _read_header(file: IO[bytes]) -> _Header:
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"unknown version {version} of the .npy format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    return _Header(shape, fortran_order, dtype, file.tell())
