"""Array types that pass between the rooms, and what an array must be to count as images or as outputs."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Any array; the docstring of a function gives the shape and the dtype."""

Float64Array = NDArray[np.float64]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

Output = Literal["logits", "probabilities"]
"""What the numbers of a classifier are."""
OUTPUTS: tuple[Output, ...] = ("logits", "probabilities")


def softmax(logits: Array) -> Float64Array:
    """Softmax over the last axis in float64: in float32 confident outputs tie at 1."""
    shifted = np.array(logits, dtype=np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    return shifted


def default_ids(n_images: int) -> tuple[str, ...]:
    """Return the ids of images that have none: their positions, zero-padded so that they sort ('000042')."""
    return tuple(f"{position:06d}" for position in range(n_images))


def describe_image_fault(images: object) -> str | None:
    """Return how something fails to be uint8, or float32 in [0, 1], [N, H, W, 1 or 3]; None where it does not."""
    if not isinstance(images, np.ndarray):
        return f"are a {type(images).__name__}, expected a NumPy array [N, H, W, 1 or 3]"
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        return f"have shape {list(images.shape)}, expected [N, H, W, 1 or 3]{_suggest_reshape(images)}"
    if 0 in images.shape[1:]:
        return f"have shape {list(images.shape)} and so no pixels, expected a height and width of at least 1"
    if images.dtype == np.float32:
        return _describe_range_fault(images)
    if images.dtype != np.uint8:
        return f"are {images.dtype}, expected uint8, or float32 in [0, 1]; convert with astype"
    return None


def _suggest_reshape(images: Array) -> str:
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return "; the channels seem to come first: pass images.transpose(0, 2, 3, 1)"
    if images.ndim == 3 and images.shape[2] in (1, 3):
        return "; for one image pass image[None]"
    if images.ndim == 3:
        return "; for gray images pass images[..., None]"
    return ""


def _describe_range_fault(images: Array) -> str | None:
    if not images.size:
        return None
    low, high = float(images.min()), float(images.max())
    if low >= 0.0 and high <= 1.0:  # neither is true of NaN
        return None
    return f"are float32 and run from {low:g} to {high:g}, expected [0, 1]; divide by 255, or pass uint8"
