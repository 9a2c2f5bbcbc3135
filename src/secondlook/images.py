"""What makes an array a batch of images."""

import numpy as np

from secondlook.arrays import Array


def fault_of(images: object) -> str | None:
    """Say how something fails to be uint8, or float32 in [0, 1], [N, H, W, 1 or 3]; None where it does not."""
    if not isinstance(images, np.ndarray):
        return f"are a {type(images).__name__}, expected a NumPy array [N, H, W, 1 or 3]"
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        return f"have shape {list(images.shape)}, expected [N, H, W, 1 or 3]{_shape_repair(images)}"
    if 0 in images.shape[1:]:
        return f"have shape {list(images.shape)} and so no pixels, expected a height and width of at least 1"
    if images.dtype == np.float32:
        return _range_fault(images)
    if images.dtype != np.uint8:
        return f"are {images.dtype}, expected uint8, or float32 in [0, 1]; convert with astype"
    return None


def _shape_repair(images: Array) -> str:
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return "; the channels seem to come first: pass images.transpose(0, 2, 3, 1)"
    if images.ndim == 3 and images.shape[2] in (1, 3):
        return "; for one image pass image[None]"
    if images.ndim == 3:
        return "; for grey images pass images[..., None]"
    return ""


def _range_fault(images: Array) -> str | None:
    if not images.size:
        return None
    low, high = float(images.min()), float(images.max())
    if low >= 0.0 and high <= 1.0:  # neither is true of NaN
        return None
    return f"are float32 and run from {low:g} to {high:g}, expected [0, 1]; divide by 255, or pass uint8"
