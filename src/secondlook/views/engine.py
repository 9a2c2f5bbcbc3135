"""The CPU engine: applies views to batches of images with as few passes over the pixels as possible."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from secondlook.arrays import Array, Float32Array, check_pixels
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
from secondlook.views.view import View
from secondlook.views.view_set import ViewSet, ViewsLike

if int(cv2.__version__.partition(".")[0]) < 5:
    raise ViewError(
        f"OpenCV {cv2.__version__} is installed, but views need OpenCV 5 or later: older versions make other pixels, "
        "so that confidences would differ and guarantees would not hold",
        repair="run: pip uninstall opencv-python opencv-python-headless, then: pip install 'opencv-python-headless>=5'",
    )

_FLOAT_BLOCK_BYTES = 8 * 2**20
_COPY_BLOCK_BYTES = 2**18
"""Size of images that are still in the cache when they are copied a second time."""
_TABLE_BLOCK = 1024
_NO_MEAN = np.float64(0.0)
_BORDERS = {"black": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE, "mirror": cv2.BORDER_REFLECT}


def apply_views(images: Any, views: ViewsLike) -> Array:
    """Return every view of every image. uint8 or float32 [N, H, W, C] -> [N, V, H, W, C] of the same dtype

    Instead of an array, `images` may be anything else that `open_source` accepts except a spec: a path, a PIL image, a
    torch tensor [N, C, H, W], a list of images, a data set. All images must have the same size.
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
    """Return the views of images one after another, as classifiers take them. [n, H, W, C] -> [V * n, H, W, C]"""
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
    check_pixels(images, "images", ViewError)
    return np.ascontiguousarray(images)


def _apply(images: Array, view: View) -> Array:
    operations = view.plan(Frame(*images.shape[1:]))
    if not operations or not len(images):
        return images.copy()
    if images.dtype == np.uint8 and not rounds_at_most_once(operations):
        return _apply_in_float(images, view, operations)
    for operation in operations:
        images = _run(images, view, operation)
    return images


def _apply_in_float(images: Array, view: View, operations: tuple[Operation, ...]) -> Array:
    """Run operations on float images, one block at a time, so that pixels are rounded only once, at the end."""
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
    """Flip all images, then shift them; what comes from outside is black."""
    result = np.empty_like(images)
    if copy.x.sign > 0:
        _shift(images, copy, result)
    elif copy.y.covers(images.shape[1]) and copy.x.covers(images.shape[2]):
        _flip(images, copy, result)
    else:
        for start in range(0, len(images), block_size := max(1, _COPY_BLOCK_BYTES // images[0].nbytes)):
            block = slice(start, start + block_size)
            _shift(_flip(images[block], copy), copy, result[block])
    return result


def _flip(images: Array, copy: Copy, target: Array | None = None) -> Array:
    """Flip images left-right, or rotate them by 180 degrees, which reverses the order of all pixels of an image."""
    _, height, width, channels = images.shape
    rows = (-1, width, channels) if copy.y.sign > 0 else (-1, height * width, channels)
    flipped = cv2.flip(images.reshape(rows), 1, None if target is None else target.reshape(rows))
    return flipped.reshape(images.shape)


def _shift(images: Array, copy: Copy, target: Array) -> None:
    """Shift images whose columns are flipped already, and flip them top-bottom unless their rows are flipped too."""
    height, width = images.shape[1:3]
    (top, bottom), (left, right) = copy.y.source, copy.x.source
    if copy.x.sign < 0:
        left, right = width - right, width - left
        top, bottom = (height - bottom, height - top) if copy.y.sign < 0 else (top, bottom)
    target[:, : copy.y.start] = 0
    target[:, copy.y.stop :] = 0
    if copy.y.start == copy.y.stop or copy.x.start == copy.x.stop:
        target[...] = 0
        return
    upside_down = copy.y.sign < 0 < copy.x.sign
    content = _view_rows(images, top, bottom, left, right)
    _view_rows(target, copy.y.start, copy.y.stop, copy.x.start, copy.x.stop)[...] = (
        content[:, ::-1] if upside_down else content
    )
    for black in ((0, copy.x.start), (copy.x.stop, width)):
        if black[0] < black[1]:
            columns = _view_rows(target, 0, height, *black)
            columns[...] = np.zeros((), columns.dtype)  # takes half the time of writing zeros pixel by pixel


def _view_rows(images: Array, top: int, bottom: int, left: int, right: int) -> Array:
    """View a section of each row as one item, which NumPy copies at once. [N, H, W, C] -> void [N, bottom - top]"""
    _, height, width, channels = images.shape
    pixel = channels * images.itemsize
    return np.ndarray(
        (len(images), bottom - top),
        dtype=np.dtype((np.void, (right - left) * pixel)),
        buffer=images.data,
        offset=(top * width + left) * pixel,
        strides=(height * width * pixel, width * pixel),
    )


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
        mean = values.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64) if tone.uses_mean else _NO_MEAN
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
