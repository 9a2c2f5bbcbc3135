"""Resizing and cropping of single images, as the reference pipelines of pre-trained classifiers do it (Pillow)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image

from secondlook.arrays import Array
from secondlook.errors import ClassifierError

Size = tuple[int, int]
"""Height and width."""

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")

CropRounding = Literal["even", "down"]
"""Where the spare margin is odd: half to even as torchvision and timm crop, or down as transformers crops."""

MOST_PIXELS = 2**26
"""More than these no resizing makes: a picture of one pixel by thousands would fill the memory."""

LUMINANCE = (19595, 38470, 7471)
"""ITU-R 601 weights of red, green and blue in units of 1/65536, as Pillow rounds them."""


def target_size(height: int, width: int, resize: int | Size) -> Size:
    """Size after resizing: the given one, or the given shorter side with the longer in proportion, rounded down."""
    if not isinstance(resize, int):
        return resize
    if height <= width:
        return resize, int(resize * width / height)
    return int(resize * height / width), resize


def resized(image: Array, size: Size, interpolation: Interpolation) -> Array:
    """Image at the given size, smoothed where it shrinks. uint8|float32 [H, W, C] -> the same dtype [*size, C]"""
    if image.shape[:2] == size:
        return image
    if size[0] * size[1] > MOST_PIXELS:
        raise ClassifierError(
            f"an image of {image.shape[0]} x {image.shape[1]} pixels would have {size[0]} x {size[1]} after resizing "
            "its shorter side; leave it out, or give height and width, such as resize=(224, 224)."
        )
    method = Image.Resampling[interpolation.upper()]
    width_and_height = (size[1], size[0])
    if image.dtype == np.uint8:
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        return np.asarray(picture.resize(width_and_height, method)).reshape(*size, -1)
    planes = [Image.fromarray(np.ascontiguousarray(image[..., channel])) for channel in range(image.shape[2])]
    return np.stack([np.asarray(plane.resize(width_and_height, method)) for plane in planes], axis=-1)


def center_cropped(image: Array, size: Size, rounding: CropRounding) -> Array:
    """Return the middle of an image; what lies outside a smaller one is black. [H, W, C] -> [*size, C]"""
    image = _padded_to(image, size)
    top, left = (
        round(margin / 2) if rounding == "even" else margin // 2
        for margin in (image.shape[0] - size[0], image.shape[1] - size[1])
    )
    return image[top : top + size[0], left : left + size[1]]


def _padded_to(image: Array, size: Size) -> Array:
    missing = [max(0, wanted - got) for wanted, got in zip(size, image.shape[:2], strict=True)]
    if not any(missing):
        return image
    return np.pad(image, [(side // 2, (side + 1) // 2) for side in missing] + [(0, 0)])


def luminance(images: Array) -> Array:
    """Gray images of color ones. uint8|float32 [..., 3] -> the same dtype [..., 1]"""
    if images.dtype == np.uint8:
        weighted = images.astype(np.uint32) @ np.array(LUMINANCE, dtype=np.uint32)
        return ((weighted + 32768) >> 16).astype(np.uint8)[..., None]
    return (images @ (np.array(LUMINANCE, dtype=np.float32) / 65536))[..., None]


def stacked(images: Sequence[Array]) -> Array:
    """One batch of images of one shape. N arrays [H, W, C] -> [N, H, W, C]"""
    shapes = {image.shape for image in images}
    if len(shapes) == 1:
        return np.stack(images)
    if not shapes:
        raise ClassifierError("there are no images to fit; give at least one.")
    first, second = sorted(shapes)[:2]
    raise ClassifierError(
        f"the images differ in shape ({list(first)} and {list(second)}) and nothing brings them to one; "
        "set resize=(height, width), or resize= the shorter side and crop= a side."
    )


def as_pixels(images: Array) -> Array:
    """Images as contiguous bytes. uint8, or float32 in [0, 1] -> uint8 of the same shape"""
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    pixels: Array = np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8)
    return pixels
