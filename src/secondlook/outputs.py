"""What the numbers of a classifier are, and how logits become probabilities."""

from typing import Literal

import numpy as np

from secondlook.arrays import Array, Float64Array

Output = Literal["logits", "probabilities"]
OUTPUTS: tuple[Output, ...] = ("logits", "probabilities")


def softmax(logits: Array) -> Float64Array:
    """Softmax over the last axis in float64: in float32 sure answers tie at 1."""
    shifted = np.array(logits, dtype=np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    return shifted
