"""Views as operators of ONNX, from the same operations that the CPU and the PyTorch engine run.

Copies and the tones of uint8 images are equal to those of the CPU engine; pixels that are sampled in between differ by
at most 1/255.
"""

from collections.abc import Callable, Sequence

import numpy as np

from secondlook.errors import ExportError
from secondlook.onnx_export.conversion import describe_failures
from secondlook.onnx_export.graph import Graph, Tensor, as_int64, describe_value
from secondlook.operations import (
    Axis,
    Blur,
    Border,
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
from secondlook.views import View


def add_view(graph: Graph, images: Tensor, view: View, frame: Frame) -> Tensor:
    """Add one view of every image. uint8, or float32 in [0, 1]; [N, H, W, C] -> the same"""
    operations = view.plan(frame)
    if images.dtype == np.uint8 and not rounds_at_most_once(operations):
        # As in the other engines, pixels are rounded only once, at the end.
        values = images.cast(np.float32) * np.float32(1 / 255)
        return _add_rounding(graph, _add_all(graph, values, view, operations, frame) * 255.0)
    return _add_all(graph, images, view, operations, frame)


def _add_all(graph: Graph, images: Tensor, view: View, operations: Sequence[Operation], frame: Frame) -> Tensor:
    for operation in operations:
        images = _add(graph, images, view, operation, frame)
    return images


def _add(graph: Graph, images: Tensor, view: View, operation: Operation, frame: Frame) -> Tensor:
    match operation:
        case Copy():
            return _add_copy(graph, images, operation, frame)
        case Reorder():
            return graph.op("Gather", images, as_int64(operation.order), axis=3)
        case Tone():
            return _add_tone(graph, images, operation)
        case Warp():
            return _add_warp(graph, images, operation, frame)
        case Luminance():
            return _add_luminance(graph, images, operation, frame)
        case Blur():
            return _add_blur(graph, images, operation, frame)
        case Filter():
            return _add_filter(graph, images, view, operation, frame)


def _add_rounding(graph: Graph, values: Tensor) -> Tensor:
    """Round values of 0 to 255 half to even, as the other engines do. float [...] -> uint8 [...]"""
    return graph.op("Clip", graph.op("Round", values), 0.0, 255.0).cast(np.uint8)


def _add_copy(graph: Graph, images: Tensor, copy: Copy, frame: Frame) -> Tensor:
    """Flip by slices with a negative step, which several views share, then shift by slices and black padding."""
    axes = [(1, copy.y, frame.height), (2, copy.x, frame.width)]
    if any(along.start >= along.stop for _, along, _ in axes):
        return graph.op("Mul", images.cast(np.float32), 0.0).cast(images.dtype)
    flipped = [axis for axis, along, _ in axes if along.sign < 0]
    if flipped:
        back = as_int64([-1] * len(flipped))
        to_first = back * np.iinfo(np.int64).max  # an end of -1 would count from the other side
        images = graph.op("Slice", images, back, to_first, as_int64(flipped), back)
    cuts = [(axis, *_find_slice(along, size)) for axis, along, size in axes if not along.covers(size)]
    if not cuts:
        return images
    cut_axes, starts, ends, before, after = zip(*cuts, strict=True)
    content = graph.op("Slice", images, as_int64(starts), as_int64(ends), as_int64(cut_axes))
    return graph.op("Pad", content, as_int64([*before, *after]), None, as_int64(cut_axes))


def _find_slice(along: Axis, size: int) -> tuple[int, int, int, int]:
    """Return the start and the end of what is kept of an axis that was flipped already, and the black around it."""
    first, stop = along.source
    if along.sign < 0:
        first, stop = size - stop, size - first
    return first, stop, along.start, size - along.stop


def _add_tone(graph: Graph, images: Tensor, tone: Tone) -> Tensor:
    """Apply tone curves: to uint8 images by a table where it is the same for all, and otherwise in float64."""
    if images.dtype == np.uint8 and not tone.uses_mean:
        # ONNX Runtime gathers numbers of four bytes faster than those of one.
        table = graph.constant(tone.table).cast(np.float32)
        return graph.op("Gather", table, images.cast(np.int32)).cast(np.uint8)
    values = images
    if tone.uses_mean:
        values = images.cast(np.float64)
    if images.dtype == np.uint8:
        values = values / 255.0
    for curve in tone.curves:
        mean = graph.op("ReduceMean", values, as_int64([1, 2, 3]), keepdims=1) if tone.uses_mean else 0.0
        values = graph.op("Clip", curve(values, mean), 0.0, 1.0)
    return _add_rounding(graph, values * 255.0) if images.dtype == np.uint8 else values.cast(np.float32)


def _add_warp(graph: Graph, images: Tensor, warp: Warp, frame: Frame) -> Tensor:
    """Interpolate between the four pixels around each position.

    GridSample would be one operator instead, but takes several times as long in ONNX Runtime.
    """
    pixels = graph.op("Reshape", images.cast(np.float32), as_int64([0, -1, frame.channels]))
    (across, along), (columns, rows) = _add_positions(graph, warp, frame)
    upper, lower = (
        [_take_pixels(graph, pixels, column, row, warp.border, frame) for column in columns] for row in rows
    )
    top, bottom = (left + across * (right - left) for left, right in (upper, lower))
    result = graph.op("Reshape", top + along * (bottom - top), as_int64([0, frame.height, frame.width, frame.channels]))
    return _add_rounding(graph, result) if images.dtype == np.uint8 else result


Neighbors = tuple[Tensor, Tensor]
"""The columns to the left and to the right of each position, or the rows above and below."""


def _add_positions(graph: Graph, warp: Warp, frame: Frame) -> tuple[tuple[Tensor, Tensor], tuple[Neighbors, Neighbors]]:
    """Return where output pixels are sampled: fractions, float32 [H * W, C] each, and neighbors, int64 [H * W] each.

    They are computed in the graph, in float32 as in OpenCV, so that files stay small. Fractions are repeated for each
    channel, since ONNX Runtime multiplies arrays of the same shape several times as fast.
    """
    x, y = _add_range(graph, frame.width, [1, -1]), _add_range(graph, frame.height, [-1, 1])
    fractions, neighbors = [], []
    for x_factor, y_factor, offset in warp.matrix:
        positions = graph.op("Reshape", x * x_factor + y * y_factor + offset, as_int64([-1]))
        before = graph.op("Floor", positions)
        fraction = graph.op("Unsqueeze", positions - before, as_int64([1]))
        fractions.append(graph.op("Expand", fraction, as_int64([1, frame.channels])))
        first = before.cast(np.int64)
        neighbors.append((first, first + 1))
    return (fractions[0], fractions[1]), (neighbors[0], neighbors[1])


def _add_range(graph: Graph, size: int, shape: Sequence[int]) -> Tensor:
    """Return the numbers from 0 to size - 1. float32 of a shape"""
    numbers = graph.op("Range", *(graph.constant(number, np.float32) for number in (0, size, 1)))
    return graph.op("Reshape", numbers, as_int64(shape))


def _take_pixels(graph: Graph, pixels: Tensor, column: Tensor, row: Tensor, border: Border, frame: Frame) -> Tensor:
    """Take one pixel for each position, which may be outside of the image. float32 [N, H * W, C] -> the same"""
    x, y = (_add_border(graph, place, size, border) for place, size in ((column, frame.width), (row, frame.height)))
    taken = graph.op("Gather", pixels, y * frame.width + x, axis=1)
    if border != "black":
        return taken
    is_inside = graph.op("And", graph.op("Equal", x, column), graph.op("Equal", y, row))
    return taken * graph.op("Unsqueeze", is_inside.cast(np.float32), as_int64([1]))


def _add_border(graph: Graph, places: Tensor, size: int, border: Border) -> Tensor:
    """Return the rows or columns that stand for those outside of the image. int64 [H * W] -> the same"""
    if border == "mirror":
        period = graph.op("Mod", places, 2 * size)
        return graph.op("Min", period, (2 * size - 1) - period)
    return graph.op("Clip", places, 0, size - 1)


def _add_luminance(graph: Graph, images: Tensor, luminance: Luminance, frame: Frame) -> Tensor:
    if frame.channels == 1:
        return images
    weighted = images * np.array(luminance.weights, dtype=np.float32)
    gray = graph.op("Clip", graph.op("ReduceSum", weighted, as_int64([3]), keepdims=1), 0.0, 1.0)
    return graph.op("Concat", gray, gray, gray, axis=3)


def _add_blur(graph: Graph, images: Tensor, blur: Blur, frame: Frame) -> Tensor:
    """Blur along columns and rows; every channel of every image is an image of its own."""
    offsets = np.arange(-blur.radius, blur.radius + 1)
    weights = np.exp(-(offsets**2) / (2 * blur.sigma**2))
    kernel = (weights / weights.sum()).astype(np.float32)
    planes = graph.op("Transpose", images, perm=[0, 3, 1, 2])
    planes = graph.op("Reshape", planes, as_int64([-1, 1, frame.height, frame.width]))
    for axis, size, shape in ((2, frame.height, (1, 1, -1, 1)), (3, frame.width, (1, 1, 1, -1))):
        mirrored = np.pad(np.arange(size), blur.radius, mode="symmetric")
        planes = graph.op("Conv", graph.op("Gather", planes, as_int64(mirrored), axis=axis), kernel.reshape(shape))
    planes = graph.op("Reshape", planes, as_int64([-1, frame.channels, frame.height, frame.width]))
    return graph.op("Clip", graph.op("Transpose", planes, perm=[0, 2, 3, 1]), 0.0, 1.0)


def _add_filter(graph: Graph, images: Tensor, view: View, operation: Filter, frame: Frame) -> Tensor:
    if operation.onnx_form is None:
        raise ExportError(
            f"a step of view {str(view)!r} has no ONNX form; state it with view_step(..., onnx=...), or use a policy "
            "without this view."
        )
    what = f"the ONNX form of a step of view {str(view)!r}"
    with describe_failures(f"{what} is not valid", "correct the function that view_step(..., onnx=...) got."):
        _check_form(operation.onnx_form, graph.opset, frame, what)
        return _call_form(operation.onnx_form, graph, images, what)


Form = Callable[[Graph, Tensor], object]
"""The ONNX form of a user's step."""


def _call_form(form: Form, graph: Graph, images: Tensor, what: str) -> Tensor:
    result = form(graph, images)
    if not isinstance(result, Tensor):
        raise ExportError(
            f"{what} returned {type(result).__name__}; expected a tensor of the graph, such as "
            "graph.op('Floor', images)."
        )
    return graph.op("Clip", result.cast(np.float32), 0.0, 1.0)


def _check_form(form: Form, opset: int, frame: Frame, what: str) -> None:
    """Build a graph of a user's form alone, so that its faults are not taken for those of the whole."""
    from onnx import checker, helper, shape_inference

    graph = Graph(opset)
    result = _call_form(form, graph, graph.tensor("images", np.float32), what)
    expected = [frame.height, frame.width, frame.channels]
    described = describe_value("images", np.float32, ["batch", *expected])
    built = graph.build("form", [described], [describe_value(result.name, np.float32, [None] * 4)])
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", opset)])
    checker.check_model(model)
    inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    sizes = [size.dim_value or None for size in inferred.graph.output[0].type.tensor_type.shape.dim[1:]]
    if any(size not in (None, side) for size, side in zip(sizes, expected, strict=True)):
        raise ExportError(f"{what} returned images of shape {sizes}; expected {expected}, the shape of its input.")
