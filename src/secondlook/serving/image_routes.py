"""Routes of the images to review: the image itself, how to display it, and its views."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from secondlook import apply_views
from secondlook.extension import Array, encode_png, read_image
from secondlook.serving.request_images import fit_image
from secondlook.serving.responses import RequestError
from secondlook.serving.review_routes import RESPONSES, Number, check_reviewer
from secondlook.serving.service import CurrentService, Service
from secondlook.serving.store import StoredImage

OF_BROWSERS = ("image/jpeg", "image/png", "image/webp", "image/bmp")
"""Media types that all browsers display."""
LARGEST_PIXEL = 2**16 - 1

router = APIRouter(tags=["review"], responses=RESPONSES, dependencies=[check_reviewer])
Pixel = Annotated[int | None, Query(ge=0, le=LARGEST_PIXEL)]


class DisplayBody(BaseModel):
    """What a viewer needs to know about an image."""

    width: int
    height: int
    bits: int = Field(description="Bits per channel: 8, or 16 for 16-bit gray.")
    low: int = Field(description="Smallest pixel value of the image.")
    high: int = Field(description="Largest pixel value of the image.")
    crop: Sequence[float] | None = Field(
        description="What the classifier sees: left, top, width and height, as fractions of the image; null for all."
    )


@router.get("/v1/review/{number}/display")
def describe_display(number: Number, service: CurrentService) -> DisplayBody:
    """Return the size and the pixel range of an image, and which part of it the classifier sees."""
    pixels = read_pixels(find_image(service, number), service)
    height, width = pixels.shape[:2]
    crop = service.live.plan.classifier.preprocessing.find_crop(height, width)
    return DisplayBody(
        width=width,
        height=height,
        bits=8 * pixels.itemsize,
        low=int(pixels.min()),
        high=int(pixels.max()),
        crop=None if crop == (0, 0, 1, 1) else crop,
    )


@router.get("/v1/review/{number}/image")
def show_image(number: Number, service: CurrentService, low: Pixel = None, high: Pixel = None) -> Response:
    """Return the image, with the pixel values from `low` to `high` spread over black to white if either is given.

    By default, a 16-bit gray image is spread over its own range. Formats that browsers cannot display become PNG.
    """
    image = find_image(service, number)
    is_windowed = low is not None or high is not None
    if image.media_type in OF_BROWSERS and not is_windowed and not is_16_bit_png(image.content):
        return Response(image.content, media_type=image.media_type)
    pixels = read_pixels(image, service)
    if is_windowed or pixels.dtype == np.uint16:
        pixels = apply_window(pixels, low, high)
    return Response(encode_png(pixels), media_type="image/png")


@router.get("/v1/review/{number}/views/{position}")
def show_view(number: Number, position: int, service: CurrentService) -> Response:
    """Return one view of an image, as seen by the classifier."""
    content = find_image(service, number).content
    views = service.reviews.read(number).views
    if not 0 <= position < len(views):
        raise RequestError(404, "unknown_view", f"image {number} has {len(views)} views, none at position {position}.")
    image = read_image(content, max_pixels=service.options.max_pixels)
    looks = [view for view, *_ in views[: position + 1]]  # a set of views starts with the identity
    shown = apply_views(fit_image(service.live.plan, image), looks)[0, position]
    return Response(encode_png(shown), media_type="image/png")


def find_image(service: Service, number: int) -> StoredImage:
    """Return a stored image."""
    image = service.reviews.read_image(number)
    if image is None:
        raise RequestError(404, "no_image", f"image {number} is not stored; it was removed or never stored.")
    return image


def read_pixels(image: StoredImage, service: Service) -> Array:
    """Decode an image within the pixel limit. -> uint8 [H, W, 3] or uint16 [H, W, 1]"""
    return read_image(image.content, max_pixels=service.options.max_pixels, keep_16_bit=True)


def is_16_bit_png(content: bytes) -> bool:
    """Whether a file is a 16-bit PNG, of which browsers display only the upper bytes."""
    return content.startswith(b"\x89PNG") and content[24] == 16


def apply_window(pixels: Array, low: int | None, high: int | None) -> Array:
    """Spread the values from `low` to `high` (by default, the range of the image) over 0 to 255. -> uint8 [H, W, C]"""
    low = int(pixels.min()) if low is None else low
    high = int(pixels.max()) if high is None else high
    values = np.arange(np.iinfo(pixels.dtype).max + 1)
    spread = (values - low) / max(high - low, 1)
    table: Array = np.rint(255 * spread.clip(0, 1)).astype(np.uint8)
    return table[pixels]
