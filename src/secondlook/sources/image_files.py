"""Decode image files to uint8 RGB pixels; size limits are checked before decoding."""

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from secondlook.arrays import Array
from secondlook.files import open_regular_file
from secondlook.sources.source import MAX_BYTES, UnreadableImageError, check_image_bytes

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = "JPEG, PNG, WebP, BMP or TIFF"
CHANNELS = 3
STRIP_PIXELS = 2**22
ORIENTATIONS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
ORIENTATIONS |= {6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"}

JPEG_START = b"\xff\xd8\xff"
SCAN_START = re.compile(rb"\xff\xda\0[\x08\x0a\x0c\x0e]")
"""The marker and length of a JPEG scan: 6 bytes, and 2 for each of its 1 to 4 components."""

MAX_SCANS = 50
"""Maximum number of scans of a JPEG file. Each scan takes a pass over all pixels; encoders write about ten."""


def read_image_file(path: Path, where: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read an encoded image of at most `max_bytes`; `where` names it in errors."""
    try:
        with open_regular_file(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            check_image_bytes(where, "it is stored in", n_bytes, max_bytes)
            return file.read(n_bytes)
    except OSError as error:
        raise UnreadableImageError(where, f"the file cannot be opened ({error.strerror})") from error


def decode_image(
    content: bytes, where: str, max_pixels: int, max_bytes: int = MAX_BYTES, *, keep_16_bit: bool = False
) -> Array:
    """Decode the first image of a file. -> uint8 [H, W, 3], or uint16 [H, W, 1] of 16-bit gray with `keep_16_bit`

    EXIF orientation is applied; gray, palette, CMYK and 16-bit pixels become 8-bit RGB; an alpha channel is dropped.
    """
    with _translate_decoding_errors(where):
        canvas = _parse_webp_canvas(content[:30])
        if canvas is not None:
            # Pillow allocates memory for the canvas when it opens a WebP file, not when it decodes it.
            _check_size(canvas, where, max_pixels, max_bytes)
        if content.startswith(JPEG_START) and len(SCAN_START.findall(content)) > MAX_SCANS:
            raise UnreadableImageError(where, f"it is a JPEG file of more than {MAX_SCANS} scans")
        with _open_image(content, where) as image:
            return convert_pillow_image(image, where, max_pixels, max_bytes, keep_16_bit=keep_16_bit)


def convert_pillow_image(
    image: "Image", where: str, max_pixels: int, max_bytes: int = MAX_BYTES, *, keep_16_bit: bool = False
) -> Array:
    """Convert a Pillow image to pixels, like `decode_image`. -> uint8 [H, W, 3]"""
    with _translate_decoding_errors(where):
        _check_size(image.size, where, max_pixels, max_bytes)
        image.load()
        image = _apply_orientation(image)
        if keep_16_bit and image.mode.startswith("I;16"):
            return np.asarray(image).astype(np.uint16)[:, :, None]
        return _convert_to_rgb(image, where)


@contextmanager
def _translate_decoding_errors(where: str) -> Iterator[None]:
    try:
        yield
    except UnreadableImageError:
        raise
    except MemoryError as error:
        raise UnreadableImageError(where, "decoding it takes more memory than is available") from error
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise UnreadableImageError(where, f"it is damaged or cut short ({error or type(error).__name__})") from error


def _parse_webp_canvas(header: bytes) -> tuple[int, int] | None:
    """Return the width and height in the header of a WebP file; None for other files."""
    if header[:4] != b"RIFF" or header[8:12] != b"WEBP" or len(header) < 30:
        return None
    if header[12:16] == b"VP8X":
        return int.from_bytes(header[24:27], "little") + 1, int.from_bytes(header[27:30], "little") + 1
    if header[12:16] == b"VP8L":
        sides = int.from_bytes(header[21:25], "little")
        return (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1
    return int.from_bytes(header[26:28], "little") & 0x3FFF, int.from_bytes(header[28:30], "little") & 0x3FFF


def _open_image(content: bytes, where: str) -> "ImageFile":
    """Open a file with Pillow's class for the format that its first bytes indicate.

    Opening files with these classes instead of `PIL.Image.open` avoids its own size limit (ours is configurable) and
    dozens of rare formats on untrusted files.
    """
    from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    file = io.BytesIO(content)
    if content.startswith(JPEG_START):
        return JpegImagePlugin.JpegImageFile(file)
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImagePlugin.PngImageFile(file)
    if content.startswith(b"BM"):
        return BmpImagePlugin.BmpImageFile(file)
    if content.startswith((b"II*\0", b"MM\0*")):
        return TiffImagePlugin.TiffImageFile(file)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return WebPImagePlugin.WebPImageFile(file)
    raise UnreadableImageError(where, f"its content is not {FORMATS}" if content else "it is empty (0 bytes)")


def _check_size(size: tuple[int, int], where: str, max_pixels: int, max_bytes: int) -> None:
    sides, n_pixels = f"{size[0]} x {size[1]}", size[0] * size[1]
    if n_pixels > max_pixels:
        reason = f"it has {sides} = {n_pixels} pixels, above the limit of {max_pixels}"
        raise UnreadableImageError(where, reason, limit="max_pixels", needed=n_pixels)
    check_image_bytes(where, f"its {sides} pixels take", n_pixels * CHANNELS, max_bytes)


def _apply_orientation(image: "Image") -> "Image":
    """Rotate or flip a loaded image by its EXIF orientation; loading a TIFF has already done so and removed the tag.

    `PIL.ImageOps.exif_transpose` also rewrites the other tags, which fails on damaged ones.
    """
    from PIL.ExifTags import Base
    from PIL.Image import Transpose

    name = ORIENTATIONS.get(image.getexif().get(Base.Orientation, 1))
    return image if name is None else image.transpose(Transpose[name])


def _convert_to_rgb(image: "Image", where: str) -> Array:
    """Convert in strips, because Pillow holds several copies of the pixels it converts. -> uint8 [H, W, 3]"""
    from PIL.Image import Resampling

    if image.mode in ("I", "F"):
        raise UnreadableImageError(where, f"its pixels are 32-bit (mode {image.mode!r}); 8 or 16 bits were expected")
    rows = max(1, STRIP_PIXELS // image.width)
    if image.mode == "RGB" and image.height <= rows:
        return _read_rgb(image)
    pixels = np.empty((image.height, image.width, CHANNELS), dtype=np.uint8)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        # Unlike `crop`, `resize` does not apply Pillow's own size limit.
        strip = image.resize((image.width, bottom - top), Resampling.NEAREST, (0, top, image.width, bottom))
        pixels[top:bottom] = _convert_strip(strip)
    return pixels


def _convert_strip(strip: "Image") -> Array:
    if strip.mode.startswith("I;16"):
        # Keep the upper byte, like Pillow for 16-bit color.
        return (np.asarray(strip) >> 8).astype(np.uint8)[:, :, None]
    if strip.mode in ("P", "PA") and "transparency" in strip.info:
        # Converting a palette with a transparency table straight to RGB makes Pillow warn.
        strip = strip.convert("RGBA")
    return _read_rgb(strip if strip.mode == "RGB" else strip.convert("RGB"))


def _read_rgb(image: "Image") -> Array:
    """Return the pixels of an RGB image.

    Arrow reads Pillow's memory without a copy: red, green, blue and one unused byte. NumPy takes up to ten times as
    long and blocks all other threads.
    """
    import cv2
    import pyarrow

    try:
        cells = pyarrow.array(image)
    except (TypeError, ValueError):  # Pillow before 11.2, or a large image in several blocks
        return np.asarray(image)
    rgbx = cells.flatten().to_numpy(zero_copy_only=True).reshape(image.height, image.width, 4)
    pixels: Array = cv2.cvtColor(rgbx, cv2.COLOR_RGBA2RGB)
    return pixels
