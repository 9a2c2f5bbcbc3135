"""Groups of images that are evaluated separately: all, in distribution, and groups given by labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.errors import MetricError

Groups = str | Sequence[object] | Array | Mapping[str, ArrayLike] | None
"""What `evaluate` accepts as groups."""
ALL_IMAGES, IN_DISTRIBUTION, OOD_DETECTION = "all images", "in distribution", "OOD detection"


class Group(NamedTuple):
    """Some of the images, int64 [n], and which of them count as correct, bool [n]."""

    name: str
    images: IntArray
    correct: BoolArray


def make_groups(
    labels: IntArray, correct: BoolArray, groups: Groups, n_ood: int, class_names: tuple[str, ...] | None
) -> list[Group]:
    """Return the group of all images, then the others; the `n_ood` out-of-distribution images come last in each.

    `labels` and `correct` are those of the other images, int64 [N] and bool [N].
    """
    own, everything = np.arange(len(labels)), np.arange(len(labels) + n_ood)
    made = [Group(ALL_IMAGES, everything, np.append(correct, np.zeros(n_ood, dtype=np.bool_)))]
    if n_ood:
        made.append(Group(IN_DISTRIBUTION, own, correct))
        made.append(Group(OOD_DETECTION, everything, everything < len(labels)))
    selected = select_groups(groups, len(labels), own)
    by_name = {"class": labels} if isinstance(selected, str) else selected or {}
    for name, values in by_name.items():
        for value in dict.fromkeys(sorted(values.tolist(), key=lambda one: (str(type(one)), one))):
            members = np.flatnonzero(values == value)
            text = format_class(class_names, value) if isinstance(selected, str) else value
            made.append(Group(f"{name} {text}", members, correct[members]))
    name, times = Counter(group.name for group in made).most_common(1)[0]
    if times > 1:
        raise MetricError(f"duplicate group {name!r} ({times} times); group names must be unique, rename groups=.")
    return made


def select_groups(groups: Groups, n_images: int, images: IntArray) -> str | dict[str, Array] | None:
    """Return the groups of some of `n_images` images, checked: 'class', None, or labels by name. int64 [n]"""
    if groups is None or isinstance(groups, str):
        if groups in (None, "class"):
            return groups
        raise MetricError("is unknown; expected 'class', or one label per image", argument="groups", value=groups)
    selected = {}
    for name, values in (groups if isinstance(groups, Mapping) else {"group": groups}).items():
        labels = np.asarray(values)
        if labels.shape != (n_images,):
            raise MetricError(
                f"groups {name!r} has shape {labels.shape} for {n_images} images; expected one label per image."
            )
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            image = int(np.flatnonzero(np.isnan(labels))[0])
            raise MetricError(f"groups {name!r} is NaN for image {image}; expected a label for every image.")
        selected[name] = labels[images]
    return selected


def format_class(class_names: tuple[str, ...] | None, label: int) -> str:
    """Return the name of a class, with its index where another class has the same name."""
    if class_names is None:
        return str(label)
    name = class_names[label]
    return name if class_names.count(name) == 1 else f"{name} ({label})"
