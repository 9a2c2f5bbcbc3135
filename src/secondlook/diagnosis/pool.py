"""The pool as the search sees it: a few numbers for each view of each image, read from the predictions in one pass."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DiagnosisError
from secondlook.estimators import class_mass, predicted_classes, top_class_mass
from secondlook.predictions import Predictions, top_classes
from secondlook.views import ViewSet


@dataclass(frozen=True, eq=False)
class Pool:
    """Views of images without pixels and classes; the first view is the identity."""

    views: ViewSet
    shares: Float64Array
    """What the classes predicted from the image itself hold in each view. float64 [V, N]"""
    largest: Float64Array
    """The largest softmax output of each view, for k > 1 the sum of the k largest. float64 [V, N]"""
    agrees: BoolArray
    """Whether the leading class of the view is that of the image itself. bool [V, N]"""
    right: BoolArray | None
    """Whether the label is among the k leading classes of the view; None without labels. bool [V, N]"""
    truth: Float64Array | None
    """What the right class holds in each view; None without labels. float64 [V, N]"""

    @property
    def correct(self) -> BoolArray:
        """Whether the class predicted from the image itself is right. bool [N]"""
        if self.right is None:
            raise DiagnosisError(
                "the search needs labels, and these predictions have none; give labels= when collecting."
            )
        first: BoolArray = self.right[0]
        return first

    def on(self, images: IntArray) -> "Pool":
        """Return the pool of some of the images only. int64 [n]"""
        return Pool(
            self.views,
            self.shares[:, images],
            self.largest[:, images],
            self.agrees[:, images],
            None if self.right is None else self.right[:, images],
            None if self.truth is None else self.truth[:, images],
        )

    def mean_confidence(self, positions: IntArray) -> Float64Array:
        """Return the mean over some views of what the predicted classes hold; MSR(D) of that set. int [v] -> [N]"""
        mean: Float64Array = self.shares[positions].mean(axis=0)
        return mean


def pool_of(preds: Predictions, top_k: int = 1, *, progress: bool = False) -> Pool:
    """Read the predictions once; of an ensemble, the mean over its members."""
    if not isinstance(preds, Predictions):
        raise DiagnosisError(
            f"views are chosen from Predictions of a pool, got {type(preds).__name__}; collect them first."
        )
    with preds.read_with_bar("reading the pool", 2, enabled=progress) as seen:
        return _pool_of(seen, top_k)


def _pool_of(preds: Predictions, top_k: int) -> Pool:
    classes = predicted_classes(preds, "image", top_k)
    shape = preds.n_views, preds.n_images
    shares, largest = np.empty(shape), np.empty(shape)
    agrees, right, truth = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_), np.empty(shape)
    for rows, block in preds.blocks():
        shares[:, rows] = class_mass(block, classes[rows]).T
        for view in range(preds.n_views):
            outputs = block[:, view]
            leading = top_classes(outputs, top_k)
            largest[view, rows] = top_class_mass(outputs, top_k)
            agrees[view, rows] = leading[:, 0] == classes[rows, 0]
            if preds.has_labels:
                labels = preds.labels[rows, None]
                right[view, rows] = (leading == labels).any(axis=1)
                truth[view, rows] = np.take_along_axis(outputs, labels, axis=1)[:, 0]
    known = preds.has_labels
    return Pool(preds.views, shares, largest, agrees, right if known else None, truth if known else None)
