"""From the bytes of an image file to uint8 RGB pixels, bounded in size before anything is decoded."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from secondlook.arrays import Array
from secondlook.sources.source import UnreadableImageError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = "JPEG, PNG, WebP, BMP or TIFF"
SIGNATURE_BYTES = 12
ORIENTATION = 0x0112

# What Pillow's decoders raise on damaged files, beside OSError.
DECODING_FAILURES = (
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


def decode_file(path: Path, where: str, max_pixels: int) -> Array:
    """Decode an image file. -> uint8 [H, W, 3]"""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UnreadableImageError(where, f"the file cannot be opened ({error.strerror})") from error
    with file:
        return decode_image(file, where, max_pixels)


def decode_image(file: BinaryIO, where: str, max_pixels: int) -> Array:
    """Decode the first picture in an open file. -> uint8 [H, W, 3]

    EXIF orientation is applied; gray, palette, CMYK and 16-bit pixels become 8-bit RGB; an alpha channel is dropped.
    """
    try:
        with _open_by_signature(file, where) as image:
            _check_size(image, where, max_pixels)
            image.load()
            return _rgb_pixels(_upright(image), where)
    except DECODING_FAILURES as error:
        raise UnreadableImageError(where, f"it is damaged or cut short ({error or type(error).__name__})") from error


def _open_by_signature(file: BinaryIO, where: str) -> "ImageFile":
    """Open the file as what its first bytes say it is.

    The format classes are called rather than `PIL.Image.open`: that one warns of sizes of its own choosing (our bound
    is settable), and tries dozens of rare formats on files nobody has reason to trust.
    """
    signature = file.read(SIGNATURE_BYTES)
    file.seek(0)
    if not signature:
        raise UnreadableImageError(where, "it is empty (0 bytes)")
    opener = _opener_for(signature)
    if opener is None:
        raise UnreadableImageError(where, f"its content is not {FORMATS}")
    return opener(file)


def _opener_for(signature: bytes) -> "Callable[[BinaryIO], ImageFile] | None":
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
    pixels = image.width * image.height
    if pixels > max_pixels:
        raise UnreadableImageError(
            where, f"it has {image.width} x {image.height} = {pixels} pixels, above the bound max_pixels={max_pixels}"
        )


def _upright(image: "Image") -> "Image":
    """Turn a loaded picture as the camera held it; loading a TIFF has turned it already and dropped the mark."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(image.getexif().get(ORIENTATION, 1))
    return image if turn is None else image.transpose(turn)


def _rgb_pixels(image: "Image", where: str) -> Array:
    if image.mode.startswith("I;16"):
        # The upper byte, which is also what Pillow keeps of 16-bit color.
        return np.repeat((np.array(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise UnreadableImageError(where, f"its pixels are 32-bit (mode {image.mode!r}); 8 or 16 bits were expected")
    if image.mode in ("P", "PA") and "transparency" in image.info:
        # Straight from palette to RGB Pillow warns when the transparency is a table.
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))
