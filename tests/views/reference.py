"""Reference implementation of the steps: one image, float64, one pixel at a time where it helps."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[Any]
Mapping = Callable[[int, int], tuple[float, float]]


def apply_chain(image: Image, text: str) -> Image:
    """Apply the steps of a view left to right to an image in [0, 1]. [H, W, C] -> [H, W, C]"""
    for step in text.split("+"):
        name, _, rest = step.partition(":")
        image = np.clip(STEPS[name](image, *rest.split(",")) if rest else STEPS[name](image), 0.0, 1.0)
    return image


def apply_view(images: NDArray[np.generic], text: str) -> NDArray[np.generic]:
    """Apply a view to a batch, in the batch's own dtype. [N, H, W, C] -> [N, H, W, C]"""
    if images.dtype == np.uint8:
        return np.stack([np.rint(apply_chain(image / 255.0, text) * 255).astype(np.uint8) for image in images])
    return np.stack([apply_chain(image.astype(np.float64), text).astype(np.float32) for image in images])


def sample_pixel(image: Image, x: float, y: float, border: str) -> Image:
    """Interpolate an image between its pixels. [H, W, C] -> [C]"""
    left, top = math.floor(x), math.floor(y)
    right_weight, lower_weight = x - left, y - top
    return (
        get_pixel(image, left, top, border) * (1 - right_weight) * (1 - lower_weight)
        + get_pixel(image, left + 1, top, border) * right_weight * (1 - lower_weight)
        + get_pixel(image, left, top + 1, border) * (1 - right_weight) * lower_weight
        + get_pixel(image, left + 1, top + 1, border) * right_weight * lower_weight
    )


def get_pixel(image: Image, x: int, y: int, border: str) -> Image:
    height, width, channels = image.shape
    if 0 <= x < width and 0 <= y < height:
        pixel: Image = image[y, x]
        return pixel
    if border == "black":
        return np.zeros(channels)
    if border == "edge":
        return get_pixel(image, min(max(x, 0), width - 1), min(max(y, 0), height - 1), border)
    return get_pixel(image, mirror_index(x, width), mirror_index(y, height), border)


def mirror_index(index: int, size: int) -> int:
    index %= 2 * size
    return index if index < size else 2 * size - 1 - index


def warp(image: Image, mapping: Mapping, border: str) -> Image:
    """Sample the image at the position that `mapping` returns for each output pixel. [H, W, C] -> [H, W, C]"""
    result = np.empty_like(image)
    for y, x in np.ndindex(image.shape[:2]):
        source_x, source_y = mapping(x, y)
        result[y, x] = sample_pixel(image, source_x, source_y, border)
    return result


def to_pixels(text: str, side: int) -> float:
    return float(text[:-1]) * side / 100 if text.endswith("%") else float(text)


def shift(image: Image, dx: str, dy: str) -> Image:
    right, down = to_pixels(dx, image.shape[1]), to_pixels(dy, image.shape[0])
    return warp(image, lambda x, y: (x - right, y - down), "black")


def rotate(image: Image, degrees: str) -> Image:
    height, width, _ = image.shape
    cosine, sine = math.cos(math.radians(float(degrees))), math.sin(math.radians(float(degrees)))
    # The rotated frame of the output must lie inside the image, so its bounding box is compared with the image.
    box_width = width * abs(cosine) + height * abs(sine)
    box_height = width * abs(sine) + height * abs(cosine)
    enlargement = max(box_width / width, box_height / height)
    center_x, center_y = (width - 1) / 2, (height - 1) / 2

    def mapping(x: int, y: int) -> tuple[float, float]:
        u, v = (x - center_x) / enlargement, (y - center_y) / enlargement
        return center_x + cosine * u + sine * v, center_y - sine * u + cosine * v

    return warp(image, mapping, "edge")


def zoom(image: Image, factor: str) -> Image:
    center_x, center_y = (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2
    times = float(factor)
    return warp(image, lambda x, y: (center_x + (x - center_x) / times, center_y + (y - center_y) / times), "mirror")


def crop(image: Image, x: str, y: str, width: str, height: str) -> Image:
    left, top = float(x) / 100 * image.shape[1], float(y) / 100 * image.shape[0]
    across, along = float(width) / 100, float(height) / 100
    return warp(image, lambda i, j: (left + (i + 0.5) * across - 0.5, top + (j + 0.5) * along - 0.5), "edge")


def gray(image: Image) -> Image:
    if image.shape[2] == 1:
        return image
    luminance = 0.299 * image[:, :, 0] + 0.587 * image[:, :, 1] + 0.114 * image[:, :, 2]
    return np.stack([luminance] * 3, axis=2)


def blur(image: Image, radius: str) -> Image:
    sigma = float(radius)
    reach = math.ceil(3 * sigma)
    weights = np.array([math.exp(-(distance**2) / (2 * sigma**2)) for distance in range(-reach, reach + 1)])
    weights /= weights.sum()
    for axis in (0, 1):
        lines = np.moveaxis(image, axis, 0)
        smooth = np.zeros_like(lines)
        for index in range(len(lines)):
            for weight, distance in zip(weights, range(-reach, reach + 1), strict=True):
                smooth[index] += weight * lines[mirror_index(index + distance, len(lines))]
        image = np.moveaxis(smooth, 0, axis)
    return image


def noise(image: Image, sigma: str) -> Image:
    draws = np.random.RandomState(0)  # its stream never changes
    result = image.copy()
    for place in np.ndindex(image.shape):
        result[place] += float(sigma) / 255 * draws.standard_normal()
    return result


STEPS: dict[str, Callable[..., Image]] = {
    "identity": lambda image: image,
    "hflip": lambda image: image[:, ::-1],
    "vflip": lambda image: image[::-1],
    "shift": shift,
    "rotate": rotate,
    "zoom": zoom,
    "gamma": lambda image, power: image ** float(power),
    "contrast": lambda image, factor: image.mean() + float(factor) * (image - image.mean()),
    "brightness": lambda image, factor: image * float(factor),
    "gray": gray,
    "channels": lambda image, order: image[:, :, ["rgb".index(letter) for letter in order]],
    "blur": blur,
    "noise": noise,
    "crop": crop,
}
