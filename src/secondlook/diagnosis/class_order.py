"""Class orders: the most likely output of the classifier for each class of the data."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from secondlook.arrays import BoolArray, IntArray
from secondlook.diagnosis.diagnosis import list_first

Fit = Callable[[IntArray, IntArray], IntArray]
"""`fit(labels, predicted)` returns a class order, int64 [n_classes]: the output of the classifier for each class."""

KEEP_BONUS = 0.5
"""Bonus, in images, for leaving a class at its place, since a tie or a single image must not move a class."""

MAX_CLASSES_TO_MOVE = 2000
"""Limit for `fit_moved_class`, which compares all pairs of classes."""

MAX_LISTED = 12
GUESSING = 0.05
"""P-value above which an accuracy is no better than guessing."""


def fit_best_order(labels: IntArray, predicted: IntArray, n_classes: int) -> IntArray:
    """Find the class order with the most correct predictions; classes without images keep their place.

    int64 [N], int64 [N] -> int64 [n_classes]
    """
    from scipy.optimize import linear_sum_assignment

    present = np.union1d(labels, predicted)
    counts = KEEP_BONUS * np.eye(len(present))
    np.add.at(counts, (np.searchsorted(present, labels), np.searchsorted(present, predicted)), 1)
    order = np.arange(n_classes)
    order[present] = present[linear_sum_assignment(counts, maximize=True)[1]]
    return order


def fit_moved_class(labels: IntArray, predicted: IntArray, n_classes: int) -> IntArray:
    """Find the class order with the most correct predictions among those with one class moved.

    Renaming a class folder has this effect: the classes between its old and its new place are shifted by one.
    int64 [N], int64 [N] -> int64 [n_classes]
    """
    kept, lower, higher = (
        np.append(0, np.cumsum(np.bincount(labels[predicted == labels + shift], minlength=n_classes)))
        for shift in (0, -1, 1)
    )
    source, target = np.arange(n_classes)[:, None], np.arange(n_classes)
    moved_up = kept[source] + lower[target + 1] - lower[source + 1] + kept[-1] - kept[target + 1]
    moved_down = kept[target] + higher[source] - higher[target] + kept[-1] - kept[source + 1]
    matches = np.where(source < target, moved_up, moved_down)
    np.add.at(matches, (labels, predicted), 1)
    np.fill_diagonal(matches, kept[-1])
    best = int(matches.argmax())
    if matches.flat[best] == kept[-1]:
        return np.arange(n_classes)
    return move_class(n_classes, *divmod(best, n_classes))


def move_class(n_classes: int, source: int, target: int) -> IntArray:
    """Return the class order in which class `source` is output `target`, and the others keep their relative order."""
    others = np.delete(np.arange(n_classes), target)
    return np.insert(others, source, target)


def order_by_number(class_names: Sequence[str]) -> IntArray | None:
    """Return the class order for numeric names sorted as text ('0', '1', '10', '2'); None for other names."""
    if not all(name.isdecimal() for name in class_names):
        return None
    order = np.argsort(np.argsort([int(name) for name in class_names], kind="stable"))
    return None if np.array_equal(order, np.arange(len(order))) else order


def propose_orders(n_classes: int, class_names: Sequence[str] | None) -> list[Fit]:
    """Return the functions that find another class order, the simplest first."""
    fits: list[Fit] = []
    by_number = None if class_names is None else order_by_number(class_names)
    if by_number is not None:
        fits.append(lambda _labels, _predicted: by_number)
    if n_classes <= MAX_CLASSES_TO_MOVE:
        fits.append(partial(fit_moved_class, n_classes=n_classes))
    return [*fits, partial(fit_best_order, n_classes=n_classes)]


def cross_fit_correct(fit: Fit, labels: IntArray, predicted: IntArray) -> BoolArray:
    """Return which predictions are correct under the class order of the other half of the images. bool [N]

    Under a class order fitted to the same images, more predictions are correct by chance. Both halves have images of
    every
    class that has two.
    """
    is_first = np.empty(len(labels), dtype=np.bool_)
    is_first[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % 2 == 0
    correct = np.empty(len(labels), dtype=np.bool_)
    for half in (is_first, ~is_first):
        order = fit(labels[~half], predicted[~half])
        correct[half] = order[labels[half]] == predicted[half]
    return correct


def describe_order(order: Sequence[int], class_names: Sequence[str] | None) -> str:
    """Describe the difference of a class order, as the beginning of a sentence."""
    names = [f"class {number}" for number in range(len(order))] if class_names is None else list(map(repr, class_names))
    changed = [number for number, output in enumerate(order) if output != number]
    first, last = changed[0], changed[-1]
    if len(changed) == 2:
        return f"the classes {names[first]} and {names[last]} seem to be exchanged"
    for source, target in ((first, last), (last, first)):
        if np.array_equal(order, move_class(len(order), source, target)):
            moved = f"{names[source]} seems to be class {target} of the classifier instead of {source}"
            return f"{moved}, and the classes between shifted by one"
    if class_names is not None and np.array_equal(order, order_by_number(class_names)):  # type: ignore[arg-type]
        return "the classes seem to be in the order of numbers, not of text"
    return "the classes seem to be in another order"


def list_in_order(order: Sequence[int], class_names: Sequence[str] | None) -> str:
    """Return the names of the classes in the order of the classifier, as text, abbreviated if there are many."""
    names = class_names or [str(number) for number in range(len(order))]
    listed = [names[number] for number in np.argsort(order)]
    return ", ".join(listed) if len(order) <= MAX_LISTED else f"{list_first(listed)} (all of them: class_order)"


def is_guessing(n_correct: int, n_images: int, n_classes: int) -> bool:
    """Return whether an accuracy is no better than guessing, by a binomial test."""
    from scipy.special import betainc

    return not n_correct or bool(betainc(n_correct, n_images - n_correct + 1, 1 / n_classes) > GUESSING)
