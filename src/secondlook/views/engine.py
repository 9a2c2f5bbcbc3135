"""The CPU engine: applies views to batches of images with as few passes over the pixels as possible."""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from secondlook.arrays import Array, Float32Array, describe_image_fault
from secondlook.errors import ViewError
from secondlook.sources import open_source
from secondlook.views.operations import (
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
from secondlook.views.plan import compute_table, compute_tables, plan_operations, run_filter
from secondlook.views.view import View
from secondlook.views.view_set import ViewsLike, as_view_set

_FLOAT_BLOCK_BYTES = 8 * 2**20
_HALF_TURN_BLOCK = 64
"""Number of images that are still in the cache when they are copied a second time."""
_TABLE_BLOCK = 1024
_NO_MEAN = np.float64(0.0)
_BORDERS = {"black": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE, "mirror": cv2.BORDER_REFLECT}


def apply_views(images: Any, views: ViewsLike) -> Array:
    """Return every view of every image. uint8 or float32 [N, H, W, C] -> [N, V, H, W, C] of the same dtype

    Instead of an array, `images` may be anything else that `open_source` accepts: a path, a PIL image, a torch tensor
    [N, C, H, W], a list of images, a data set. All images must have the same size.
    """
    view_set = as_view_set(views)
    images = check_images(images)
    result = np.empty((len(images), len(view_set), *images.shape[1:]), dtype=images.dtype)
    for place, view in enumerate(view_set):
        result[:, place] = _apply(images, view)
    return result


def iter_views(images: Any, views: ViewsLike) -> Iterator[tuple[View, Array]]:
    """Yield each view and its batch, one at a time. [N, H, W, C] -> V times (view, [N, H, W, C])"""
    view_set = as_view_set(views)
    images = check_images(images)
    for view in view_set:
        yield view, _apply(images, view)


def apply_view(images: Any, view: View | str) -> Array:
    """Return one view of every image, in new memory. [N, H, W, C] -> [N, H, W, C]"""
    return _apply(check_images(images), View.parse(view) if isinstance(view, str) else view)


def check_images(images: Any) -> Array:
    """Return images of any kind as an array in C order: uint8, or float32 in [0, 1]; [N, H, W, 1 or 3]."""
    if not isinstance(images, np.ndarray) or images.ndim != 4:
        images = open_source(images).stack()
    fault = describe_image_fault(images)
    if fault is not None:
        raise ViewError(f"images {fault}.")
    return np.ascontiguousarray(images)


def _apply(images: Array, view: View) -> Array:
    operations = plan_operations(view, Frame(*images.shape[1:]))
    if not operations:
        return images.copy()
    if images.dtype == np.uint8 and not rounds_at_most_once(operations):
        return _apply_in_float(images, view, operations)
    for operation in operations:
        images = _run(images, view, operation)
    return images


def _apply_in_float(images: Array, view: View, operations: tuple[Operation, ...]) -> Array:
    """Run operations on float images, one block at a time, so that pixels are rounded only once, at the end."""
    result = np.empty_like(images)
    block_size = max(1, _FLOAT_BLOCK_BYTES // (4 * images[:1].size)) if len(images) else 1
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
            return run_filter(images, view, operation)


def _run_copy(images: Array, copy: Copy) -> Array:
    """Flip and shift all images with as few calls as possible, then fill with black."""
    result = np.empty_like(images)
    if len(images) and copy.y.start < copy.y.stop and copy.x.start < copy.x.stop:
        if copy.y.sign > 0:
            _copy_upright(images, result, copy)
        elif copy.x.sign > 0:
            rows = _view_rows(result, copy.y.start, copy.y.stop, copy.x.start, copy.x.stop)
            rows[...] = _view_rows(images, *copy.y.source, *copy.x.source)[:, ::-1]
        else:
            for start in range(0, len(images), _HALF_TURN_BLOCK):
                block = slice(start, start + _HALF_TURN_BLOCK)
                _copy_half_turned(images[block], result[block], copy)
    height, width = images.shape[1:3]
    result[:, : copy.y.start] = 0
    result[:, copy.y.stop :] = 0
    for left, right in ((0, min(copy.x.start, width)), (max(copy.x.stop, 0), width)):
        if left < right and len(images):
            columns = _view_rows(result, 0, height, left, right)
            columns[...] = np.zeros((), columns.dtype)  # takes half the time of writing zeros pixel by pixel
    return result


def _copy_upright(images: Array, result: Array, copy: Copy) -> None:
    """Move the pixels of the whole batch as one row; pixels of neighboring images end up where black is filled in."""
    width, (left, right) = images.shape[2], copy.x.source
    if copy.x.sign > 0:
        distance = (copy.y.start - copy.y.source[0]) * width + copy.x.start - left
        _copy_moved(_flatten_pixels(images), _flatten_pixels(result), distance)
    else:
        distance = (copy.y.start - copy.y.source[0]) * width + copy.x.start - (width - right)
        _flip_moved(_stack_rows(images), _flatten_pixels(result), distance)


def _copy_moved(source: Array, target: Array, distance: int) -> None:
    """Copy pixels moved by `distance`; pixels that leave the row are lost. [P, C], [P, C]"""
    if distance >= 0:
        target[distance:] = source[: len(source) - distance]
    else:
        target[:distance] = source[-distance:]


def _flip_moved(rows: Array, target: Array, distance: int) -> None:
    """Copy flipped rows moved by `distance`; pixels that leave the target are lost. [R, W, C], [R * W, C]

    Most rows are flipped directly into the target; only rows at its edge are flipped in new memory and truncated.
    """
    count, width = rows.shape[:2]
    n_edge = min(count, -(-abs(distance) // width))
    inner, edge = (slice(count - n_edge), slice(count - n_edge, count))
    if distance < 0:
        inner, edge = slice(n_edge, count), slice(n_edge)
    if n_edge < count:
        start = (inner.start or 0) * width + distance
        inner_target = target[start : start + (count - n_edge) * width].reshape(-1, *rows.shape[1:])
        cv2.flip(rows[inner], 1, inner_target)
    if n_edge:
        flipped = _flatten_pixels(cv2.flip(rows[edge], 1).reshape(-1, *rows.shape[1:]))
        start = (edge.start or 0) * width + distance
        first, last = max(start, 0), min(start + len(flipped), len(target))
        target[first:last] = flipped[first - start : last - start]


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


def _copy_half_turned(images: Array, result: Array, copy: Copy) -> None:
    """Rotate each image by 180 degrees, which reverses the order of its pixels, then shift it."""
    _, height, width, channels = images.shape
    one_row = (len(images), height * width, channels)
    if copy.y.stop - copy.y.start == height and copy.x.stop - copy.x.start == width:
        cv2.flip(images.reshape(one_row), 1, result.reshape(one_row))
        return
    turned = cv2.flip(images.reshape(one_row), 1).reshape(images.shape)
    top = copy.y.start + height - 1 - copy.y.offset
    left = copy.x.start + width - 1 - copy.x.offset
    n_rows, n_columns = copy.y.stop - copy.y.start, copy.x.stop - copy.x.start
    target = result[:, copy.y.start : copy.y.stop, copy.x.start : copy.x.stop]
    np.copyto(target, turned[:, top : top + n_rows, left : left + n_columns])


def _stack_rows(images: Array) -> Array:
    """View the batch as one tall image. [N, H, W, C] -> [N * H, W, C]"""
    return images.reshape(-1, *images.shape[2:])


def _flatten_pixels(images: Array) -> Array:
    """View the images as one row of pixels. [..., C] -> [P, C]"""
    return images.reshape(-1, images.shape[-1])


def _run_reorder(images: Array, reorder: Reorder) -> Array:
    result = np.empty_like(images)
    pairs = [index for target, source in enumerate(reorder.order) for index in (source, target)]
    if images.size and reorder.order == (2, 1, 0):
        cv2.cvtColor(_stack_rows(images), cv2.COLOR_RGB2BGR, _stack_rows(result))  # several times faster
    elif images.size:
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
    if not images.size:
        return result
    flat, flat_result = images.reshape(len(images), -1), result.reshape(len(images), -1)
    if not tone.uses_mean:
        cv2.LUT(flat, compute_table(tone), flat_result)
        return result
    for start in range(0, len(images), _TABLE_BLOCK):
        block = slice(start, start + _TABLE_BLOCK)
        histograms = [cv2.calcHist([image], [0], None, [256], [0, 256]).ravel() for image in flat[block]]
        tables = compute_tables(np.array(histograms, dtype=np.float64), tone)
        for image, table, target in zip(flat[block], tables, flat_result[block], strict=True):
            cv2.LUT(image[None], table, target[None])
    return result


def _run_warp(images: Array, warp: Warp) -> Array:
    result = np.empty_like(images)
    size = (images.shape[2], images.shape[1])
    options: dict[str, Any] = {
        "flags": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        "borderMode": _BORDERS[warp.border],
    }
    matrix = warp.inverse_map
    for source, target in zip(images, result, strict=True):
        cv2.warpAffine(source, matrix, size, dst=target, **options)
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
