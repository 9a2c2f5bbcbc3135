"""Groups of images that are evaluated separately: all, in distribution, and groups given by labels."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.errors import ANY, MetricError, Repair

Groups = str | Sequence[object] | Array | Mapping[str, ArrayLike] | None
"""What `evaluate` accepts as groups."""
ALL_IMAGES, IN_DISTRIBUTION, OOD_DETECTION = "all images", "in distribution", "OOD detection"


def make_groups(
    labels: IntArray,
    correct: BoolArray,
    selected: str | dict[str, Array] | None,
    n_ood: int,
    class_names: tuple[str, ...] | None,
) -> dict[str, tuple[IntArray, BoolArray]]:
    """Return the images of each group, int64 [n], and which of them count as correct, bool [n], by name.

    `labels` and `correct`, int64 [N] and bool [N], and the groups that `select_groups` returned are those of the images
    that are in distribution; the `n_ood` others follow them.
    """
    own, everything = np.arange(len(labels)), np.arange(len(labels) + n_ood)
    made = {ALL_IMAGES: (everything, np.append(correct, np.zeros(n_ood, dtype=np.bool_)))}
    if n_ood:
        made[IN_DISTRIBUTION] = own, correct
        made[OOD_DETECTION] = everything, everything < len(labels)
    by_name = {"class": labels} if isinstance(selected, str) else selected or {}
    for prefix, values in by_name.items():
        for value in dict.fromkeys(sorted(values.tolist(), key=lambda one: (str(type(one)), one))):
            members = np.flatnonzero(values == value)
            name = f"{prefix} {format_class(class_names, value) if isinstance(selected, str) else value}"
            if name in made:
                raise MetricError(f"duplicate group {name!r}", repair=Repair("rename {groups}", groups=ANY))
            made[name] = members, correct[members]
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
