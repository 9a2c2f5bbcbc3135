"""Images that are one array, in memory or mapped from a file."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, describe_image_fault
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
        fault = describe_image_fault(images)
        if fault is not None:
            raise SourceError(f"the images of {spec!r} {fault}.")
        if not len(images):
            raise SourceError(f"there is no image in {spec!r} (shape {list(images.shape)}); expected at least one.")
        self.images = images
        names = numbered_ids(len(images)) if ids is None else ids
        if len(names) != len(images):
            raise SourceError(f"{spec!r} has {len(names)} ids for {len(images)} images; one per image was expected.")
        super().__init__(spec, names, labels=labels, class_names=class_names, on_error=on_error)

    def read(self, index: int) -> Array:
        """Return one image as its own contiguous array, uint8 or float32 [H, W, 1 or 3]."""
        return np.array(self.images[index], order="C")
