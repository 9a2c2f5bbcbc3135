"""Images that are one array, in memory or mapped from a file."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources.labels import numbered_ids
from secondlook.sources.source import OnError, Source


class ArraySource(Source):
    """An array of images, uint8 [N, H, W, 1 or 3], or float32 in [0, 1], which is handed on as it is."""

    def __init__(
        self,
        images: Array,
        *,
        spec: str | None = None,
        ids: Sequence[str] | None = None,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
        on_error: OnError = "fail",
    ) -> None:
        spec = f"array:{list(np.shape(images))}" if spec is None else spec
        self.images = checked_images(images, spec)
        names = numbered_ids(len(images)) if ids is None else ids
        if len(names) != len(images):
            raise SourceError(f"{spec!r} has {len(names)} ids for {len(images)} images; one per image was expected.")
        super().__init__(spec, names, labels=labels, class_names=class_names, on_error=on_error)

    def read(self, index: int) -> Array:
        """Return one image as its own contiguous array, uint8 or float32 [H, W, 1 or 3]."""
        return np.array(self.images[index], order="C")


def checked_images(images: Array, where: str) -> Array:
    """Return the array if it is uint8 or float32 in [0, 1], [N, H, W, 1 or 3]; no copy is made."""
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise SourceError(
            f"the images of {where!r} have shape {list(images.shape)}; [N, H, W, 1 or 3] was expected"
            f"{_shape_repair(images)}."
        )
    if 0 in images.shape:
        raise SourceError(f"the images of {where!r} have shape {list(images.shape)}; at least one pixel is needed.")
    if images.dtype == np.float32:
        _check_unit_range(images, where)
    elif images.dtype != np.uint8:
        raise SourceError(f"the images of {where!r} are {images.dtype}; uint8, or float32 in [0, 1], was expected.")
    return images


def _shape_repair(images: Array) -> str:
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return "; the channels seem to come first: use images.transpose(0, 2, 3, 1)"
    if images.ndim == 3 and images.shape[2] in (1, 3):
        return "; for a single image use images[None]"
    if images.ndim == 3:
        return "; for grey images use images[..., None]"
    return ""


def _check_unit_range(images: Array, where: str) -> None:
    # NaN fails the comparison as well.
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):
        raise SourceError(
            f"the float32 images of {where!r} run from {low:g} to {high:g}; [0, 1] was expected: divide by 255, or pass"
            " uint8."
        )
