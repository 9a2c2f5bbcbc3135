"""What all engines share: from views to operations for images of one size, tables of tones, functions of users."""

from functools import lru_cache

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array
from secondlook.errors import ViewError
from secondlook.views.operations import Filter, Frame, Operation, Tone, fuse_operations
from secondlook.views.view import View


@lru_cache(maxsize=4096)
def plan_operations(view: View, frame: Frame) -> tuple[Operation, ...]:
    """Return the operations of a view for images of one size, fused as far as possible."""
    if view.name is not None:
        raise ViewError(
            f"view {view.name!r} is only the name of a view that was computed elsewhere, so it cannot be applied to"
            " images; write it as steps, such as 'hflip+shift:2,0'."
        )
    return fuse_operations((step.to_operation(frame) for step in view.steps), frame)


@lru_cache(maxsize=256)
def compute_table(tone: Tone) -> Array:
    """Return the new value of each pixel value, for curves that do not depend on the image. uint8 [256]"""
    table: Array = compute_tables(np.ones((1, 256)), tone)[0]
    table.setflags(write=False)
    return table


def compute_tables(histograms: Float64Array, tone: Tone) -> Array:
    """Return the new value of each pixel value, for images with these histograms. [n, 256] -> uint8 [n, 256]"""
    values: Float64Array = np.broadcast_to(np.arange(256) / 255.0, histograms.shape)
    n_pixels = histograms.sum(axis=1, keepdims=True)
    for curve in tone.curves:
        mean = (values * histograms).sum(axis=1, keepdims=True) / n_pixels
        values = np.clip(curve(values, mean), 0.0, 1.0)
    return np.rint(values * 255).astype(np.uint8)


def run_filter(images: Float32Array, view: View, operation: Filter) -> Float32Array:
    """Run a user's function on a batch, and check what it returns. float32 [N, H, W, C] -> the same shape"""
    result = np.asarray(operation.function(images.copy()))  # a user's function may modify its input
    if result.shape != images.shape:
        raise ViewError(
            f"a step of view {str(view)!r} returned shape {list(result.shape)}; expected {list(images.shape)}, the"
            " shape of its input."
        )
    if not np.isfinite(result).all():
        raise ViewError(f"a step of view {str(view)!r} returned NaN or infinite pixels; check its function.")
    clipped: Float32Array = np.clip(result, 0.0, 1.0).astype(np.float32)
    return clipped
