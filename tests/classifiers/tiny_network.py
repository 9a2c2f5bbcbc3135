"""A small network in plain NumPy: the reference for every kind of model with the same weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TinyNetwork:
    """A 3 x 3 convolution, ReLU, global average pooling, and a linear layer."""

    kernel: Array
    bias: Array
    matrix: Array
    offset: Array

    @classmethod
    def random(cls, seed: int = 0, channels: int = 3, filters: int = 4, classes: int = 5) -> "TinyNetwork":
        rng = np.random.default_rng(seed)
        shapes = [(filters, channels, 3, 3), (filters,), (classes, filters), (classes,)]
        return cls(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))

    @classmethod
    def load(cls, file: Path) -> "TinyNetwork":
        with np.load(file) as arrays:
            return cls(**arrays)

    def save(self, file: Path) -> None:
        np.savez(file, kernel=self.kernel, bias=self.bias, matrix=self.matrix, offset=self.offset)

    def logits(self, inputs: Array) -> Array:
        """float32 [N, C, H, W] -> float32 [N, classes]"""
        windows = np.lib.stride_tricks.sliding_window_view(inputs, (3, 3), axis=(2, 3))
        features = np.einsum("nchwij,fcij->nfhw", windows, self.kernel) + self.bias[:, None, None]
        logits: Array = np.maximum(features, 0).mean(axis=(2, 3)) @ self.matrix.T + self.offset
        return logits.astype(np.float32)
