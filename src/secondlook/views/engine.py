"""The CPU engine: applies views to batches of images in few passes over the pixels."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import cv2
import numpy as np

from secondlook.arrays import Array, Float32Array, validate_pixels
from secondlook.errors import ViewError
from secondlook.operations import (
    Blur,
    Copy,
    Filter,
    Frame,
    Luminance,
    Operation,
    Reorder,
    Tone,
    Warp,
    rounds_at_most_once,
)
from secondlook.sources import open_source
from secondlook.views.view import View, ViewSet, ViewsLike

if int(cv2.__version__.partition(".")[0]) < 5:
    _fault = f"OpenCV {cv2.__version__} is installed, but guarantees hold for the pixels of OpenCV 5 or later"
    _repair = "run: pip uninstall opencv-python opencv-python-headless, then: pip install 'opencv-python-headless>=5'"
    raise ViewError(_fault, repair=_repair)

_FLOAT_BLOCK_BYTES = 8 * 2**20
_TABLE_BLOCK = 1024
_BORDERS = {"black": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE, "mirror": cv2.BORDER_REFLECT}


def apply_views(images: Any, views: ViewsLike) -> Array:
    """Return every view of every image. uint8 or float32 [N, H, W, C] -> [N, V, H, W, C] of the same dtype

    `images` may also be anything else that `open_source` accepts, except a spec: a path, a PIL image, a torch tensor
    [N, C, H, W], a list of images, a data set. All images must have the same size.
    """
    view_set, images = ViewSet(views), check_images(images)
    result = np.empty((len(images), len(view_set), *images.shape[1:]), dtype=images.dtype)
    for place, view in enumerate(view_set):
        result[:, place] = _apply(images, view)
    return result


def apply_view(images: Any, view: View | str) -> Array:
    """Return one view of every image, in new memory. [N, H, W, C] -> [N, H, W, C]"""
    return _apply(check_images(images), View.parse(view) if isinstance(view, str) else view)


def stack_views(images: Array, views: Sequence[View]) -> Array:
    """Return the views of images in one batch, view by view. [n, H, W, C] -> [V * n, H, W, C]"""
    checked = check_images(images)
    if len(views) == 1:
        return _apply(checked, views[0])
    stacked = np.empty((len(views), *checked.shape), dtype=checked.dtype)
    for place, view in enumerate(views):
        stacked[place] = _apply(checked, view)
    return stacked.reshape(-1, *checked.shape[1:])


def check_images(images: Any) -> Array:
    """Return images of any kind as an array in C order: uint8, or float32 in [0, 1]; [N, H, W, 1 or 3]."""
    if not isinstance(images, np.ndarray) or images.ndim != 4:
        images = open_source(images).stack()
    return np.ascontiguousarray(validate_pixels(images, "images", ViewError))


def _apply(images: Array, view: View) -> Array:
    operations, rounds_once = _plan(view, images.shape[1:])
    if not operations or not len(images):
        return images.copy()
    if images.dtype == np.uint8 and not rounds_once:
        return _apply_in_float(images, view, operations)
    for operation in operations:
        images = _run(images, view, operation)
    return images


@lru_cache(maxsize=4096)
def _plan(view: View, shape: tuple[int, int, int]) -> tuple[tuple[Operation, ...], bool]:
    """Return the operations of a view for images of a shape, and whether uint8 images may stay uint8 throughout."""
    operations = view.plan(Frame(*shape))
    return operations, rounds_at_most_once(operations)


def _apply_in_float(images: Array, view: View, operations: tuple[Operation, ...]) -> Array:
    """Run operations on float images block by block, and round pixels only once, at the end."""
    result = np.empty_like(images)
    block_size = max(1, _FLOAT_BLOCK_BYTES // (4 * images[0].size))
    for start in range(0, len(images), block_size):
        block = images[start : start + block_size].astype(np.float32)
        block *= np.float32(1 / 255)
        for operation in operations:
            block = _run(block, view, operation)
        result[start : start + block_size] = np.rint(block * np.float32(255))
    return result


def _run(images: Array, view: View, operation: Operation) -> Array:
    match operation:
        case Copy():
            return _run_copy(images, operation)
        case Reorder():
            return _run_reorder(images, operation)
        case Tone():
            return _run_tone_table(images, operation) if images.dtype == np.uint8 else _run_tone(images, operation)
        case Warp():
            return _run_warp(images, operation)
        case Luminance():
            return _run_luminance(images, operation)
        case Blur():
            return _run_blur(images, operation)
        case Filter():
            return operation.run(images, view)


def _run_copy(images: Array, copy: Copy) -> Array:
    """Shift and flip images; the outside is black."""
    width = images.shape[2]
    (top, bottom), (left, right) = copy.y.source, copy.x.source
    is_flipped, start, stop = copy.x.sign < 0, copy.x.start, copy.x.stop
    if is_flipped:  # OpenCV flips columns many times faster than NumPy
        start, stop = width - stop, width - start
    result = np.zeros_like(images)
    if copy.y.start < copy.y.stop and start < stop:
        result[:, copy.y.start : copy.y.stop, start:stop] = images[:, top:bottom, left:right][:, :: copy.y.sign]
    if is_flipped:
        cv2.flip(_stack_rows(result), 1, _stack_rows(result))
    return result


def _stack_rows(images: Array) -> Array:
    """View the batch as one tall image. [N, H, W, C] -> [N * H, W, C]"""
    return images.reshape(-1, *images.shape[2:])


def _run_reorder(images: Array, reorder: Reorder) -> Array:
    result = np.empty_like(images)
    if reorder.order == (2, 1, 0):
        cv2.cvtColor(_stack_rows(images), cv2.COLOR_RGB2BGR, _stack_rows(result))  # several times faster
    else:
        pairs = [index for target, source in enumerate(reorder.order) for index in (source, target)]
        cv2.mixChannels([_stack_rows(images)], [_stack_rows(result)], pairs)
    return result


def _run_tone(images: Float32Array, tone: Tone) -> Float32Array:
    """Apply tone curves to float images; each curve uses the mean of its own input."""
    values: Array = images
    for curve in tone.curves:
        mean = values.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64) if tone.uses_mean else 0.0
        values = np.clip(curve(values, mean), 0.0, 1.0)
    return values.astype(np.float32, copy=False)


def _run_tone_table(images: Array, tone: Tone) -> Array:
    """Apply tone curves to uint8 images through a table of 256 values: one for all images, or one per image mean."""
    result = np.empty_like(images)
    flat, flat_result = images.reshape(len(images), -1), result.reshape(len(images), -1)
    if not tone.uses_mean:
        cv2.LUT(flat, tone.table, flat_result)
        return result
    for start in range(0, len(images), _TABLE_BLOCK):
        block = slice(start, start + _TABLE_BLOCK)
        histograms = [cv2.calcHist([image], [0], None, [256], [0, 256]).ravel() for image in flat[block]]
        tables = tone.compute_tables(np.array(histograms, dtype=np.float64))
        for image, table, target in zip(flat[block], tables, flat_result[block], strict=True):
            cv2.LUT(image[None], table, target[None])
    return result


def _run_warp(images: Array, warp: Warp) -> Array:
    result = np.empty_like(images)
    size, matrix = (images.shape[2], images.shape[1]), np.array(warp.matrix)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    for source, target in zip(images, result, strict=True):
        cv2.warpAffine(source, matrix, size, dst=target, flags=flags, borderMode=_BORDERS[warp.border])
    return result


def _run_luminance(images: Float32Array, luminance: Luminance) -> Float32Array:
    if images.shape[3] == 1:
        return images
    gray = images @ np.array(luminance.weights, dtype=np.float32)
    return np.clip(np.repeat(gray[..., None], 3, axis=3), 0.0, 1.0)


def _run_blur(images: Float32Array, blur: Blur) -> Float32Array:
    side = 2 * blur.radius + 1
    result = np.empty_like(images)
    for image, target in zip(images, result, strict=True):
        smooth = cv2.GaussianBlur(image, (side, side), blur.sigma, borderType=cv2.BORDER_REFLECT)
        target[...] = smooth.reshape(image.shape)
    return np.clip(result, 0.0, 1.0)
