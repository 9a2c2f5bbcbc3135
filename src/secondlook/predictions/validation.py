"""Input validation for `Predictions` and `collect`.

`as_...` and `resolve_...` return the value in its canonical form, `check_...` only raise errors.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import (
    SUM_TOLERANCE,
    Array,
    IntArray,
    Output,
    are_probabilities,
    as_array,
    default_ids,
    is_text,
    is_whole_number,
)
from secondlook.classifiers import Classifier
from secondlook.errors import ANY, PredictionsError, Repair
from secondlook.predictions.batching import block_rows
from secondlook.registry import did_you_mean
from secondlook.sources import SOURCES, Source
from secondlook.views import ViewSet

if TYPE_CHECKING:
    from secondlook.predictions.predictions import Predictions

_MAX_LISTED_NAMES = 5
_SYNSET = re.compile(r"n\d{8}\b")


class ClassNamesWarning(UserWarning):
    """The classifier and the data have different class names."""


def as_outputs(values: object, kind: Output, views: Sequence[str]) -> Array:
    """Return outputs as float32 or float64 [N, V, C]."""
    outputs = as_array(values, kind, PredictionsError)
    if outputs.dtype.kind not in "fiu":
        raise PredictionsError(f"{kind} has dtype {outputs.dtype}; expected floating-point numbers.")
    fault = f"{kind} has shape {list(outputs.shape)}"
    if outputs.ndim != 3:
        hint = "; for a single view pass values[:, None, :]" if outputs.ndim == 2 else ""
        raise PredictionsError(f"{fault}; expected [images, views, classes]{hint}.")
    images, columns, classes = outputs.shape
    if columns != len(views):
        repair = Repair("pass one view for each column as {views}, the identity first", views=ANY)
        raise PredictionsError(f"{fault}, that is {columns} views, but there are {len(views)}", repair=repair)
    if images == 0 or classes == 0:
        raise PredictionsError(f"{fault}; expected at least one image and at least one class.")
    if outputs.dtype not in (np.float32, np.float64):
        outputs = outputs.astype(np.float32)
    rows = block_rows(len(views), classes)
    for start in range(0, images, rows):
        _check_values(outputs[start : start + rows], kind, views, start)
    starts = range(0, images, rows)
    # A single row may sum to 1 by chance.
    if kind == "logits" and images * columns > 1 and all(are_probabilities(outputs[at : at + rows]) for at in starts):
        repair = Repair("if they are probabilities, pass them as {probabilities}", probabilities=ANY)
        raise PredictionsError("logits are non-negative and sum to 1 for every view of every image", repair=repair)
    return outputs


def _check_values(outputs: Array, kind: Output, views: Sequence[str], first_image: int) -> None:
    """Check that outputs [n, V, C] are finite and, if probabilities, non-negative with sum 1."""
    finite = np.isfinite(outputs)
    if not finite.all():  # much faster than a result per view
        _check_all(finite.all(axis=2), outputs, "are not finite", kind, views, first_image)
    if kind == "probabilities":
        _check_all((outputs >= 0).all(axis=2), outputs, "are negative", kind, views, first_image)
        sums_to_one = np.abs(outputs.sum(axis=2, dtype=np.float64) - 1) <= SUM_TOLERANCE
        _check_all(sums_to_one, outputs, "do not sum to 1", kind, views, first_image)


def _check_all(valid: Any, outputs: Array, problem: str, kind: Output, views: Sequence[str], first_image: int) -> None:
    if np.all(valid):
        return
    image, view = (int(position) for position in np.argwhere(~valid)[0])
    row = outputs[image, view]
    logits = Repair("if the classifier outputs logits, pass {logits} (or {output})", logits=ANY, output="logits")
    raise PredictionsError(
        f"{kind} of image {first_image + image}, view {views[view]!r} {problem} "
        f"(sum {row.sum(dtype=np.float64):.6g}, min {row.min():.6g}, max {row.max():.6g})",
        repair=None if problem == "are not finite" else logits,
    )


def as_labels(labels: Any, images: int, classes: int, class_names: tuple[str, ...] | None = None) -> IntArray:
    """Return labels, class indices or names among `class_names`, as int64 [N], a new array."""
    values = as_array(labels, "labels", PredictionsError)
    if values.shape != (images,):
        raise PredictionsError(f"labels has shape {list(values.shape)}; expected [{images}], a class index per image.")
    if is_text(labels):
        return _look_up_names(values.tolist(), class_names)
    if values.dtype.kind not in "iu":
        raise PredictionsError(f"labels has dtype {values.dtype}; expected integers, one class index per image.")
    _check_range(values, classes, "labels[{}]".format)
    return values.astype(np.int64)


def _check_range(labels: Array, classes: int, name_label: Callable[[int], str]) -> None:
    """Check that labels are valid class indices; `name_label` describes the label of an image."""
    for image in np.flatnonzero((labels < 0) | (labels >= classes))[:1]:
        counts_from_one = labels.min() == 1 and labels.max() == classes
        repair = "if they count from 1, subtract 1" if counts_from_one else None
        fault = f"{name_label(int(image))} is {labels[image]}; expected a class index from 0 to {classes - 1}"
        raise PredictionsError(fault if repair else f"{fault}.", repair=repair)


def _look_up_names(labels: Sequence[str], class_names: tuple[str, ...] | None) -> IntArray:
    if class_names is None:
        repair = Repair("pass {class_names} in the order of the outputs, or class indices", class_names=ANY)
        raise PredictionsError(f"labels[0] is the name {labels[0]!r}", repair=repair)
    index_of = {name: index for index, name in enumerate(class_names)}
    for position, name in enumerate(labels):
        if name not in index_of:
            suggestion = did_you_mean(name, class_names)
            raise PredictionsError(f"labels[{position}] is {name!r}, which is not a class name.{suggestion}")
    return np.array([index_of[name] for name in labels], dtype=np.int64)


def as_ids(ids: Iterable[str] | None, images: int) -> tuple[str, ...]:
    """Return one unique id per image; zero-padded positions by default."""
    if ids is None:
        return default_ids(images)
    values = tuple(map(str, ids))
    if len(values) != images:
        raise PredictionsError(f"ids has {len(values)} entries; expected {images}, one per image.")
    if len(set(values)) < images:
        value = Counter(values).most_common(1)[0][0]
        first, second = [position for position, one in enumerate(values) if one == value][:2]
        raise PredictionsError(f"duplicate id {value!r} in ids[{first}] and ids[{second}]; ids must be unique.")
    return values


def as_class_names(class_names: Iterable[str] | None, classes: int) -> tuple[str, ...] | None:
    """Return one name per class, or None."""
    if class_names is None:
        return None
    names = tuple(str(name) for name in class_names)
    if len(names) != classes:
        raise PredictionsError(f"class_names has {len(names)} entries; expected {classes}, one per class.")
    return names


def check_classes(classifier: str, source: Source, classes: int) -> None:
    """Check labels and class names against the first output, instead of after hours of work."""
    names = source.class_names
    if names is not None and len(names) != classes:
        listed = ", ".join(names[:_MAX_LISTED_NAMES]) + (", ..." if len(names) > _MAX_LISTED_NAMES else "")
        repair = "use a classifier for these classes, or remove the images of the other classes"
        if len(names) < classes:
            repair = f"list all class names in the order of the outputs {_suggest_class_names(source)}"
        found = f"data {source.spec!r} has {len(names)} classes ({listed})"
        raise PredictionsError(f"{found}, but classifier {classifier!r} outputs {classes}", repair=repair)
    if source.labels is not None:  # use ids: a sample has other positions
        _check_range(source.labels, classes, lambda image: f"the label of image {source.ids[image]!r}")


def check_class_names_match(classifiers: Sequence[Classifier], source: Source) -> None:
    """Check that labeled data have the class order of each classifier; warn once about other differences."""
    if source.labels is None or source.class_names is None:
        return
    repair = f"list the class names in the order of the classifier {_suggest_class_names(source)}"
    differences = []
    for classifier in classifiers:
        names = classifier.class_names or ()
        place = _find_difference(names, source.class_names)
        if place is None:
            continue
        expected = f"{source.class_names[place]!r} for data {source.spec!r}"
        differences.append(f"class {place} is {names[place]!r} for classifier {classifier.name!r} but {expected}")
        if sorted(map(_normalize_name, names)) == sorted(map(_normalize_name, source.class_names)):
            raise PredictionsError(f"{differences[-1]}: the same names in a different order; {repair}.")
    if differences:
        consequence = "unless these are two spellings of one class, the labels are wrong"
        warnings.warn(f"{differences[0]}; {consequence}: {repair}.", ClassNamesWarning, stacklevel=3)


def _find_difference(first: tuple[str, ...], second: tuple[str, ...]) -> int | None:
    """Return the first class with different names; None if all agree or the names are not comparable."""
    # ImageNet classes have synset ids or words as names; both are valid, and they always differ.
    if len(first) != len(second) or all(map(_SYNSET.match, first)) != all(map(_SYNSET.match, second)):
        return None
    pairs = enumerate(zip(first, second, strict=True))
    return next((place for place, (one, other) in pairs if _normalize_name(one) != _normalize_name(other)), None)


def _normalize_name(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _suggest_class_names(source: Source) -> str:
    # `parse_spec` could reject the spec of a custom source.
    scheme = SOURCES.get(source.spec.partition(":")[0])
    if scheme is not None and "classes" in scheme.options:
        return "with ?classes=FILE, one name per line"
    return "in its class_names, and number its labels accordingly"


def check_prediction(predict_from: str, top_k: int, classes: int | None = None) -> None:
    """Check `predict_from` and `top_k`, which is at most `classes` if that is known."""
    if predict_from not in ("image", "views"):
        expected = "is invalid; expected 'image', or 'views' for the mean over all views"
        raise PredictionsError(expected, argument="predict_from", value=predict_from)
    if not is_whole_number(top_k) or top_k < 1 or (classes is not None and top_k > classes):
        most = "" if classes is None else f", and at most {classes}, the number of classes"
        raise PredictionsError(f"is invalid; expected an integer of at least 1{most}", argument="top_k", value=top_k)


def resolve_views(views: ViewSet, available: Sequence[str]) -> IntArray:
    """Return the position of each view in `available`, int64 [len(views)]."""
    positions = {text: position for position, text in enumerate(available)}
    for text in views.texts:
        if text not in positions:
            known = f"{', '.join(available)}.{did_you_mean(text, available)}"
            raise PredictionsError(f"unknown view {text!r}; available views: {known}")
    return np.array([positions[text] for text in views.texts], dtype=np.int64)


def check_members_match(members: Sequence[Predictions], views: ViewSet) -> None:
    """Check that all members of an ensemble have the same views, classes and images."""
    first = members[0]
    for number, member in enumerate(members):
        if member.views.texts != views.texts:
            found, expected = (", ".join(one.texts) for one in (member.views, views))
            raise PredictionsError(f"members[{number}] has the views {found}; expected {expected}.")
        if member.n_classes != first.n_classes:
            found, expected = f"{member.n_classes} classes", f"{first.n_classes}, as members[0]"
            raise PredictionsError(f"members[{number}] has {found}; expected {expected}.")
        if member.ids != first.ids:
            found = f"different images ({member.n_images}) than members[0] ({first.n_images})"
            raise PredictionsError(f"members[{number}] has {found}; expected the same ids in the same order.")
