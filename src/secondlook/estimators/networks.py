"""Looking inside a torch classifier, for the methods that need more than its answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.errors import ConfidenceError

if TYPE_CHECKING:
    from secondlook.classifiers import TorchClassifier


def torch_classifier(classifier: object) -> "TorchClassifier":
    """Return a classifier whose inside can be reached, or say how to load one."""
    from secondlook.classifiers import TorchClassifier, load_classifier, require_torch

    require_torch()
    loaded = load_classifier(classifier)
    if not isinstance(loaded, TorchClassifier):
        raise ConfidenceError(
            f"{type(loaded).__name__} {loaded.name!r} cannot be looked into; "
            "load a torch module: load_classifier(module, output='logits', ...)."
        )
    return loaded


def in_batches(answer: Callable[[Array], Float32Array], images: Array, batch_size: int) -> Float32Array:
    """Return the answers to all images, [N, H, W, C] -> [N, ...]"""
    if batch_size < 1 or len(images) == 0:
        raise ConfidenceError(f"{len(images)} images in batches of {batch_size}; expected at least one of each.")
    return np.concatenate([answer(images[at : at + batch_size]) for at in range(0, len(images), batch_size)])
