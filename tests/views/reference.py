"""The meaning of the steps, slowly and plainly: one image, float64, one pixel at a time where it helps."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[Any]
Place = Callable[[int, int], tuple[float, float]]


def chain(image: Image, text: str) -> Image:
    """Apply the steps of a view left to right to an image in [0, 1]. [H, W, C] -> [H, W, C]"""
    for step in text.split("+"):
        name, _, rest = step.partition(":")
        image = np.clip(STEPS[name](image, *rest.split(",")) if rest else STEPS[name](image), 0.0, 1.0)
    return image


def view_of(images: NDArray[np.generic], text: str) -> NDArray[np.generic]:
    """Apply a view to a batch, in the batch's own dtype. [N, H, W, C] -> [N, H, W, C]"""
    if images.dtype == np.uint8:
        return np.stack([np.rint(chain(image / 255.0, text) * 255).astype(np.uint8) for image in images])
    return np.stack([chain(image.astype(np.float64), text).astype(np.float32) for image in images])


def pixel_at(image: Image, x: float, y: float, outside: str) -> Image:
    """Look an image up between its pixels. [H, W, C] -> [C]"""
    left, top = math.floor(x), math.floor(y)
    right_share, lower_share = x - left, y - top
    return (
        whole_pixel(image, left, top, outside) * (1 - right_share) * (1 - lower_share)
        + whole_pixel(image, left + 1, top, outside) * right_share * (1 - lower_share)
        + whole_pixel(image, left, top + 1, outside) * (1 - right_share) * lower_share
        + whole_pixel(image, left + 1, top + 1, outside) * right_share * lower_share
    )


def whole_pixel(image: Image, x: int, y: int, outside: str) -> Image:
    height, width, channels = image.shape
    if 0 <= x < width and 0 <= y < height:
        pixel: Image = image[y, x]
        return pixel
    if outside == "black":
        return np.zeros(channels)
    if outside == "edge":
        return whole_pixel(image, min(max(x, 0), width - 1), min(max(y, 0), height - 1), outside)
    return whole_pixel(image, mirrored(x, width), mirrored(y, height), outside)


def mirrored(index: int, size: int) -> int:
    index %= 2 * size
    return index if index < size else 2 * size - 1 - index


def sampled(image: Image, place: Place, outside: str) -> Image:
    """Look the image up at the place given for each pixel of the result. [H, W, C] -> [H, W, C]"""
    result = np.empty_like(image)
    for y, x in np.ndindex(image.shape[:2]):
        source_x, source_y = place(x, y)
        result[y, x] = pixel_at(image, source_x, source_y, outside)
    return result


def length(text: str, side: int) -> float:
    return float(text[:-1]) * side / 100 if text.endswith("%") else float(text)


def shift(image: Image, dx: str, dy: str) -> Image:
    right, down = length(dx, image.shape[1]), length(dy, image.shape[0])
    return sampled(image, lambda x, y: (x - right, y - down), "black")


def rotate(image: Image, degrees: str) -> Image:
    height, width, _ = image.shape
    cosine, sine = math.cos(math.radians(float(degrees))), math.sin(math.radians(float(degrees)))
    # The turned frame of the output must lie inside the image: the half-widths of its box are compared with it.
    box_width = width * abs(cosine) + height * abs(sine)
    box_height = width * abs(sine) + height * abs(cosine)
    enlargement = max(box_width / width, box_height / height)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2

    def place(x: int, y: int) -> tuple[float, float]:
        u, v = (x - middle_x) / enlargement, (y - middle_y) / enlargement
        return middle_x + cosine * u + sine * v, middle_y - sine * u + cosine * v

    return sampled(image, place, "edge")


def zoom(image: Image, factor: str) -> Image:
    middle_x, middle_y = (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2
    times = float(factor)
    return sampled(image, lambda x, y: (middle_x + (x - middle_x) / times, middle_y + (y - middle_y) / times), "mirror")


def crop(image: Image, x: str, y: str, width: str, height: str) -> Image:
    left, top = float(x) / 100 * image.shape[1], float(y) / 100 * image.shape[0]
    across, along = float(width) / 100, float(height) / 100
    return sampled(image, lambda i, j: (left + (i + 0.5) * across - 0.5, top + (j + 0.5) * along - 0.5), "edge")


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
                smooth[index] += weight * lines[mirrored(index + distance, len(lines))]
        image = np.moveaxis(smooth, 0, axis)
    return image


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
    "crop": crop,
}
