"""The CPU engine: every view of a batch of images, with as few passes over the pixels as the meaning allows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array, describe_image_fault
from secondlook.errors import ViewError
from secondlook.views.operations import Copy, Filter, Operation, Reorder, Tone, Warp
from secondlook.views.plan import computes_pixels, plan
from secondlook.views.steps import Frame
from secondlook.views.view import View
from secondlook.views.view_set import ViewSet

Views = ViewSet | str | Path | list[View | str]
"""Whatever a `ViewSet` can be made of."""

_FLOAT_BYTES_AT_ONCE = 8 * 2**20
_UPSIDE_DOWN_AT_ONCE = 64
"""Few enough images that they are still in the cache when they are copied a second time."""
_TABLES_AT_ONCE = 1024
_NO_MEAN = np.float64(0.0)
_BORDERS = {"black": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE, "mirror": cv2.BORDER_REFLECT}


def apply_views(images: Array, views: Views) -> Array:
    """Return every view of every image. uint8 or float32 [N, H, W, C] -> [N, V, H, W, C] of the same dtype."""
    view_set = views if isinstance(views, ViewSet) else ViewSet(views)
    checked = check_images(images)
    result = np.empty((len(checked), len(view_set), *checked.shape[1:]), dtype=checked.dtype)
    for place, view in enumerate(view_set):
        result[:, place] = _applied(checked, view)
    return result


def iter_views(images: Array, views: Views) -> Iterator[tuple[View, Array]]:
    """Yield each view with its batch, one at a time. [N, H, W, C] -> (view, [N, H, W, C]) V times."""
    view_set = views if isinstance(views, ViewSet) else ViewSet(views)
    checked = check_images(images)
    for view in view_set:
        yield view, _applied(checked, view)


def apply_view(images: Array, view: View | str) -> Array:
    """Return one view of every image, in new memory. [N, H, W, C] -> [N, H, W, C]"""
    return _applied(check_images(images), View.parse(view) if isinstance(view, str) else view)


def check_images(images: Array) -> Array:
    """Return the images in C order, or say what is wrong with them. uint8, or float32 in [0, 1]; [N, H, W, 1 or 3]"""
    fault = describe_image_fault(images)
    if fault is not None:
        raise ViewError(f"images {fault}.")
    return np.ascontiguousarray(images)


def _applied(images: Array, view: View) -> Array:
    operations = plan(view, Frame(*images.shape[1:]))
    if not operations:
        return images.copy()
    if images.dtype == np.uint8 and not _rounds_once_at_most(operations):
        return _through_float(images, view, operations)
    for operation in operations:
        images = _run(images, view, operation)
    return images


def _rounds_once_at_most(operations: tuple[Operation, ...]) -> bool:
    computing = [operation for operation in operations if computes_pixels(operation)]
    return len(computing) <= 1 and not any(isinstance(operation, Filter) for operation in computing)


def _through_float(images: Array, view: View, operations: tuple[Operation, ...]) -> Array:
    """Run a chain that would round more than once in float, a few images at a time, and round at its end."""
    result = np.empty_like(images)
    at_once = max(1, _FLOAT_BYTES_AT_ONCE // (4 * images[:1].size)) if len(images) else 1
    for start in range(0, len(images), at_once):
        part = images[start : start + at_once].astype(np.float32)
        part *= np.float32(1 / 255)
        for operation in operations:
            part = _run(part, view, operation)
        result[start : start + at_once] = np.rint(part * np.float32(255))
    return result


def _run(images: Array, view: View, operation: Operation) -> Array:
    match operation:
        case Copy():
            return _copied(images, operation)
        case Reorder():
            return _reordered(images, operation)
        case Tone():
            return _toned_by_table(images, operation) if images.dtype == np.uint8 else _toned(images, operation)
        case Warp():
            return _warped(images, operation)
        case Filter():
            return _filtered(images, view, operation)


def _copied(images: Array, copy: Copy) -> Array:
    """Flip and shift all images with as few calls as possible; what comes from outside is blackened last."""
    result = np.empty_like(images)
    if len(images) and copy.y.start < copy.y.stop and copy.x.start < copy.x.stop:
        if copy.y.sign > 0:
            _copy_as_one_row_of_pixels(images, result, copy)
        elif copy.x.sign > 0:
            rows = _rows_as_items(result, copy.y.start, copy.y.stop, copy.x.start, copy.x.stop)
            rows[...] = _rows_as_items(images, *copy.y.source, *copy.x.source)[:, ::-1]
        else:
            for start in range(0, len(images), _UPSIDE_DOWN_AT_ONCE):
                at_once = slice(start, start + _UPSIDE_DOWN_AT_ONCE)
                _copy_upside_down(images[at_once], result[at_once], copy)
    height, width = images.shape[1:3]
    result[:, : copy.y.start] = 0
    result[:, copy.y.stop :] = 0
    for left, right in ((0, min(copy.x.start, width)), (max(copy.x.stop, 0), width)):
        if left < right and len(images):
            columns = _rows_as_items(result, 0, height, left, right)
            columns[...] = np.zeros((), columns.dtype)  # half the time of writing zeros pixel by pixel
    return result


def _copy_as_one_row_of_pixels(images: Array, result: Array, copy: Copy) -> None:
    """Move all pixels of the stack by as many places; what a neighbor pushes in stands where it will be black."""
    width, (left, right) = images.shape[2], copy.x.source
    if copy.x.sign > 0:
        places = (copy.y.start - copy.y.source[0]) * width + copy.x.start - left
        _copy_moved(_pixels(images), _pixels(result), places)
    else:
        places = (copy.y.start - copy.y.source[0]) * width + copy.x.start - (width - right)
        _flip_moved(_tall(images), _pixels(result), places)


def _copy_moved(source: Array, target: Array, places: int) -> None:
    """Copy pixels so many places further; those that leave the row are lost. [P, C], [P, C]"""
    if places >= 0:
        target[places:] = source[: len(source) - places]
    else:
        target[:places] = source[-places:]


def _flip_moved(rows: Array, target: Array, places: int) -> None:
    """Flip each row and copy it so many places further; what leaves the target is lost. [R, W, C], [R * W, C]

    Most rows are flipped straight into their place; only those at the edge are flipped aside and cut.
    """
    count, width = rows.shape[:2]
    at_edge = min(count, -(-abs(places) // width))
    kept, cut = (slice(count - at_edge), slice(count - at_edge, count))
    if places < 0:
        kept, cut = slice(at_edge, count), slice(at_edge)
    if at_edge < count:
        start = (kept.start or 0) * width + places
        whole = target[start : start + (count - at_edge) * width].reshape(-1, *rows.shape[1:])
        cv2.flip(rows[kept], 1, whole)
    if at_edge:
        aside = _pixels(cv2.flip(rows[cut], 1).reshape(-1, *rows.shape[1:]))
        start = (cut.start or 0) * width + places
        first, last = max(start, 0), min(start + len(aside), len(target))
        target[first:last] = aside[first - start : last - start]


def _rows_as_items(images: Array, top: int, bottom: int, left: int, right: int) -> Array:
    """See part of each row as one item, which NumPy copies whole. [N, H, W, C] -> void [N, bottom - top]"""
    _, height, width, channels = images.shape
    pixel = channels * images.itemsize
    return np.ndarray(
        (len(images), bottom - top),
        dtype=np.dtype((np.void, (right - left) * pixel)),
        buffer=images.data,
        offset=(top * width + left) * pixel,
        strides=(height * width * pixel, width * pixel),
    )


def _copy_upside_down(images: Array, result: Array, copy: Copy) -> None:
    """Turn each image by half, which is its pixels in reverse order, and move it where it is shifted."""
    _, height, width, channels = images.shape
    in_one_row = (len(images), height * width, channels)
    if copy.y.stop - copy.y.start == height and copy.x.stop - copy.x.start == width:
        cv2.flip(images.reshape(in_one_row), 1, result.reshape(in_one_row))
        return
    turned = cv2.flip(images.reshape(in_one_row), 1).reshape(images.shape)
    top = copy.y.start + height - 1 - copy.y.offset
    left = copy.x.start + width - 1 - copy.x.offset
    rows, columns = copy.y.stop - copy.y.start, copy.x.stop - copy.x.start
    target = result[:, copy.y.start : copy.y.stop, copy.x.start : copy.x.stop]
    np.copyto(target, turned[:, top : top + rows, left : left + columns])


def _tall(images: Array) -> Array:
    """See the stack as one tall picture. [N, H, W, C] -> [N * H, W, C]"""
    return images.reshape(-1, *images.shape[2:])


def _pixels(images: Array) -> Array:
    """See images as one row of pixels. [..., C] -> [P, C]"""
    return images.reshape(-1, images.shape[-1])


def _reordered(images: Array, reorder: Reorder) -> Array:
    result = np.empty_like(images)
    pairs = [index for target, source in enumerate(reorder.order) for index in (source, target)]
    if images.size and reorder.order == (2, 1, 0):
        cv2.cvtColor(_tall(images), cv2.COLOR_RGB2BGR, _tall(result))  # several times faster than the general way
    elif images.size:
        cv2.mixChannels([_tall(images)], [_tall(result)], pairs)
    return result


def _toned(images: Float32Array, tone: Tone) -> Float32Array:
    """Apply tone curves to float images; the mean is that of each image at that point of the chain."""
    values: Array = images
    for curve in tone.curves:
        mean = values.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64) if tone.about_mean else _NO_MEAN
        values = np.clip(curve(values, mean), 0.0, 1.0)
    return values.astype(np.float32, copy=False)


def _toned_by_table(images: Array, tone: Tone) -> Array:
    """Apply tone curves to uint8 images by a table of 256 values: one for all, or one per image for its mean."""
    result = np.empty_like(images)
    if not images.size:
        return result
    flat, flat_result = images.reshape(len(images), -1), result.reshape(len(images), -1)
    if not tone.about_mean:
        cv2.LUT(flat, _tables(np.ones((1, 256)), tone)[0], flat_result)
        return result
    for start in range(0, len(images), _TABLES_AT_ONCE):
        at_once = slice(start, start + _TABLES_AT_ONCE)
        histograms = [cv2.calcHist([image], [0], None, [256], [0, 256]).ravel() for image in flat[at_once]]
        tables = _tables(np.array(histograms, dtype=np.float64), tone)
        for image, table, target in zip(flat[at_once], tables, flat_result[at_once], strict=True):
            cv2.LUT(image[None], table, target[None])
    return result


def _tables(histograms: Float64Array, tone: Tone) -> Array:
    """Return the tone of each pixel value, for images with those counts of them. [n, 256] -> uint8 [n, 256]"""
    values: Float64Array = np.broadcast_to(np.arange(256) / 255.0, histograms.shape)
    pixels = histograms.sum(axis=1, keepdims=True)
    for curve in tone.curves:
        mean = (values * histograms).sum(axis=1, keepdims=True) / pixels
        values = np.clip(curve(values, mean), 0.0, 1.0)
    return np.rint(values * 255).astype(np.uint8)


def _warped(images: Array, warp: Warp) -> Array:
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


def _filtered(images: Float32Array, view: View, operation: Filter) -> Float32Array:
    result = np.asarray(operation.function(images.copy()))  # a user's function may work in place
    if result.shape != images.shape:
        raise ViewError(
            f"a step of view {str(view)!r} gave shape {list(result.shape)}, expected {list(images.shape)} as it got."
        )
    if not np.isfinite(result).all():
        raise ViewError(f"a step of view {str(view)!r} gave NaN or infinite pixels; check the function behind it.")
    clipped: Float32Array = np.clip(result, 0.0, 1.0).astype(np.float32)
    return clipped
