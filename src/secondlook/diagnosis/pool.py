"""The predictions of a pool of views, reduced to a few numbers per view and image in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.errors import DiagnosisError
from secondlook.estimators import class_mass, top_class_mass
from secondlook.predictions import Predictions, top_classes
from secondlook.views import ViewSet


@dataclass(frozen=True, eq=False)
class Pool:
    """Views x images; the first view is the identity."""

    views: ViewSet
    class_mass: Float64Array
    """Probability mass of the classes predicted from the image itself. float64 [V, N]"""
    top_mass: Float64Array
    """Largest probability of each view, for k > 1 the sum of the k largest. float64 [V, N]"""
    agrees: BoolArray
    """Whether the view and the image itself have the same predicted class. bool [V, N]"""
    view_correct: BoolArray | None
    """Whether the label is among the top k classes of the view; None without labels. bool [V, N]"""
    label_mass: Float64Array | None
    """Probability of the label; None without labels. float64 [V, N]"""

    @property
    def correct(self) -> BoolArray:
        """Whether the prediction from the image itself is correct. bool [N]"""
        if self.view_correct is None:
            raise DiagnosisError("choosing views needs labels, and these predictions have none; pass labels= to them.")
        correct: BoolArray = self.view_correct[0]
        return correct

    def select(self, images: Array) -> "Pool":
        """Return the pool of some of the images. bool [N] or int64 [n]"""
        return Pool(
            self.views,
            self.class_mass[:, images],
            self.top_mass[:, images],
            self.agrees[:, images],
            None if self.view_correct is None else self.view_correct[:, images],
            None if self.label_mass is None else self.label_mass[:, images],
        )

    def mean_confidence(self, views: Sequence[str]) -> Float64Array:
        """Return the confidence 'mean' of some of the views. -> float64 [N]"""
        positions = [self.views.texts.index(view) for view in views]
        mean: Float64Array = self.class_mass[positions].mean(axis=0)
        return mean


def read_pool(preds: Predictions, top_k: int = 1, *, progress: bool = False) -> Pool:
    """Read predictions once; for an ensemble, the mean over its members."""
    if not isinstance(preds, Predictions):
        raise DiagnosisError(
            f"expected Predictions of the views to diagnose or choose from, got {type(preds).__name__}; collect() "
            "returns them."
        )
    with preds.show_progress("reading the views", 2, enabled=progress) as watched:
        return _read_pool(watched, top_k)


def _read_pool(preds: Predictions, top_k: int) -> Pool:
    classes = preds.predicted("image", top_k).reshape(-1, top_k)
    shape = preds.n_views, preds.n_images
    mass, top_mass, label_mass = np.empty(shape), np.empty(shape), np.empty(shape)
    agrees, view_correct = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
    for rows, block in preds.blocks():
        mass[:, rows] = class_mass(block, classes[rows]).T
        for view in range(preds.n_views):
            outputs = block[:, view]
            top = top_classes(outputs, top_k)
            top_mass[view, rows] = top_class_mass(outputs, top_k)
            agrees[view, rows] = top[:, 0] == classes[rows, 0]
            if preds.has_labels:
                labels = preds.labels[rows, None]
                view_correct[view, rows] = (top == labels).any(axis=1)
                label_mass[view, rows] = np.take_along_axis(outputs, labels, axis=1)[:, 0]
    if not preds.has_labels:
        return Pool(preds.views, mass, top_mass, agrees, None, None)
    return Pool(preds.views, mass, top_mass, agrees, view_correct, label_mass)
