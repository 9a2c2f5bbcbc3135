"""Image files: decoding to uint8 RGB pixels, with a size limit that is checked before decoding."""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array
from secondlook.sources.source import DECODING_THREADS, ReadOptions, Source, UnreadableImageError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = "JPEG, PNG, WebP, BMP or TIFF"
SIGNATURE_BYTES = 12
ORIENTATION_TAG = 0x0112

MAX_HASHED_BYTES = 2_000_000_000
"""Digests cover the bytes of the files up to this total size, and their sizes and modification times above it."""

# What Pillow's decoders raise on damaged files, besides OSError.
DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    struct.error,
    zlib.error,
)


class FileSource(Source):
    """A list of image files, decoded when they are read."""

    threads: int = DECODING_THREADS

    def __init__(
        self,
        spec: str,
        paths: Sequence[Path],
        ids: Sequence[str],
        read_options: ReadOptions,
        *,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
    ) -> None:
        super().__init__(spec, ids, labels=labels, class_names=class_names, on_error=read_options.on_error)
        self.paths = tuple(paths)
        self.max_pixels = read_options.max_pixels

    def read(self, index: int) -> Array:
        """Decode one file. -> uint8 [H, W, 3]"""
        path = self.paths[index]
        return decode_file(path, str(path), self.max_pixels)

    def hash_content(self, index: int) -> bytes:
        """Return a digest of one file: of its bytes, or of its size and modification time for very large sources."""
        path = self.paths[index]
        return _hash_file(path) if self._hashes_bytes else _hash_file_status(path)

    @cached_property
    def _hashes_bytes(self) -> bool:
        return sum(path.stat().st_size for path in self.paths if path.is_file()) <= MAX_HASHED_BYTES


def _hash_file(path: Path) -> bytes:
    """Return the sha256 of a file's bytes, or of the reason why it cannot be opened."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        return _hash_failure(error)


def _hash_file_status(path: Path) -> bytes:
    """Return the sha256 of a file's size and modification time."""
    try:
        status = path.stat()
    except OSError as error:
        return _hash_failure(error)
    return hashlib.sha256(f"size {status.st_size} changed {status.st_mtime_ns}".encode()).digest()


def _hash_failure(error: OSError) -> bytes:
    return hashlib.sha256(f"unreadable: {error.strerror}".encode()).digest()


def decode_file(path: Path, where: str, max_pixels: int) -> Array:
    """Decode an image file; `where` names it in errors. -> uint8 [H, W, 3]"""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UnreadableImageError(where, f"the file cannot be opened ({error.strerror})") from error
    with file:
        return decode_image(file, where, max_pixels)


def decode_image(file: BinaryIO, where: str, max_pixels: int) -> Array:
    """Decode the first image of an open file. -> uint8 [H, W, 3]

    EXIF orientation is applied; gray, palette, CMYK and 16-bit pixels become 8-bit RGB; an alpha channel is dropped.
    """
    try:
        with _open_by_signature(file, where) as image:
            _check_size(image, where, max_pixels)
            image.load()
            return _convert_to_rgb(_apply_orientation(image), where)
    except DECODING_ERRORS as error:
        raise UnreadableImageError(where, f"it is damaged or cut short ({error or type(error).__name__})") from error


def _open_by_signature(file: BinaryIO, where: str) -> "ImageFile":
    """Open the file in the format that its first bytes indicate.

    This calls Pillow's format classes instead of `PIL.Image.open`, which has its own size limit (ours is
    configurable) and tries dozens of rare formats on untrusted files.
    """
    signature = file.read(SIGNATURE_BYTES)
    file.seek(0)
    if not signature:
        raise UnreadableImageError(where, "it is empty (0 bytes)")
    opener = _find_opener(signature)
    if opener is None:
        raise UnreadableImageError(where, f"its content is not {FORMATS}")
    return opener(file)


def _find_opener(signature: bytes) -> "Callable[[BinaryIO], ImageFile] | None":
    from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    if signature[:4] == b"RIFF" and signature[8:12] == b"WEBP":
        return WebPImagePlugin.WebPImageFile
    openers: dict[bytes, Callable[[BinaryIO], ImageFile]] = {
        b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
        b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
        b"BM": BmpImagePlugin.BmpImageFile,
        b"II*\0": TiffImagePlugin.TiffImageFile,
        b"MM\0*": TiffImagePlugin.TiffImageFile,
    }
    return next((opener for start, opener in openers.items() if signature.startswith(start)), None)


def _check_size(image: "Image", where: str, max_pixels: int) -> None:
    n_pixels = image.width * image.height
    if n_pixels > max_pixels:
        raise UnreadableImageError(
            where, f"it has {image.width} x {image.height} = {n_pixels} pixels, above the bound max_pixels={max_pixels}"
        )


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
    if image.mode.startswith("I;16"):
        # The upper byte, as Pillow itself keeps of 16-bit color.
        return np.repeat((np.array(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise UnreadableImageError(where, f"its pixels are 32-bit (mode {image.mode!r}); 8 or 16 bits were expected")
    if image.mode in ("P", "PA") and "transparency" in image.info:
        # Converting a palette with a transparency table straight to RGB makes Pillow warn.
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))
