"""The settings of `Preprocessing` as ONNX operators: resize, crop and gray before views, normalization after them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secondlook.arrays import Array, is_whole_number
from secondlook.classifiers import Preprocessing
from secondlook.errors import ClassifierError, ExportError
from secondlook.onnx_export.graph import Graph, Tensor, as_int64

_MODES: dict[str, dict[str, Any]] = {
    "bilinear": {"mode": "linear"},
    "bicubic": {"mode": "cubic", "cubic_coeff_a": -0.5},
}
"""Attributes of `Resize` with which it interpolates as Pillow does, which it equals but for rounding."""


@dataclass(frozen=True)
class ImageShape:
    """Shapes of the images that an exported file takes, and of those at the input size of the classifier.

    Attributes
    ----------
    given
        Height, width and channels of the images that the file takes; None where any is accepted.
    fitted
        Height, width and channels after resizing, cropping and conversion of channels: what views are made of.
    """

    given: tuple[int | None, int | None, int | None]
    fitted: tuple[int, int, int]


def find_image_shape(preprocessing: Preprocessing, image_shape: Sequence[int] | None) -> ImageShape:
    """Return the shapes of images before and after `Preprocessing.fit`.

    Parameters
    ----------
    preprocessing
        The preprocessing of the classifier.
    image_shape
        Height, width and channels of the images; needed for what the preprocessing leaves open: the size if it neither
        crops nor resizes to a height and width, and the channels if its settings are the same for each.
    """
    _check_image_shape(image_shape)
    fitted = _find_fitted_shape(preprocessing) if image_shape is None else _fit_shape(preprocessing, image_shape)
    height, width = fitted[:2] if image_shape is None else image_shape[:2]
    is_any_size = preprocessing.fitted_size is not None or (image_shape is None and preprocessing.resize is not None)
    given_size = (None, None) if is_any_size else (height, width)
    return ImageShape((*given_size, None if _converts_channels(preprocessing) else fitted[2]), fitted)


def _find_fitted_shape(preprocessing: Preprocessing) -> tuple[int, int, int]:
    """Return the shape after `Preprocessing.fit` if it is the same for all images. -> height, width, channels"""
    size, channels = preprocessing.input_size, _find_channels(preprocessing)
    if size is None or channels is None:
        unknown = "size" if size is None else "number of channels"
        raise ExportError(
            f"the preprocessing ({preprocessing}) does not state the {unknown} of the images, which an exported file "
            "needs",
            repair=Repair("pass {image_shape}: height, width and channels", image_shape=ANY),
        )
    return *size, channels


def _check_image_shape(image_shape: object) -> None:
    if image_shape is None:
        return
    sizes = tuple(image_shape) if isinstance(image_shape, Sequence) else ()
    if not (len(sizes) == 3 and all(is_whole_number(size) and size > 0 for size in sizes) and sizes[2] in (1, 3)):
        raise ExportError(
            "is not the shape of images; expected whole numbers (height, width, channels) with 1 or 3 channels",
            argument="image_shape",
            value=image_shape,
        )


def _fit_shape(preprocessing: Preprocessing, image_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape after `Preprocessing.fit` of images of one shape. -> height, width, channels"""
    try:
        height, width, channels = preprocessing.fit(np.zeros((1, *image_shape), dtype=np.uint8)).shape[1:]
    except ClassifierError as error:
        fault = f"contradicts the preprocessing: {error}"
        raise ExportError(fault, argument="image_shape", value=tuple(image_shape)) from error
    return height, width, channels


def _find_channels(preprocessing: Preprocessing) -> int | None:
    """Return the number of channels that the classifier takes, or None if it takes gray and color images."""
    is_color = max(len(preprocessing.mean), len(preprocessing.std)) == 3
    return preprocessing.channels or (3 if is_color else None)


def _converts_channels(preprocessing: Preprocessing) -> bool:
    return (_find_channels(preprocessing), preprocessing.gray) in ((3, "repeat"), (1, "luminance"))


# --- Before the views ---


def add_fit(graph: Graph, images: Tensor, preprocessing: Preprocessing, shape: ImageShape) -> Tensor:
    """Add resizing, cropping and the conversion of channels, as `Preprocessing.fit`.

    uint8|float32 [N, h, w, c] -> the same type [N, *shape.fitted]

    Resized pixels are those of Pillow within one gray level, rarely two: `Resize` computes weights in float32, and
    always resizes the width first, where Pillow 13 starts with the height if that shrinks by more than twice as many
    pixels.
    """
    if shape.given == shape.fitted and preprocessing.keeps(shape.fitted):
        return images
    if preprocessing.resize is not None:
        images = _add_resize(graph, images, preprocessing)
    if preprocessing.crop is not None:
        images = _add_center_crop(graph, images, preprocessing)
    images = _add_channel_conversion(graph, images, preprocessing)
    # The shape is the one that images have already, but as constants, so that shape inference knows it.
    return graph.op("Reshape", images, as_int64([0, *shape.fitted]))


def _add_resize(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Resize as Pillow does. [N, h, w, c] -> [N, height, width, c]"""
    size = _add_resized_size(graph, images, preprocessing)
    if preprocessing.interpolation == "nearest":
        return _add_nearest(graph, images, size)
    if preprocessing.interpolation not in _MODES:
        raise ExportError(
            f"has no ONNX form; expected one of 'nearest', {', '.join(map(repr, _MODES))}",
            argument="interpolation",
            value=preprocessing.interpolation,
        )
    batch, channels = (graph.op("Shape", images, start=axis, end=axis + 1) for axis in (0, 3))
    sizes = graph.op("Concat", batch, size, channels, axis=0)
    mode = _MODES[preprocessing.interpolation]
    # The attribute `axes` would save the sizes of the other axes, but with it ONNX Runtime 1.31 fails to move a
    # transposition that someone puts before this operator.
    return graph.op("Resize", images, None, None, sizes, antialias=1, exclude_outside=1, **mode)


def _add_resized_size(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Compute height and width after resizing; the longer side is in proportion, rounded down. -> int64 [2]"""
    if isinstance(preprocessing.resize, tuple):
        return graph.constant(as_int64(preprocessing.resize))
    sides = graph.op("Shape", images, start=1, end=3)
    return sides * preprocessing.resize / graph.op("ReduceMin", sides, keepdims=1)


def _add_nearest(graph: Graph, images: Tensor, size: Tensor) -> Tensor:
    """Take the nearest pixel. [N, h, w, c], int64 [2] -> [N, height, width, c]

    The position in an image is a sum of steps in float64, as in Pillow. `Resize` computes it in float32, which is often
    another pixel, since positions on the border of two pixels are common.
    """
    for axis in (1, 2):
        length = graph.op("Shape", images, start=axis, end=axis + 1)
        wanted = graph.op("Slice", size, as_int64([axis - 1]), as_int64([axis]))
        step = length.cast(np.float64) / wanted.cast(np.float64)
        steps = graph.op("Concat", step * 0.5, graph.op("Expand", step, wanted), axis=0)
        positions = graph.op("CumSum", steps, graph.constant(0, np.int64)).cast(np.int64)
        images = graph.op("Gather", images, graph.op("Slice", positions, as_int64([0]), wanted), axis=axis)
    return images


def _add_center_crop(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Cut out the center, padded with black where an image is smaller. [N, h, w, c] -> [N, height, width, c]"""
    assert preprocessing.fitted_size is not None, "images are cropped"
    crop = as_int64(preprocessing.fitted_size)
    # Resized images have at least these sides.
    if (np.array(preprocessing.resize or 1) < crop).any():
        images = _add_padding(graph, images, crop)
    margins = graph.op("Shape", images, start=1, end=3) - crop
    start = _add_half(graph, margins, preprocessing)
    return graph.op("Slice", images, start, start + crop, as_int64([1, 2]))


def _add_padding(graph: Graph, images: Tensor, size: Array) -> Tensor:
    """Pad images with black where they are smaller than a height and width. [N, h, w, c], int64 [2]"""
    missing = graph.op("Max", size - graph.op("Shape", images, start=1, end=3), 0)
    before = missing / 2
    return graph.op("Pad", images, graph.op("Concat", before, missing - before, axis=0), None, as_int64([1, 2]))


def _add_half(graph: Graph, margins: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Compute half of the margins, rounded to even or down. int64 [2] -> int64 [2]"""
    if preprocessing.crop_rounding == "down":
        return margins / 2
    return graph.op("Round", margins.cast(np.float32) * 0.5).cast(np.int64)


def _add_channel_conversion(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Convert between gray and color as `gray` allows. [N, h, w, 1 or 3] -> [N, h, w, channels]"""
    if not _converts_channels(preprocessing):
        return images
    images = graph.op("Expand", images, as_int64([1, 1, 1, 3]))  # images that have three channels stay as they are
    return images if preprocessing.gray == "repeat" else _add_luminance(graph, images)


def _add_luminance(graph: Graph, images: Tensor) -> Tensor:
    """Convert color images to gray. uint8|float32 [N, h, w, 3] -> the same type [N, h, w, 1]"""
    weights = np.array(Preprocessing.LUMINANCE_WEIGHTS, dtype=np.float32)[:, None]
    if images.dtype == np.float32:
        return graph.op("MatMul", images, weights / 65536)
    # Whole numbers up to 2 ** 24 and divisions by powers of two are exact in float32.
    weighted = graph.op("MatMul", images.cast(np.float32), weights)
    return graph.op("Floor", (weighted + 32768) / 65536).cast(np.uint8)


# --- After the views ---


def add_normalization(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Add scale, color order, mean and std, layout and number type, as `Preprocessing.normalize`.

    uint8|float32 [n, H, W, C] -> the network's input, [n, C, H, W] or [n, H, W, C]
    """
    # Pixels are reordered before they become float32, which are four times as large.
    if preprocessing.layout == "NCHW":
        images = graph.op("Transpose", images, perm=[0, 3, 1, 2])
    if preprocessing.color == "BGR":
        axis, start, end = 1 if preprocessing.layout == "NCHW" else 3, -1, np.iinfo(np.int64).min
        images = graph.op("Slice", images, *(as_int64([value]) for value in (start, end, axis, -1)))
    if preprocessing.input_dtype == "uint8":
        return _add_pixels(graph, images)
    factor, offset = preprocessing.factor_and_offset
    if images.dtype == np.float32:
        factor = factor * np.float32(255)
    inputs = images.cast(np.float32)
    if (factor != 1).any():
        inputs = inputs * factor
    if offset.any():
        inputs = inputs + offset
    return inputs.cast(np.dtype(preprocessing.input_dtype))


def _add_pixels(graph: Graph, images: Tensor) -> Tensor:
    """Convert images to pixels. uint8, or float32 in [0, 1] -> uint8 of the same shape"""
    if images.dtype == np.uint8:
        return images
    return graph.op("Round", graph.op("Clip", images, 0.0, 1.0) * 255).cast(np.uint8)
