"""From the text of a view to the fewest operations that mean the same."""

from functools import lru_cache

import numpy as np

from secondlook.views.operations import Copy, Operation, Reorder, Tone, Warp
from secondlook.views.steps import Frame
from secondlook.views.view import View


@lru_cache(maxsize=4096)
def plan(view: View, frame: Frame) -> tuple[Operation, ...]:
    """Return the operations for a view on images of that size, neighbors fused wherever the result is equal."""
    operations: list[Operation] = []
    for step in view.steps:
        operations.append(step.operation(frame))
        while len(operations) > 1 and (fused := _fused(operations[-2], operations[-1], frame)):
            operations[-2:] = [fused]
    return tuple(operations)


def computes_pixels(operation: Operation) -> bool:
    """Tell whether an operation rounds: copies and channel orders do not."""
    return not isinstance(operation, Copy | Reorder)


def _fused(first: Operation, second: Operation, frame: Frame) -> Operation | None:
    match first, second:
        case Copy(), Copy():
            return Copy(second.y.after(first.y), second.x.after(first.x))
        case Reorder(), Reorder():
            return Reorder(tuple(first.order[channel] for channel in second.order))
        case Tone(), Tone():
            return Tone(first.curves + second.curves, first.about_mean or second.about_mean)
        case Copy(), Warp() if _shows_no_black(first, frame):
            return _product(_matrix_of(first), second.inverse_map, second)
        case Warp(), Copy() if _shows_no_black(second, frame):
            return _product(first.inverse_map, _matrix_of(second), first)
    return None


def _shows_no_black(copy: Copy, frame: Frame) -> bool:
    return copy.y.covers(frame.height) and copy.x.covers(frame.width)


def _matrix_of(copy: Copy) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[copy.x.sign, 0, copy.x.offset], [0, copy.y.sign, copy.y.offset]], dtype=np.float64)


def _product(
    outer: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    inner: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    warp: Warp,
) -> Warp:
    """Return the warp that looks up `outer` at the place that `inner` gives; a mirrored border stays what it is."""
    matrix = outer @ np.vstack([inner, [0.0, 0.0, 1.0]])
    across, along = (tuple(float(value) for value in row) for row in matrix)
    return Warp(((across[0], across[1], across[2]), (along[0], along[1], along[2])), warp.border)
