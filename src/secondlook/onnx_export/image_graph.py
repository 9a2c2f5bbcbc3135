"""Preprocessing and views as ONNX operators: resize, crop and gray, then views, then normalization.

Views use the same operations as the CPU and the PyTorch engine. Copies, and tones of uint8 images, are equal to those
of the CPU engine; interpolated pixels differ by at most 1/255.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import checker, helper

from secondlook.extension import (
    ANY,
    Axis,
    Blur,
    Border,
    ClassifierError,
    Copy,
    ExportError,
    Filter,
    Frame,
    Luminance,
    Preprocessing,
    Reorder,
    Repair,
    Tone,
    View,
    Warp,
    is_whole_number,
    rounds_at_most_once,
)
from secondlook.onnx_export.graph import Graph, Tensor, describe_failures, describe_value

_MODES: dict[str, dict[str, Any]] = {
    "bilinear": {"mode": "linear"},
    "bicubic": {"mode": "cubic", "cubic_coeff_a": -0.5},
}
"""Attributes of `Resize` for the interpolation of Pillow; results are equal except for rounding."""


@dataclass(frozen=True)
class ImageShape:
    """Shapes of the images that an exported file takes, before and after `Preprocessing.fit`."""

    given: tuple[int | None, int | None, int | None]
    """Height, width and channels of the input of the file; None if arbitrary."""
    fitted: tuple[int, int, int]
    """Height, width and channels after resizing, cropping and conversion of channels: the input of views."""


def find_image_shape(preprocessing: Preprocessing, image_shape: Sequence[int] | None) -> ImageShape:
    """Return the shapes of images before and after `Preprocessing.fit`.

    `image_shape` (height, width, channels) is needed if the preprocessing does not determine it: the size if it neither
    crops nor resizes to a height and width, and the channels if it takes gray and color images.
    """
    is_any_size = preprocessing.fitted_size is not None
    if image_shape is None:
        size, channels = preprocessing.input_size, _find_channels(preprocessing)
        if size is None or channels is None:
            unknown = "size" if size is None else "number of channels"
            fault = f"the preprocessing ({preprocessing}) does not state the {unknown} of the images"
            repair = Repair("pass {image_shape} with their height, width and channels", image_shape=ANY)
            raise ExportError(f"{fault}, which an exported file needs", repair=repair)
        given = fitted = *size, channels
        is_any_size = is_any_size or preprocessing.resize is not None
    else:
        shape: object = image_shape  # callers without a type checker may pass anything
        sizes = tuple(shape) if isinstance(shape, Sequence) else ()
        if not (len(sizes) == 3 and all(is_whole_number(size) and size > 0 for size in sizes) and sizes[2] in (1, 3)):
            fault = "is not an image shape; expected positive integers (height, width, channels) with 1 or 3 channels"
            raise ExportError(fault, argument="image_shape", value=image_shape)
        try:
            given, fitted = sizes, preprocessing.fit(np.zeros((1, *sizes), dtype=np.uint8)).shape[1:]
        except ClassifierError as error:
            raise ExportError(f"contradicts the preprocessing: {error}", argument="image_shape", value=sizes) from error
    height, width = (None, None) if is_any_size else given[:2]
    return ImageShape((height, width, None if _converts_channels(preprocessing) else fitted[2]), fitted)


def _find_channels(preprocessing: Preprocessing) -> int | None:
    """Return the number of channels of the classifier's input, or None if it takes gray and color images."""
    is_color = max(len(preprocessing.mean), len(preprocessing.std)) == 3
    return preprocessing.channels or (3 if is_color else None)


def _converts_channels(preprocessing: Preprocessing) -> bool:
    return (_find_channels(preprocessing), preprocessing.gray) in ((3, "repeat"), (1, "luminance"))


# --- Before the views ---


def add_fit(graph: Graph, images: Tensor, preprocessing: Preprocessing, shape: ImageShape) -> Tensor:
    """Add resizing, cropping and the conversion of channels, as `Preprocessing.fit`.

    uint8|float32 [N, h, w, c] -> the same type [N, *shape.fitted]

    Resized pixels equal those of Pillow within one gray level, rarely two. `Resize` computes weights in float32 and
    always resizes the width first; Pillow 13 starts with the height if that shrinks by more than twice as many pixels.
    """
    if shape.given == shape.fitted and preprocessing.keeps(shape.fitted):
        return images
    if preprocessing.resize is not None:
        images = _add_resize(graph, images, preprocessing)
    if preprocessing.crop is not None:
        images = _add_center_crop(graph, images, preprocessing)
    if _converts_channels(preprocessing):
        images = graph.op("Expand", images, [1, 1, 1, 3])  # does not change images with three channels
        images = images if preprocessing.gray == "repeat" else _add_gray(graph, images)
    # Does not change the shape, but makes it constant for shape inference.
    return graph.op("Reshape", images, [0, *shape.fitted])


def _add_resize(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Resize as Pillow does. [N, h, w, c] -> [N, height, width, c]"""
    if isinstance(preprocessing.resize, tuple):
        size = graph.constant(preprocessing.resize, np.int64)
    else:  # the longer side is scaled in proportion, rounded down
        sides = graph.op("Shape", images, start=1, end=3)
        size = sides * preprocessing.resize / graph.op("ReduceMin", sides, keepdims=1)
    if preprocessing.interpolation == "nearest":
        return _add_nearest(graph, images, size)
    if preprocessing.interpolation not in _MODES:
        fault = f"has no ONNX form; expected one of 'nearest', {', '.join(map(repr, _MODES))}"
        raise ExportError(fault, argument="interpolation", value=preprocessing.interpolation)
    batch, channels = (graph.op("Shape", images, start=axis, end=axis + 1) for axis in (0, 3))
    sizes = graph.op("Concat", batch, size, channels, axis=0)
    mode = _MODES[preprocessing.interpolation]
    # The attribute `axes` would save the sizes of the other axes, but ONNX Runtime 1.31 then fails to optimize a
    # transposition before this operator.
    return graph.op("Resize", images, None, None, sizes, antialias=1, exclude_outside=1, **mode)


def _add_nearest(graph: Graph, images: Tensor, size: Tensor) -> Tensor:
    """Take the nearest pixel. [N, h, w, c], int64 [2] -> [N, height, width, c]

    Positions are sums of steps in float64, as in Pillow. `Resize` computes them in float32, and often takes another
    pixel, since positions on the border of two pixels are common.
    """
    for axis in (1, 2):
        length = graph.op("Shape", images, start=axis, end=axis + 1)
        wanted = graph.op("Slice", size, [axis - 1], [axis])
        step = length.cast(np.float64) / wanted.cast(np.float64)
        steps = graph.op("Concat", step * 0.5, graph.op("Expand", step, wanted), axis=0)
        positions = graph.op("CumSum", steps, graph.constant(0, np.int64)).cast(np.int64)
        images = graph.op("Gather", images, graph.op("Slice", positions, [0], wanted), axis=axis)
    return images


def _add_center_crop(graph: Graph, images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Cut out the center, padded with black where an image is smaller. [N, h, w, c] -> [N, height, width, c]"""
    assert preprocessing.fitted_size is not None, "images are cropped"
    crop = np.array(preprocessing.fitted_size, dtype=np.int64)
    if (np.array(preprocessing.resize or 1) < crop).any():  # resized images have at least these sides
        missing = graph.op("Max", crop - graph.op("Shape", images, start=1, end=3), 0)
        before = missing / 2
        images = graph.op("Pad", images, graph.op("Concat", before, missing - before, axis=0), None, [1, 2])
    margins = graph.op("Shape", images, start=1, end=3) - crop
    if preprocessing.crop_rounding == "down":
        start = margins / 2
    else:  # half to even
        start = graph.op("Round", margins.cast(np.float32) * 0.5).cast(np.int64)
    return graph.op("Slice", images, start, start + crop, [1, 2])


def _add_gray(graph: Graph, images: Tensor) -> Tensor:
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
    # Reorders pixels before the conversion to float32, which takes four times the memory.
    if preprocessing.layout == "NCHW":
        images = graph.op("Transpose", images, perm=[0, 3, 1, 2])
    if preprocessing.color == "BGR":
        axis, start, end = 1 if preprocessing.layout == "NCHW" else 3, -1, np.iinfo(np.int64).min
        images = graph.op("Slice", images, [start], [end], [axis], [-1])
    if preprocessing.input_dtype == "uint8":
        if images.dtype == np.uint8:
            return images
        return graph.op("Round", graph.op("Clip", images, 0.0, 1.0) * 255).cast(np.uint8)
    factor, offset = preprocessing.factor_and_offset
    if images.dtype == np.float32:
        factor = factor * np.float32(255)
    inputs = images.cast(np.float32)
    if (factor != 1).any():
        inputs = inputs * factor
    if offset.any():
        inputs = inputs + offset
    return inputs.cast(preprocessing.input_dtype)


# --- Views ---


def add_view(graph: Graph, images: Tensor, view: View, frame: Frame) -> Tensor:
    """Add one view of every image. uint8, or float32 in [0, 1]; [N, H, W, C] -> the same"""
    operations = view.plan(frame)
    # As in the other engines, pixels are rounded only once, at the end.
    rounds_at_end = images.dtype == np.uint8 and not rounds_at_most_once(operations)
    values = images.cast(np.float32) * np.float32(1 / 255) if rounds_at_end else images
    for operation in operations:
        match operation:
            case Copy():
                values = _add_copy(graph, values, operation, frame)
            case Reorder():
                values = graph.op("Gather", values, operation.order, axis=3)
            case Tone():
                values = _add_tone(graph, values, operation)
            case Warp():
                values = _add_warp(graph, values, operation, frame)
            case Luminance():
                values = _add_luminance(graph, values, operation, frame)
            case Blur():
                values = _add_blur(graph, values, operation, frame)
            case Filter():
                values = _add_filter(graph, values, view, operation, frame)
    return _add_rounding(graph, values * 255.0) if rounds_at_end else values


def _add_rounding(graph: Graph, values: Tensor) -> Tensor:
    """Round values of 0 to 255 half to even, as the other engines do. float [...] -> uint8 [...]"""
    return graph.op("Clip", graph.op("Round", values), 0.0, 255.0).cast(np.uint8)


def _add_copy(graph: Graph, images: Tensor, copy: Copy, frame: Frame) -> Tensor:
    """Flip by slices with a negative step (shared by views), then shift by slices and black padding."""
    axes = [(1, copy.y, frame.height), (2, copy.x, frame.width)]
    if any(along.start >= along.stop for _, along, _ in axes):
        return graph.op("Mul", images.cast(np.float32), 0.0).cast(images.dtype)
    flipped = [axis for axis, along, _ in axes if along.sign < 0]
    if flipped:
        back, to_first = ([value] * len(flipped) for value in (-1, -np.iinfo(np.int64).max))
        images = graph.op("Slice", images, back, to_first, flipped, back)  # an end of -1 would mean the last pixel
    cuts = [(axis, *_find_slice(along, size)) for axis, along, size in axes if not along.covers(size)]
    if not cuts:
        return images
    cut_axes, starts, ends, before, after = zip(*cuts, strict=True)
    content = graph.op("Slice", images, starts, ends, cut_axes)
    return graph.op("Pad", content, [*before, *after], None, cut_axes)


def _find_slice(along: Axis, size: int) -> tuple[int, int, int, int]:
    """Return start and end of the kept part of an axis, after its flip, and the widths of the black borders."""
    first, stop = along.source
    if along.sign < 0:
        first, stop = size - stop, size - first
    return first, stop, along.start, size - along.stop


def _add_tone(graph: Graph, images: Tensor, tone: Tone) -> Tensor:
    """Apply tone curves: to uint8 images by a table if no curve uses the mean, otherwise to floating-point values."""
    if images.dtype == np.uint8 and not tone.uses_mean:
        # ONNX Runtime gathers 4-byte numbers faster than single bytes.
        table = graph.constant(tone.table).cast(np.float32)
        return graph.op("Gather", table, images.cast(np.int32)).cast(np.uint8)
    values = images.cast(np.float64) if tone.uses_mean else images
    if images.dtype == np.uint8:
        values = values / 255.0
    for curve in tone.curves:
        mean = values.reduce("Mean", 1, 2, 3, keepdims=1) if tone.uses_mean else 0.0
        values = graph.op("Clip", curve(values, mean), 0.0, 1.0)
    return _add_rounding(graph, values * 255.0) if images.dtype == np.uint8 else values.cast(np.float32)


def _add_warp(graph: Graph, images: Tensor, warp: Warp, frame: Frame) -> Tensor:
    """Interpolate between the four pixels around each position.

    The single operator GridSample takes several times as long in ONNX Runtime.
    """
    pixels = graph.op("Reshape", images.cast(np.float32), [0, -1, frame.channels])
    (across, columns), (along, rows) = _add_positions(graph, warp, frame)
    upper, lower = (
        [_take_pixels(graph, pixels, column, row, warp.border, frame) for column in columns] for row in rows
    )
    top, bottom = (left + across * (right - left) for left, right in (upper, lower))
    result = graph.op("Reshape", top + along * (bottom - top), [0, frame.height, frame.width, frame.channels])
    return _add_rounding(graph, result) if images.dtype == np.uint8 else result


def _add_positions(graph: Graph, warp: Warp, frame: Frame) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Return the sampling positions of output pixels, across and along: fractions, and the pixels before and after.

    Fractions are float32 [H * W, C], pixels int64 [H * W]. The graph computes them in float32 as OpenCV does, which
    keeps files small. Fractions are repeated for each channel, since ONNX Runtime multiplies arrays of the same shape
    several times as fast.
    """
    x, y = _add_range(graph, frame.width, [1, -1]), _add_range(graph, frame.height, [-1, 1])
    found = []
    for x_factor, y_factor, offset in warp.matrix:
        positions = graph.op("Reshape", x * x_factor + y * y_factor + offset, [-1])
        before = graph.op("Floor", positions)
        fractions = graph.op("Expand", graph.op("Unsqueeze", positions - before, [1]), [1, frame.channels])
        first = before.cast(np.int64)
        found.append((fractions, (first, first + 1)))
    return found


def _add_range(graph: Graph, size: int, shape: Sequence[int]) -> Tensor:
    """Return the numbers from 0 to size - 1, reshaped. float32"""
    numbers = graph.op("Range", *(graph.constant(number, np.float32) for number in (0, size, 1)))
    return graph.op("Reshape", numbers, shape)


def _take_pixels(graph: Graph, pixels: Tensor, column: Tensor, row: Tensor, border: Border, frame: Frame) -> Tensor:
    """Take one pixel for each position, also outside the image. float32 [N, H * W, C] -> the same"""
    x, y = (_add_border(graph, place, size, border) for place, size in ((column, frame.width), (row, frame.height)))
    taken = graph.op("Gather", pixels, y * frame.width + x, axis=1)
    if border != "black":
        return taken
    is_inside = graph.op("And", graph.op("Equal", x, column), graph.op("Equal", y, row))
    return taken * graph.op("Unsqueeze", is_inside.cast(np.float32), [1])


def _add_border(graph: Graph, places: Tensor, size: int, border: Border) -> Tensor:
    """Replace rows or columns outside the image by those of the border. int64 [H * W] -> the same"""
    if border == "mirror":
        period = graph.op("Mod", places, 2 * size)
        return graph.op("Min", period, (2 * size - 1) - period)
    return graph.op("Clip", places, 0, size - 1)


def _add_luminance(graph: Graph, images: Tensor, luminance: Luminance, frame: Frame) -> Tensor:
    if frame.channels == 1:
        return images
    weighted = images * np.array(luminance.weights, dtype=np.float32)
    gray = graph.op("Clip", weighted.reduce("Sum", 3, keepdims=1), 0.0, 1.0)
    return graph.op("Concat", gray, gray, gray, axis=3)


def _add_blur(graph: Graph, images: Tensor, blur: Blur, frame: Frame) -> Tensor:
    """Blur along columns and rows, each channel separately."""
    offsets = np.arange(-blur.radius, blur.radius + 1)
    weights = np.exp(-(offsets**2) / (2 * blur.sigma**2))
    kernel = (weights / weights.sum()).astype(np.float32)
    planes = graph.op("Transpose", images, perm=[0, 3, 1, 2])
    planes = graph.op("Reshape", planes, [-1, 1, frame.height, frame.width])
    for axis, size, shape in ((2, frame.height, (1, 1, -1, 1)), (3, frame.width, (1, 1, 1, -1))):
        mirrored = np.pad(np.arange(size), blur.radius, mode="symmetric")
        planes = graph.op("Conv", graph.op("Gather", planes, mirrored, axis=axis), kernel.reshape(shape))
    planes = graph.op("Reshape", planes, [-1, frame.channels, frame.height, frame.width])
    return graph.op("Clip", graph.op("Transpose", planes, perm=[0, 2, 3, 1]), 0.0, 1.0)


# --- Custom steps ---


def _add_filter(graph: Graph, images: Tensor, view: View, operation: Filter, frame: Frame) -> Tensor:
    if operation.onnx_form is None:
        fault = f"a step of view {str(view)!r} has no ONNX form"
        raise ExportError(fault, repair="pass it to view_step(..., onnx=...), or use a policy without this view")
    what = f"the ONNX form of a step of view {str(view)!r}"
    with describe_failures(f"{what} is not valid", "correct the function passed to view_step(..., onnx=...)."):
        # First in a separate graph, to attribute its faults to the step.
        alone = Graph(graph.opset)
        result = _call_form(operation.onnx_form, alone, Tensor(alone, "images", np.float32), what)
        shape: list[int | str | None] = ["batch", frame.height, frame.width, frame.channels]
        described = [describe_value(name, np.float32, shape) for name in ("images", result.name)]
        built = alone.build("form", described[:1], described[1:])
        model = helper.make_model(built, opset_imports=[helper.make_opsetid("", graph.opset)])
        checker.check_model(model, full_check=True)  # also compares the shape of the result
        return _call_form(operation.onnx_form, graph, images, what)


def _call_form(form: Callable[[Graph, Tensor], object], graph: Graph, images: Tensor, what: str) -> Tensor:
    result = form(graph, images)
    if not isinstance(result, Tensor):
        fault = f"{what} returned {type(result).__name__}; expected a tensor of the graph"
        raise ExportError(f"{fault}, such as graph.op('Floor', images).")
    return graph.op("Clip", result.cast(np.float32), 0.0, 1.0)
