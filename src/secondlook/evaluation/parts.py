"""The parts of the images that are evaluated: all, with and without others mixed in, and groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, IntArray
from secondlook.errors import MetricError
from secondlook.predictions.predictions import Predictions

Groups = str | Sequence[object] | Mapping[str, ArrayLike] | None
ALL, OWN, TELLING_APART = "all images", "in distribution", "telling others apart"


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the images and what counts as right among them."""

    name: str
    images: IntArray
    correct: BoolArray


def parts_of(preds: Predictions, correct: BoolArray, groups: Groups, n_others: int) -> list[Part]:
    """Return all images first, then the parts; the `n_others` images that belong to no class come last in each."""
    own, everything = np.arange(preds.n_images), np.arange(preds.n_images + n_others)
    others_wrong = np.concatenate([correct, np.zeros(n_others, dtype=np.bool_)])
    parts = [Part(ALL, everything, others_wrong)]
    if n_others:
        parts += [Part(OWN, own, correct), Part(TELLING_APART, everything, everything < preds.n_images)]
    for name, labels in _named_groups(preds, groups):
        for label in dict.fromkeys(sorted(labels.tolist(), key=lambda one: (str(type(one)), one))):
            members = own[labels == label]
            parts.append(Part(f"{name} {label}", members, correct[members]))
    return parts


def _named_groups(preds: Predictions, groups: Groups) -> Iterator[tuple[str, np.typing.NDArray[np.generic]]]:
    if groups is None:
        return
    if isinstance(groups, str):
        if groups != "class":
            raise MetricError(f"groups is {groups!r}, expected 'class' or one label per image.")
        names = preds.class_names
        yield "class", preds.labels if names is None else np.array(names)[preds.labels]
        return
    named = groups if isinstance(groups, Mapping) else {"group": groups}
    for name, given in named.items():
        labels = np.asarray(given)
        if labels.shape != (preds.n_images,):
            raise MetricError(
                f"groups {name!r} has shape {labels.shape} for {preds.n_images} images, expected one label per image."
            )
        yield name, labels
