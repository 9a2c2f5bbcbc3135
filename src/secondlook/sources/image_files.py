"""Image files: decoding to uint8 RGB pixels, with size limits that are checked before decoding."""

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, IntArray
from secondlook.sources.regular_files import make_absolute, missing_root_error, open_regular_file
from secondlook.sources.source import (
    DECODING_THREADS,
    MAX_BYTES,
    UNREADABLE,
    ReadOptions,
    Source,
    UnreadableImageError,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = "JPEG, PNG, WebP, BMP or TIFF"
HEADER_BYTES = 30
SMALL_FILE_BYTES = 2**20
CHANNELS = 3
STRIP_PIXELS = 2**22
ORIENTATION_TAG = 0x0112

JPEG_START = b"\xff\xd8\xff"
SCAN_START = re.compile(rb"\xff\xda\0[\x08\x0a\x0c\x0e]")
"""The marker of a scan of a JPEG file and its length: 6 bytes, and 2 for each of its 1 to 4 components."""

MAX_SCANS = 50
"""Maximum number of scans of a JPEG file, each of which takes a pass over all pixels; encoders write about ten."""

MAX_HASHED_BYTES = 2_000_000_000
"""Digests cover the bytes of the files up to this total size, and their sizes and modification times above it."""


@dataclass(frozen=True)
class Labeling:
    """Labels and class names of images, where they are known."""

    labels: ArrayLike | None = None
    class_names: Iterable[str] | None = None


class EncodedSource(Source):
    """Encoded images, decoded by several threads when they are read. Subclasses implement `read_within`."""

    threads: int = DECODING_THREADS

    def __init__(self, spec: str, ids: Sequence[str], read_options: ReadOptions, labeling: Labeling) -> None:
        super().__init__(
            spec, ids, labels=labeling.labels, class_names=labeling.class_names, on_error=read_options.on_error
        )
        self.max_pixels = read_options.max_pixels
        self.max_bytes = read_options.max_bytes

    def read(self, index: int) -> Array:
        """Decode one image. -> uint8 [H, W, 3]"""
        return self.read_within(index, self.max_bytes)


class FileSource(EncodedSource):
    """A list of image files, decoded when they are read."""

    def __init__(
        self,
        spec: str,
        paths: Sequence[Path],
        ids: Sequence[str],
        read_options: ReadOptions,
        labeling: Labeling,
        root: Path | None = None,
    ) -> None:
        """Open files; a `root` that is given and gone is an error, rather than each file that is missing."""
        super().__init__(spec, ids, read_options, labeling)
        self.paths = tuple(paths)
        self.root = root

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Decode one file, if it takes at most `max_bytes` when decoded. -> uint8 [H, W, 3]"""
        path = self.paths[index]
        try:
            return decode_file(path, str(path), self.max_pixels, max_bytes)
        except UnreadableImageError as error:
            if self.root is not None and isinstance(error.__cause__, FileNotFoundError) and not self.root.is_dir():
                raise missing_root_error(self.root) from error
            raise

    def extract(self, positions: range | IntArray) -> "FileSource | None":
        """Return some of the files, with absolute paths."""
        if type(self) is not FileSource:
            return None
        paths = tuple(make_absolute(self.paths[position]) for position in positions)
        return self._copy_part(positions, paths=paths, root=self._existing_root)

    def find_path(self, index: int) -> Path | None:
        """Return the absolute path of one file."""
        return self.paths[index].absolute()

    def hash_content(self, index: int) -> bytes:
        """Return a digest of one file: of its bytes, or of its size and modification time for very large sources."""
        try:
            if self._hashes_bytes:
                with open_regular_file(self.paths[index]) as file:
                    return hashlib.file_digest(file, "sha256").digest()
            status = self.paths[index].stat()
        except (OSError, ValueError):
            return UNREADABLE
        return hashlib.sha256(f"size {status.st_size} changed {status.st_mtime_ns}".encode()).digest()

    @cached_property
    def _hashes_bytes(self) -> bool:
        return sum(map(_find_file_size, self.paths)) <= MAX_HASHED_BYTES

    @cached_property
    def _existing_root(self) -> Path | None:
        """The deepest folder on this machine that contains all files, or should; None where there is none."""
        if self.root is not None:
            return make_absolute(self.root)
        common = find_common_folder([make_absolute(path) for path in self.paths])
        if common is None:
            return None
        return next((folder for folder in (common, *common.parents) if folder.is_dir()), None)


def find_common_folder(paths: Sequence[Path]) -> Path | None:
    """Return the deepest folder that contains all files, given by absolute paths; None on different drives."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:
        return None


def _find_file_size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 where it cannot be opened."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        return 0


def decode_file(path: Path, where: str, max_pixels: int, max_bytes: int = MAX_BYTES) -> Array:
    """Decode an image file; `where` names it in errors. -> uint8 [H, W, 3]"""
    try:
        file = open_regular_file(path)
    except OSError as error:
        raise UnreadableImageError(where, f"the file cannot be opened ({error.strerror})") from error
    with file:
        return decode_image(file, where, max_pixels, max_bytes)


def decode_image(file: BinaryIO, where: str, max_pixels: int, max_bytes: int = MAX_BYTES) -> Array:
    """Decode the first image of an open file. -> uint8 [H, W, 3]

    EXIF orientation is applied; gray, palette, CMYK and 16-bit pixels become 8-bit RGB; an alpha channel is dropped.
    """
    with _translate_decoding_errors(where):
        file = _load_small_file(file)
        header = file.read(HEADER_BYTES)
        file.seek(0)
        canvas = _parse_webp_canvas(header)
        if canvas is not None:
            # Pillow allocates memory for the canvas when it opens a WebP file, not when it decodes it.
            _check_size(*canvas, where, max_pixels, max_bytes)
        if header.startswith(JPEG_START) and _count_scans(file) > MAX_SCANS:
            raise UnreadableImageError(where, f"it is a JPEG file of more than {MAX_SCANS} scans")
        with _find_opener(header, where)(file) as image:
            return convert_pillow_image(image, where, max_pixels, max_bytes)


def convert_pillow_image(image: "Image", where: str, max_pixels: int, max_bytes: int = MAX_BYTES) -> Array:
    """Return the pixels of a Pillow image as `decode_image` does those of a file. -> uint8 [H, W, 3]"""
    with _translate_decoding_errors(where):
        _check_size(*image.size, where, max_pixels, max_bytes)
        image.load()
        return _convert_to_rgb(_apply_orientation(image), where)


@contextmanager
def _translate_decoding_errors(where: str) -> Iterator[None]:
    try:
        yield
    except UnreadableImageError:
        raise
    except MemoryError as error:
        raise UnreadableImageError(where, "decoding it takes more memory than is available") from error
    except Exception as error:  # no list of what Pillow's decoders raise on damaged files is complete
        raise UnreadableImageError(where, f"it is damaged or cut short ({error or type(error).__name__})") from error


def _count_scans(file: BinaryIO) -> int:
    """Return the number of scans of a JPEG file; one that starts at the edge of a block of the file may be missed."""
    n_scans = sum(len(SCAN_START.findall(block)) for block in iter(partial(file.read, 2**20), b""))
    file.seek(0)
    return n_scans


def _load_small_file(file: BinaryIO) -> BinaryIO:
    """Return a small file in memory, where the many short reads of a decoder take less time."""
    content = file.read(SMALL_FILE_BYTES + 1)
    if len(content) <= SMALL_FILE_BYTES:
        return io.BytesIO(content)
    file.seek(0)
    return file


def _parse_webp_canvas(header: bytes) -> tuple[int, int] | None:
    """Return the width and height in the header of a WebP file; None for other files."""
    if header[:4] != b"RIFF" or header[8:12] != b"WEBP" or len(header) < HEADER_BYTES:
        return None
    if header[12:16] == b"VP8X":
        return int.from_bytes(header[24:27], "little") + 1, int.from_bytes(header[27:30], "little") + 1
    if header[12:16] == b"VP8L":
        sides = int.from_bytes(header[21:25], "little")
        return (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1
    return int.from_bytes(header[26:28], "little") & 0x3FFF, int.from_bytes(header[28:30], "little") & 0x3FFF


def _find_opener(header: bytes, where: str) -> "Callable[[BinaryIO], ImageFile]":
    """Return Pillow's class for the format that the first bytes of a file indicate.

    Opening files with these classes instead of `PIL.Image.open` avoids its own size limit (ours is configurable) and
    dozens of rare formats on untrusted files.
    """
    if not header:
        raise UnreadableImageError(where, "it is empty (0 bytes)")
    start = header[:4] + header[8:12] if header[:4] == b"RIFF" else header
    opener = next((opener for known, opener in _load_openers().items() if start.startswith(known)), None)
    if opener is None:
        raise UnreadableImageError(where, f"its content is not {FORMATS}")
    return opener


@cache
def _load_openers() -> "dict[bytes, Callable[[BinaryIO], ImageFile]]":
    """Return Pillow's classes by the first bytes of a file; the length of a RIFF file is left out."""
    from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    return {
        JPEG_START: JpegImagePlugin.JpegImageFile,
        b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
        b"BM": BmpImagePlugin.BmpImageFile,
        b"II*\0": TiffImagePlugin.TiffImageFile,
        b"MM\0*": TiffImagePlugin.TiffImageFile,
        b"RIFFWEBP": WebPImagePlugin.WebPImageFile,
    }


def _check_size(width: int, height: int, where: str, max_pixels: int, max_bytes: int) -> None:
    n_pixels = width * height
    if n_pixels > max_pixels:
        raise UnreadableImageError(
            where,
            f"it has {width} x {height} = {n_pixels} pixels, above the bound max_pixels={max_pixels}",
            limit="max_pixels",
            needed=n_pixels,
        )
    n_bytes = n_pixels * CHANNELS
    if n_bytes > max_bytes:
        reason = f"its {width} x {height} pixels take {n_bytes} bytes, above the limit max_bytes={max_bytes}"
        raise UnreadableImageError(where, reason, limit="max_bytes", needed=n_bytes)


def _apply_orientation(image: "Image") -> "Image":
    """Rotate or flip a loaded image by its EXIF orientation; loading a TIFF has already done so and removed the tag."""
    from PIL.Image import Transpose

    transpositions = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    transposition = transpositions.get(image.getexif().get(ORIENTATION_TAG, 1))
    return image if transposition is None else image.transpose(transposition)


def _convert_to_rgb(image: "Image", where: str) -> Array:
    """Convert in strips, since Pillow holds several copies of what it converts at once. -> uint8 [H, W, 3]"""
    if image.mode in ("I", "F"):
        raise UnreadableImageError(where, f"its pixels are 32-bit (mode {image.mode!r}); 8 or 16 bits were expected")
    rows = max(1, STRIP_PIXELS // image.width)
    if image.mode == "RGB" and image.height <= rows:
        return _read_rgb(image)
    pixels = np.empty((image.height, image.width, CHANNELS), dtype=np.uint8)
    for top in range(0, image.height, rows):
        pixels[top : top + rows] = _convert_strip(_cut_strip(image, top, min(top + rows, image.height)))
    return pixels


def _cut_strip(image: "Image", top: int, bottom: int) -> "Image":
    if (top, bottom) == (0, image.height):
        return image
    from PIL.Image import Resampling

    # Unlike `crop`, `resize` does not apply Pillow's own size limit.
    return image.resize((image.width, bottom - top), Resampling.NEAREST, (0, top, image.width, bottom))


def _convert_strip(strip: "Image") -> Array:
    if strip.mode.startswith("I;16"):
        # The upper byte, as Pillow itself keeps of 16-bit color.
        return (np.asarray(strip) >> 8).astype(np.uint8)[:, :, None]
    if strip.mode in ("P", "PA") and "transparency" in strip.info:
        # Converting a palette with a transparency table straight to RGB makes Pillow warn.
        strip = strip.convert("RGBA")
    return _read_rgb(strip if strip.mode == "RGB" else strip.convert("RGB"))


def _read_rgb(image: "Image") -> Array:
    """Return the pixels of an RGB image.

    NumPy has Pillow write them as bytes, which takes up to ten times as long and blocks all other threads meanwhile.
    Through Arrow they are read where they are: red, green, blue and one unused byte.
    """
    if not hasattr(image, "__arrow_c_array__"):  # Pillow before 11.2
        return np.asarray(image)
    import cv2
    import pyarrow

    try:
        cells = pyarrow.array(image)
    except ValueError:  # a large image is in several parts of memory
        return np.asarray(image)
    rgbx = cells.flatten().to_numpy(zero_copy_only=True).reshape(image.height, image.width, 4)
    pixels: Array = cv2.cvtColor(rgbx, cv2.COLOR_RGBA2RGB)
    return pixels
