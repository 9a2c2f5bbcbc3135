"""Image operations that every engine implements: on arrays, on tensors, and as an ONNX graph."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array
from secondlook.errors import ViewError

ToneCurve = Callable[[Any, Any], Any]
"""Values in [0, 1] and the mean of the image, broadcastable -> values, which the engine clips to [0, 1].

Curves use operators only, so they work on arrays and tensors."""

Border = Literal["black", "edge", "mirror"]
"""How pixels outside the image are filled."""


@dataclass(frozen=True)
class Frame:
    """Size of the input images of a step."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class Axis:
    """One axis of a copy: output index i in [start, stop) is input index sign * i + offset."""

    sign: int
    offset: int
    start: int
    stop: int

    @classmethod
    def shift(cls, distance: int, size: int) -> "Axis":
        """Return the axis that moves the content by `distance`; content that leaves the image is lost."""
        start, stop = max(distance, 0), min(size + distance, size)
        return cls(1, -distance, start, max(start, stop))

    @classmethod
    def flip(cls, size: int) -> "Axis":
        """Return the axis that mirrors the content."""
        return cls(-1, size - 1, 0, size)

    def after(self, first: "Axis") -> "Axis":
        """Return the composition of `first` and this axis."""
        if first.start == first.stop:
            return first
        ends = sorted(self.sign * (end - self.offset) for end in (first.start, first.stop - 1))
        start, stop = max(self.start, ends[0]), min(self.stop, ends[1] + 1)
        return Axis(first.sign * self.sign, first.sign * self.offset + first.offset, start, max(start, stop))

    @cached_property
    def source(self) -> tuple[int, int]:
        """The range [first, last + 1) of input indices that are copied, in increasing order."""
        ends = sorted((self.sign * self.start + self.offset, self.sign * (self.stop - 1) + self.offset))
        return ends[0], ends[1] + 1

    def covers(self, size: int) -> bool:
        """Return whether the output contains no black."""
        return (self.start, self.stop) == (0, size)


@dataclass(frozen=True)
class Copy:
    """Flips and integer shifts: pixels are moved, not computed; pixels outside the image are black."""

    y: Axis
    x: Axis


@dataclass(frozen=True)
class Reorder:
    """A permutation of the channels: output channel c is input channel `order[c]`."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Tone:
    """Curves applied to each pixel value in order; `uses_mean` if a curve depends on the image mean."""

    curves: tuple[ToneCurve, ...]
    uses_mean: bool = False

    @cached_property
    def table(self) -> Array:
        """The new value of each pixel value, for curves that do not depend on the image. uint8 [256]"""
        table: Array = self.compute_tables(np.ones((1, 256)))[0]
        table.setflags(write=False)
        return table

    def compute_tables(self, histograms: Float64Array) -> Array:
        """Return the new value of each pixel value, for images with these histograms. [n, 256] -> uint8 [n, 256]"""
        values: Float64Array = np.broadcast_to(np.arange(256) / 255.0, histograms.shape)
        n_pixels = histograms.sum(axis=1, keepdims=True)
        for curve in self.curves:
            mean = (values * histograms).sum(axis=1, keepdims=True) / n_pixels
            values = np.clip(curve(values, mean), 0.0, 1.0)
        return np.rint(values * 255).astype(np.uint8)


@dataclass(frozen=True)
class Warp:
    """Bilinear sampling: output pixel (x, y) is the input at `matrix @ (x, y, 1)`; pixel centers are integers."""

    matrix: tuple[tuple[float, ...], tuple[float, ...]]
    border: Border


@dataclass(frozen=True)
class Luminance:
    """Replaces every channel of color images by the luminance, with weights of red, green and blue."""

    weights: tuple[float, float, float]


@dataclass(frozen=True)
class Blur:
    """A Gaussian blur with a standard deviation of `sigma` pixels; the edges are mirrored."""

    sigma: float

    @property
    def radius(self) -> int:
        """Radius of the blur in pixels."""
        return math.ceil(3 * self.sigma)


@dataclass(frozen=True)
class Filter:
    """A user-defined function of a batch: float32 [N, H, W, C] in [0, 1] -> the same shape."""

    function: Callable[[Float32Array], Array]
    onnx_form: Callable[[Any, Any], Any] | None = None
    """The same function as ONNX operators: (graph, images as its tensor) -> tensor; None if there is none."""

    def run(self, images: Float32Array, view: object) -> Float32Array:
        """Run the function on a batch, and check its result. float32 [N, H, W, C] -> the same shape"""
        result = np.asarray(self.function(images.copy()))  # a user's function may modify its input
        if result.shape != images.shape:
            fault = f"a step of view {str(view)!r} returned shape {list(result.shape)}"
            raise ViewError(fault, repair=f"expected {list(images.shape)}, the shape of its input")
        if not np.isfinite(result).all():
            raise ViewError(f"a step of view {str(view)!r} returned NaN or infinite pixels; check its function.")
        clipped: Float32Array = np.clip(result, 0.0, 1.0).astype(np.float32)
        return clipped


Operation = Copy | Reorder | Tone | Warp | Luminance | Blur | Filter


def rounds_at_most_once(operations: Iterable[Operation]) -> bool:
    """Return whether uint8 images may stay uint8 in between: at most one operation computes pixels."""
    computing = [operation for operation in operations if not isinstance(operation, Copy | Reorder)]
    return len(computing) <= 1 and all(isinstance(operation, Tone | Warp) for operation in computing)


def fuse_operations(operations: Iterable[Operation], frame: Frame) -> tuple[Operation, ...]:
    """Fuse adjacent operations where this does not change the result."""
    fused: list[Operation] = []
    for operation in operations:
        fused.append(operation)
        while len(fused) > 1 and (combined := _fuse(fused[-2], fused[-1], frame)):
            fused[-2:] = [combined]
    return tuple(fused)


def _fuse(first: Operation, second: Operation, frame: Frame) -> Operation | None:
    match first, second:
        case Copy(), Copy():
            return Copy(second.y.after(first.y), second.x.after(first.x))
        case Reorder(), Reorder():
            return Reorder(tuple(first.order[channel] for channel in second.order))
        case Tone(), Tone():
            return Tone(first.curves + second.curves, first.uses_mean or second.uses_mean)
        case Copy(), Warp() if _covers_frame(first, frame):
            return _compose_warp(_to_matrix(first), np.array(second.matrix), second.border)
        case Warp(), Copy() if _covers_frame(second, frame):
            return _compose_warp(np.array(first.matrix), _to_matrix(second), first.border)
    return None


def _covers_frame(copy: Copy, frame: Frame) -> bool:
    return copy.y.covers(frame.height) and copy.x.covers(frame.width)


def _to_matrix(copy: Copy) -> Float64Array:
    return np.array([[copy.x.sign, 0, copy.x.offset], [0, copy.y.sign, copy.y.offset]], dtype=np.float64)


def _compose_warp(outer: Float64Array, inner: Float64Array, border: Border) -> Warp:
    """Return the warp that samples at `outer @ inner`; flips do not change the border."""
    matrix = outer @ np.vstack([inner, [0.0, 0.0, 1.0]])
    across, along = (tuple(row) for row in matrix.tolist())
    return Warp((across, along), border)
