"""Fifteen corruptions of images in three strengths, to simulate changes after calibration.

They are independent of the shifts of `secondlook.monitoring`, which estimates learn from: other code, random patterns
that differ from image to image, and kinds without a similar shift. `Corruption.resembles` names the
similar shifts, to leave them out of learning when an estimate is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from secondlook.arrays import Array, Float32Array

STRENGTHS = (1, 2, 3)
ImageFunction = Callable[[Float32Array, float, np.random.Generator], Any]
"""(one image float32 [H, W, 3] in [0, 1], amount, random generator) -> the same shape; clipped afterwards."""


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption with an amount for each of the three strengths."""

    name: str
    family: str
    amounts: tuple[float, float, float]
    corrupt: ImageFunction
    resembles: tuple[str, ...]
    """Kinds of `secondlook.monitoring.estimates.list_shifts` that come close."""

    def __call__(self, images: Array, strength: int, rng: np.random.Generator) -> Array:
        """Return the corrupted images. uint8 [N, H, W, 3], 1 to 3 -> uint8 [N, H, W, 3]"""
        amount, corrupted = self.amounts[strength - 1], np.empty_like(images)
        for index, image in enumerate(images):
            values = self.corrupt(image.astype(np.float32) / 255, amount, rng)
            corrupted[index] = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
        return corrupted


CORRUPTIONS: dict[str, Corruption] = {}
"""Every corruption by name."""


def _corruption(
    name: str, family: str, amounts: tuple[float, float, float], *resembles: str
) -> Callable[[ImageFunction], ImageFunction]:
    def decorate(function: ImageFunction) -> ImageFunction:
        CORRUPTIONS[name] = Corruption(name, family, amounts, function, resembles)
        return function

    return decorate


def _in_pixels(image: Float32Array, amount: float) -> float:
    """Return a length for an image of this size; amounts are pixels of an image with a side of 32."""
    height, width = image.shape[:2]
    return amount * float(min(height, width)) / 32


# --- Noise ---


@_corruption("gaussian noise", "noise", (8 / 255, 14 / 255, 22 / 255), "noise")
def _gaussian_noise(image: Float32Array, sigma: float, rng: np.random.Generator) -> Any:
    return image + sigma * rng.standard_normal(image.shape, dtype=np.float32)


@_corruption("shot noise", "noise", (1 / 500, 1 / 170, 1 / 70), "noise")
def _shot_noise(image: Float32Array, photon: float, rng: np.random.Generator) -> Any:
    return (rng.poisson(image / photon) * photon).astype(np.float32)


@_corruption("impulse noise", "noise", (0.01, 0.025, 0.06), "noise")
def _impulse_noise(image: Float32Array, share: float, rng: np.random.Generator) -> Any:
    extremes = rng.integers(0, 2, image.shape).astype(np.float32)
    return np.where(rng.random(image.shape) < share, extremes, image)


# --- Blur ---


def _filter(image: Float32Array, kernel: Array) -> Any:
    return cv2.filter2D(image, -1, kernel / kernel.sum(), borderType=cv2.BORDER_REFLECT_101)


def _draw_disk(radius: float) -> Any:
    """Return a disk with an edge that fades over one pixel. float32 [K, K]"""
    reach = int(np.ceil(radius + 0.5))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return np.clip(radius + 0.5 - np.hypot(x, y), 0, 1).astype(np.float32)


def _draw_line(length: float, angle: float) -> Float32Array:
    """Return a line of `length` pixels through the center. float32 [K, K]"""
    reach = int(np.ceil(length / 2))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    for position in np.linspace(-length / 2, length / 2, 8 * reach + 1):
        x, y = position * np.cos(angle) + reach, position * np.sin(angle) + reach
        left, top = int(np.floor(x)), int(np.floor(y))
        for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            if row < len(kernel) and column < len(kernel):
                kernel[row, column] += max(0.0, 1 - abs(x - column)) * max(0.0, 1 - abs(y - row))
    return kernel


@_corruption("defocus blur", "blur", (0.7, 1.1, 1.6), "blur", "resolution")
def _defocus_blur(image: Float32Array, radius: float, rng: np.random.Generator) -> Any:
    return _filter(image, _draw_disk(_in_pixels(image, radius)))


@_corruption("glass blur", "blur", (0.35, 0.5, 0.75), "blur", "resolution")
def _glass_blur(image: Float32Array, reach: float, rng: np.random.Generator) -> Any:
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    moves = rng.normal(0, _in_pixels(image, reach), (2, height, width)).astype(np.float32)
    moved = cv2.remap(image, x + moves[0], y + moves[1], cv2.INTER_NEAREST, borderMode=cv2.BORDER_REFLECT_101)
    return cv2.GaussianBlur(moved, (0, 0), _in_pixels(image, 0.4))


@_corruption("motion blur", "blur", (2.0, 3.2, 5.0), "blur", "resolution")
def _motion_blur(image: Float32Array, length: float, rng: np.random.Generator) -> Any:
    return _filter(image, _draw_line(_in_pixels(image, length), rng.uniform(0, np.pi)))


@_corruption("zoom blur", "blur", (1.08, 1.16, 1.3), "blur", "resolution", "zoom in")
def _zoom_blur(image: Float32Array, largest: float, rng: np.random.Generator) -> Any:
    height, width = image.shape[:2]
    center = ((width - 1) / 2, (height - 1) / 2)
    zoomed = [
        cv2.warpAffine(
            image, cv2.getRotationMatrix2D(center, 0, factor), (width, height), borderMode=cv2.BORDER_REFLECT
        )
        for factor in np.linspace(1, largest, 9)
    ]
    return np.mean(zoomed, axis=0, dtype=np.float32)


# --- Weather ---


def _draw_clouds(height: int, width: int, rng: np.random.Generator) -> Any:
    """Return noise with structure at all scales, from 0 to 1. float32 [H, W]"""
    clouds, cells = np.zeros((height, width), np.float32), 2
    while cells < min(height, width):
        octave = rng.random((cells + 1, cells + 1), dtype=np.float32)
        clouds += np.asarray(cv2.resize(octave, (width, height), interpolation=cv2.INTER_CUBIC)) / cells
        cells *= 2
    return (clouds - clouds.min()) / max(float(np.ptp(clouds)), 1e-6)


@_corruption("snow", "weather", (0.006, 0.02, 0.05), "noise", "bright", "pale")
def _snow(image: Float32Array, share: float, rng: np.random.Generator) -> Any:
    flakes = (rng.random(image.shape[:2]) < share).astype(np.float32) * rng.uniform(0.6, 1.0, image.shape[:2])
    kernel = _draw_line(_in_pixels(image, 3), rng.uniform(0.25, 0.75) * np.pi)
    streaks = cv2.filter2D(flakes.astype(np.float32), -1, kernel / kernel.max())[..., None]
    whitened = image * (1 - 2 * share) + 2 * share * np.maximum(image, image.mean(axis=2, keepdims=True) * 0.5 + 0.5)
    return whitened * (1 - np.clip(streaks, 0, 1)) + np.clip(streaks, 0, 1)


@_corruption("frost", "weather", (0.35, 0.5, 0.65), "contrast", "pale")
def _frost(image: Float32Array, amount: float, rng: np.random.Generator) -> Any:
    height, width = image.shape[:2]
    ridges = 1 - np.abs(2 * _draw_clouds(height, width, rng) - 1)  # thin bright veins where the clouds cross one half
    cover = amount * np.clip(0.25 + ridges**4, 0, 1)[..., None]
    ice = np.array([0.75, 0.85, 0.95], np.float32)
    return image * (1 - cover) + ice * cover


@_corruption("fog", "weather", (0.35, 0.55, 0.72), "contrast", "pale")
def _fog(image: Float32Array, amount: float, rng: np.random.Generator) -> Any:
    height, width = image.shape[:2]
    cover = amount * (0.65 + 0.35 * _draw_clouds(height, width, rng)[..., None])
    return image * (1 - cover) + 0.85 * cover


@_corruption("brightness", "weather", (0.15, 0.28, 0.42), "bright", "pale")
def _brightness(image: Float32Array, added: float, rng: np.random.Generator) -> Any:
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 2] = np.clip(hsv[..., 2] + added, 0, 1)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


# --- Digital ---


@_corruption("contrast", "digital", (0.5, 0.3, 0.18), "contrast", "dark")
def _contrast(image: Float32Array, factor: float, rng: np.random.Generator) -> Any:
    mean = image.mean(axis=(0, 1), keepdims=True)
    return mean + factor * (image - mean)


@_corruption("elastic", "digital", (0.7, 1.1, 1.7), "rotation", "zoom in", "zoom out")
def _elastic(image: Float32Array, reach: float, rng: np.random.Generator) -> Any:
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    moves = [
        cv2.GaussianBlur(rng.standard_normal((height, width), np.float32), (0, 0), _in_pixels(image, 2.5))
        for _ in range(2)
    ]
    across, down = (_in_pixels(image, reach) * move / move.std() for move in moves)
    return cv2.remap(image, x + across, y + down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)


@_corruption("pixelate", "digital", (0.9, 0.75, 0.6), "resolution", "blur")
def _pixelate(image: Float32Array, factor: float, rng: np.random.Generator) -> Any:
    height, width = image.shape[:2]
    small = cv2.resize(image, (round(width * factor), round(height * factor)), interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)


@_corruption("jpeg", "digital", (60, 30, 12), "resolution", "blur")
def _jpeg(image: Float32Array, quality: float, rng: np.random.Generator) -> Any:
    bgr = np.rint(image[..., ::-1] * 255).astype(np.uint8)
    _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, int(quality)])
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.float32)[..., ::-1] / 255
