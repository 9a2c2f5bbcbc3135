"""Groups of images that are evaluated separately: all, in distribution, and groups given by labels."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.errors import MetricError

Groups = str | Sequence[object] | Array | Mapping[str, ArrayLike] | None
"""What `evaluate` accepts as groups."""
ALL_IMAGES, IN_DISTRIBUTION, OOD_DETECTION = "all images", "in distribution", "OOD detection"


@dataclass(frozen=True, eq=False)
class Group:
    """Some of the images, and which of them count as correct."""

    name: str
    images: IntArray
    """int64 [n]"""
    correct: BoolArray
    """bool [n]"""


def make_groups(
    labels: IntArray, correct: BoolArray, groups: Groups, n_ood: int, class_names: tuple[str, ...] | None
) -> list[Group]:
    """Return the group of all images, then the others; the `n_ood` out-of-distribution images come last in each.

    `labels` and `correct` are those of the other images, int64 [N] and bool [N].
    """
    own, everything = np.arange(len(labels)), np.arange(len(labels) + n_ood)
    ood_wrong = np.concatenate([correct, np.zeros(n_ood, dtype=np.bool_)])
    made = [Group(ALL_IMAGES, everything, ood_wrong)]
    if n_ood:
        made += [
            Group(IN_DISTRIBUTION, own, correct),
            Group(OOD_DETECTION, everything, everything < len(labels)),
        ]
    made += [Group(name, members, correct[members]) for name, members in _list_members(labels, groups, class_names)]
    name, times = Counter(group.name for group in made).most_common(1)[0]
    if times > 1:
        raise MetricError(f"duplicate group {name!r} ({times} times); group names must be unique, rename groups=.")
    return made


def select_groups(groups: Groups, n_images: int, images: IntArray) -> Groups:
    """Return the groups of some of `n_images` images. int64 [n]"""
    if groups is None or (isinstance(groups, str) and groups == "class"):
        return groups
    return {name: labels[images] for name, labels in _check_groups(n_images, groups)}


def _list_members(
    labels: IntArray, groups: Groups, class_names: tuple[str, ...] | None
) -> Iterator[tuple[str, IntArray]]:
    """Yield the name of each group and its images. int64 [n]"""
    if isinstance(groups, str) and groups == "class":
        for label in np.unique(labels):
            yield f"class {format_class(class_names, int(label))}", np.flatnonzero(labels == label)
        return
    for name, values in _check_groups(len(labels), groups):
        for value in dict.fromkeys(sorted(values.tolist(), key=lambda one: (str(type(one)), one))):
            yield f"{name} {value}", np.flatnonzero(values == value)


def format_class(class_names: tuple[str, ...] | None, label: int) -> str:
    """Return the name of a class, with its index where another class has the same name."""
    if class_names is None:
        return str(label)
    name = class_names[label]
    return name if class_names.count(name) == 1 else f"{name} ({label})"


def _check_groups(n_images: int, groups: Groups) -> Iterator[tuple[str, Array]]:
    """Yield the name and the labels of each grouping. [N]"""
    if groups is None:
        return
    if isinstance(groups, str):
        raise MetricError(f"groups is {groups!r}; expected 'class', or one label per image.")
    by_name = groups if isinstance(groups, Mapping) else {"group": groups}
    for name, values in by_name.items():
        labels = np.asarray(values)
        if labels.shape != (n_images,):
            raise MetricError(
                f"groups {name!r} has shape {labels.shape} for {n_images} images; expected one label per image."
            )
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            image = int(np.flatnonzero(np.isnan(labels))[0])
            raise MetricError(f"groups {name!r} is NaN for image {image}; expected a label for every image.")
        yield name, labels
