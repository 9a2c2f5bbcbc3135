"""What the engine can do with a batch: copies, tone curves, one warp, or any function on float images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array

ToneCurve = Callable[[Array, Array | np.float64], Array]
"""Values in [0, 1] and the mean of the image, both broadcastable -> values; the engine clips them to [0, 1]."""


@dataclass(frozen=True)
class Axis:
    """Where one axis of a copied image comes from: index i in [start, stop) is source index sign * i + offset."""

    sign: int
    offset: int
    start: int
    stop: int

    @classmethod
    def shift(cls, distance: int, size: int) -> "Axis":
        """Move the content by `distance`; what leaves the image is lost."""
        start, stop = max(distance, 0), min(size + distance, size)
        return cls(1, -distance, start, max(start, stop))

    @classmethod
    def flip(cls, size: int) -> "Axis":
        """Mirror the content."""
        return cls(-1, size - 1, 0, size)

    def after(self, first: "Axis") -> "Axis":
        """Return the axis that does `first`, then this one."""
        if first.start == first.stop:
            return first
        ends = sorted(self.sign * (end - self.offset) for end in (first.start, first.stop - 1))
        start, stop = max(self.start, ends[0]), min(self.stop, ends[1] + 1)
        return Axis(first.sign * self.sign, first.sign * self.offset + first.offset, start, max(start, stop))

    @property
    def source(self) -> tuple[int, int]:
        """The first and one past the last source index that is copied, in increasing order."""
        ends = sorted((self.sign * self.start + self.offset, self.sign * (self.stop - 1) + self.offset))
        return ends[0], ends[1] + 1

    def covers(self, size: int) -> bool:
        """Tell whether no black shows."""
        return (self.start, self.stop) == (0, size)


@dataclass(frozen=True)
class Copy:
    """Flips and whole-pixel shifts: pixels move, none is computed; what comes from outside is black."""

    y: Axis
    x: Axis


@dataclass(frozen=True)
class Reorder:
    """The channels in another order: output channel c is input channel `order[c]`."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Tone:
    """Curves on each pixel value, one after the other."""

    curves: tuple[ToneCurve, ...]
    about_mean: bool = False
    """whether a curve looks at the mean of the image"""


@dataclass(frozen=True)
class Warp:
    """Bilinear sampling: output pixel (x, y) is the input at `matrix @ (x, y, 1)`; pixel centers are whole numbers."""

    matrix: tuple[tuple[float, float, float], tuple[float, float, float]]
    border: Literal["black", "edge", "mirror"]

    @property
    def inverse_map(self) -> Float64Array:
        """The matrix as an array. [2, 3]"""
        return np.array(self.matrix)


@dataclass(frozen=True)
class Filter:
    """Any function on a batch: float32 [N, H, W, C] in [0, 1] -> the same shape."""

    function: Callable[[Float32Array], Array]


Operation = Copy | Reorder | Tone | Warp | Filter
