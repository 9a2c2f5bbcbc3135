"""The parts of the images that are evaluated: all, with and without others mixed in, and groups."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.errors import MetricError
from secondlook.predictions import Predictions

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
    parts += [Part(title, members, correct[members]) for title, members in _titled_groups(preds, groups)]
    name, times = Counter(part.name for part in parts).most_common(1)[0]
    if times > 1:
        raise MetricError(f"two parts would both be called {name!r}; give the groups other names.")
    return parts


def _titled_groups(preds: Predictions, groups: Groups) -> Iterator[tuple[str, IntArray]]:
    """Yield the title of each group and its images. int64 [n]"""
    if groups == "class":
        for label in np.unique(preds.labels):
            yield f"class {_class_title(preds.class_names, int(label))}", np.flatnonzero(preds.labels == label)
        return
    for name, labels in _named_groups(preds, groups):
        for value in dict.fromkeys(sorted(labels.tolist(), key=lambda one: (str(type(one)), one))):
            yield f"{name} {value}", np.flatnonzero(labels == value)


def _class_title(names: tuple[str, ...] | None, label: int) -> str:
    """Return the name of a class, with its number where another class has the same name."""
    if names is None:
        return str(label)
    return names[label] if names.count(names[label]) == 1 else f"{names[label]} ({label})"


def _named_groups(preds: Predictions, groups: Groups) -> Iterator[tuple[str, Array]]:
    if groups is None:
        return
    if isinstance(groups, str):
        raise MetricError(f"groups is {groups!r}, expected 'class' or one label per image.")
    named = groups if isinstance(groups, Mapping) else {"group": groups}
    for name, given in named.items():
        labels = np.asarray(given)
        if labels.shape != (preds.n_images,):
            raise MetricError(
                f"groups {name!r} has shape {labels.shape} for {preds.n_images} images, expected one label per image."
            )
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            raise MetricError(
                f"groups {name!r} has NaN for image {int(np.flatnonzero(np.isnan(labels))[0])}, expected a label."
            )
        yield name, labels
