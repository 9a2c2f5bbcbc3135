"""Images of requests: limits, and decoding to the input size of the classifier."""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import Any

from secondlook.extension import Array, Plan, SecondLookError, SourceError, UnreadableImageError, read_image
from secondlook.serving.responses import RequestError

LONGEST_ID = 200
LONGEST_NAME = 500
MAX_LARGEST = 2
"""Number of largest images decoded at once; more of smaller ones."""
MEDIA_TYPES_BY_START = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"BM": "image/bmp",
    b"II*\0": "image/tiff",
    b"MM\0*": "image/tiff",
}


@dataclass(frozen=True, eq=False)
class SubmittedImage:
    """An image of a request: the bytes of a file, or pixels uint8|float32 [H, W, 1 or 3]."""

    content: bytes | Array
    id: str | None = None
    """The id from the client, which makes the request safe to retry; None to generate one."""
    name: str | None = None
    """Its file name, for reviewers."""


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image of a request before its decision."""

    image: SubmittedImage
    id: str
    digest: str
    """Hex sha256 of the image as received."""
    inputs: Array
    """Pixels at the input size. [1, H, W, C]"""
    waiting: list[Any] = field(default_factory=list)
    """Futures of the waiting requests: its own, then others with the same id."""
    arrived: float = field(default_factory=time.monotonic)


class ImageDecoder:
    """Decodes the images of requests, thread-safe and with a limit on the total number of pixels."""

    def __init__(self, plan: Callable[[], Plan], max_pixels: int) -> None:
        self._plan, self._max_pixels = plan, max_pixels
        self._pixels = PixelBudget(MAX_LARGEST * max_pixels)

    def decode(self, images: Sequence[SubmittedImage]) -> list[DecodedImage]:
        """Decode the images of a request; one invalid image is an error for all."""
        given = [image.id for image in images if image.id is not None]
        for id_ in given:
            check_id(id_)
        if len(set(given)) < len(given):
            raise RequestError(400, "id", "the request has a duplicate id; ids must be unique.")
        decoded = []
        for number, image in enumerate(images, start=1):
            inputs = self._decode(image.content, f"{number}" + (f" ({image.name!r})" if image.name else ""))
            content = image.content
            if not isinstance(content, bytes):
                content = f"{content.dtype}{content.shape}".encode() + content.tobytes()
            digest = hashlib.sha256(content).hexdigest()
            decoded.append(DecodedImage(image, image.id or uuid.uuid4().hex, digest, inputs))
        return decoded

    def _decode(self, content: bytes | Array, place: str) -> Array:
        """Check the limits, and return an image at the input size of the classifier. [1, H, W, C]"""
        if isinstance(content, bytes):
            if not content:
                raise RequestError(400, "no_image", f"image {place} is empty; send the bytes of an image file.")
            find_media_type(content, f"image {place}")
        most = self._max_pixels
        for limit in sorted({most // 64, most // 4, most}):  # most images are small, as their headers show
            with self._pixels.reserve(limit):
                pixels = _read_pixels(content, place, limit)
                if pixels is None:
                    continue
                try:
                    return fit_image(self._plan(), pixels)
                except SecondLookError as error:
                    # After the semicolon comes the repair for Python users.
                    message = f"image {place} does not fit the classifier: {str(error).partition(';')[0]}."
                    raise RequestError(422, "image_size", message) from None
        raise RequestError(413, "image_too_large", f"image {place} has more than {most:,} pixels; send a smaller one.")


class PixelBudget:
    """FIFO pixel budget shared by threads, since large images take much memory."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._changed = Condition()
        self._turn = Lock()

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Wait for and hold a share of the budget, in pixels."""
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._left >= pixels)
            self._left -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._left += pixels
                self._changed.notify_all()


def _read_pixels(content: bytes | Array, place: str, max_pixels: int) -> Array | None:
    """Return the pixels of an image; None if it has more than `max_pixels`."""
    try:
        return read_image(content, place, max_pixels=max_pixels)
    except UnreadableImageError as error:
        if error.limit is not None:
            return None
        raise RequestError(422, "unreadable_image", f"image {place} cannot be read: {error.reason}.") from None
    except SourceError as error:
        raise RequestError(422, "unreadable_image", str(error)) from None


def fit_image(plan: Plan, pixels: Array) -> Array:
    """Return pixels at the input size of a classifier; three equal channels also fit a gray classifier.

    uint8|float32 [h, w, C] -> [1, H, W, C]
    """
    try:
        return plan.fit_image(pixels)
    except SecondLookError:
        # Row by row, since comparing all at once takes as much memory as the image.
        if pixels.shape[2] == 1 or any((row != row[:, :1]).any() for row in pixels):
            raise
    return plan.fit_image(pixels[:, :, :1])


def find_media_type(content: bytes, where: str) -> str:
    """Return the media type of an image file by its first bytes; raise an error for other files."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for start, media_type in MEDIA_TYPES_BY_START.items():
        if content.startswith(start):
            return media_type
    raise RequestError(422, "unreadable_image", f"{where} is not a JPEG, PNG, WebP, BMP or TIFF file.")


def is_id(text: str) -> bool:
    """Whether a string is a valid id."""
    # Invalid bytes decode to the replacement character, so different ids would become equal.
    return 1 <= len(text) <= LONGEST_ID and text.isprintable() and "\ufffd" not in text


def check_id(id_: str) -> None:
    """Raise an error for an invalid id."""
    if not is_id(id_):
        raise RequestError(400, "id", f"id {id_[:50]!r} is not valid; expected 1 to {LONGEST_ID} printable characters.")
