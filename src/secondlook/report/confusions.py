"""Which class is predicted for which: the cells of the confusion matrix, and the cell of each image by rank."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.report.study import Study

MAX_BYTES = 2_000_000
"""Bytes of the ranked cells of all methods on a page: 500,000 images by 4 methods, if there are at most 256 cells."""


@dataclass(frozen=True, eq=False)
class ConfusionCells:
    """The P pairs of true and predicted class that occur, and the pair of each image.

    With `top_k` above 1 the predicted class is the most probable one, and a prediction can be correct although the two
    differ: such images have a cell of their own.
    """

    labels: IntArray
    """int64 [P]"""
    predicted: IntArray
    """int64 [P]"""
    correct: BoolArray
    """bool [P]"""
    of_image: IntArray
    """The cell of each image. int64 [N]"""

    @property
    def images(self) -> IntArray:
        """Number of images of each cell. int64 [P]"""
        return np.bincount(self.of_image, minlength=len(self.labels))

    def count(self, chosen: BoolArray) -> IntArray:
        """Count the chosen images of each cell. bool [N] -> int64 [P]"""
        return np.bincount(self.of_image[chosen], minlength=len(self.labels))


def find_cells(study: Study) -> ConfusionCells:
    """Return the cells of the confusion matrix that have images, by true class and then by predicted class."""
    triples = np.stack([study.preds.labels, study.leading, study.correct], axis=1).astype(np.int64)
    cells, of_image = np.unique(triples, axis=0, return_inverse=True)
    return ConfusionCells(cells[:, 0], cells[:, 1], cells[:, 2].astype(np.bool_), of_image.reshape(-1))


def rank_cells(study: Study, cells: ConfusionCells, first: str) -> Mapping[str, Array]:
    """Return the cell of each image, most confident image first, for `first` and for as many methods as there is room.

    The first n of them are the cells of the n images that a threshold accepts, so that a page can count any operating
    point. uint8, uint16 or uint32 [N] each
    """
    kind = np.min_scalar_type(max(len(cells.labels) - 1, 0))
    n_methods = MAX_BYTES // (kind.itemsize * study.n_images)
    names = sorted(study.confidences, key=lambda name: name != first)[:n_methods]
    orders = {name: np.argsort(-study.confidences[name], kind="stable") for name in names}
    return {name: cells.of_image[order].astype(kind) for name, order in orders.items()}
