"""A table of answers: what `Predictions` reads from, whether it lies in memory or on disk."""

from typing import Protocol

import numpy as np

from secondlook.arrays import Array, IntArray, Output

BLOCK_BYTES = 32 * 2**20
"""About how much of a table is held at once, as float64."""


class Table(Protocol):
    """Answers [N, V, C] of one kind that can be read piece by piece."""

    @property
    def kind(self) -> Output:
        """What the numbers are."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, views, classes."""

    @property
    def rows_read_together(self) -> int:
        """How many neighboring images it costs no more to read than one of them."""

    def read(self, images: IntArray, views: IntArray) -> Array:
        """Return float32 or float64 [len(images), len(views), C]; the caller may write to it."""


class ArrayTable:
    """Answers that lie in memory as one array [N, V, C] of float32 or float64."""

    rows_read_together = 1

    def __init__(self, values: Array, kind: Output) -> None:
        self.values = values.view()
        self.values.flags.writeable = False
        self.kind: Output = kind

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, views, classes."""
        images, views, classes = self.values.shape
        return images, views, classes

    def read(self, images: IntArray, views: IntArray) -> Array:
        """Return a copy of the chosen rows and views, [len(images), len(views), C]."""
        rows: Array = self.values[images]
        if len(views) == self.shape[1] and np.array_equal(views, np.arange(len(views))):
            return rows
        return rows[:, views]


def block_rows(views: int, classes: int, rows_read_together: int = 1) -> int:
    """Return how many images make one block: a power of two, so that blocks end where stored pieces end."""
    fitting = max(1, BLOCK_BYTES // (8 * views * classes))
    return max(rows_read_together, 1 << (fitting.bit_length() - 1))
