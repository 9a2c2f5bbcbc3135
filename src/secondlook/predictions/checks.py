"""What is checked before numbers may call themselves predictions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import Array, IntArray, Output
from secondlook.errors import PredictionsError
from secondlook.predictions.table import block_rows
from secondlook.views import ViewSet

if TYPE_CHECKING:
    from secondlook.classifiers import Classifier
    from secondlook.predictions.predictions import Predictions
    from secondlook.sources import Source

SUM_TOLERANCE = 1e-3
"""How far the probabilities of one view may be from summing to 1 (a classifier in half precision needs this much)."""

SHOWN_NAMES = 5
SYNSET = re.compile(r"n\d{8}\b")


class ClassNamesWarning(UserWarning):
    """The classifier and the data name their classes differently."""


def check_outputs(values: object, kind: Output, views: Sequence[str]) -> Array:
    """Return `values` as float32 or float64 [N, V, C], or say which number of which image is wrong."""
    answers = np.asarray(values)
    if answers.dtype.kind not in "fiu":
        raise PredictionsError(f"{kind} has dtype {answers.dtype}; expected floating-point numbers.")
    _check_shape(answers, kind, len(views))
    if answers.dtype not in (np.float32, np.float64):
        answers = answers.astype(np.float32)
    images, _, classes = answers.shape
    rows = block_rows(len(views), classes)
    for start in range(0, images, rows):
        check_output_values(answers[start : start + rows], kind, views, start)
    return answers


def _check_shape(answers: Array, kind: Output, views: int) -> None:
    if answers.ndim != 3:
        hint = " For one view add an axis: values[:, None, :]." if answers.ndim == 2 else ""
        raise PredictionsError(
            f"{kind} has shape {list(answers.shape)}; expected [images, views, classes], three axes.{hint}"
        )
    if answers.shape[1] != views:
        raise PredictionsError(
            f"{kind} has shape {list(answers.shape)}, so {answers.shape[1]} views, but views= names {views}; "
            "give one name for each view, the identity first."
        )
    if answers.shape[0] == 0 or answers.shape[2] == 0:
        raise PredictionsError(
            f"{kind} has shape {list(answers.shape)}; expected at least one image and at least one class."
        )


def check_output_values(answers: Array, kind: Output, views: Sequence[str], first_image: int = 0) -> None:
    """Refuse answers [n, V, C] that are not finite and, as probabilities, negative or not summing to 1."""
    _refuse_where(~np.isfinite(answers).all(axis=2), answers, "are not finite", kind, views, first_image)
    if kind == "probabilities":
        hint = "; if the classifier gives logits, pass logits= (or output='logits')"
        _refuse_where((answers < 0).any(axis=2), answers, "are negative in places", kind, views, first_image, hint)
        off = np.abs(answers.sum(axis=2, dtype=np.float64) - 1) > SUM_TOLERANCE
        _refuse_where(off, answers, "do not sum to 1", kind, views, first_image, hint)


def _refuse_where(
    bad: Any, answers: Array, what: str, kind: Output, views: Sequence[str], first_image: int, hint: str = ""
) -> None:
    if not np.any(bad):
        return
    image, view = (int(i) for i in np.argwhere(bad)[0])
    row = answers[image, view]
    raise PredictionsError(
        f"the {kind} of image {first_image + image}, view {views[view]!r} {what} "
        f"(sum {row.sum(dtype=np.float64):.6g}, least {row.min():.6g}, greatest {row.max():.6g}){hint}."
    )


def check_labels(labels: object, images: int, classes: int) -> IntArray:
    """Return `labels` as int64 [N], each a class index."""
    values = np.asarray(labels)
    if values.shape != (images,):
        raise PredictionsError(
            f"labels has shape {list(values.shape)}; expected [{images}], one class index for each image."
        )
    if values.dtype.kind not in "iu":
        raise PredictionsError(f"labels has dtype {values.dtype}; expected integers, the class index of each image.")
    outside = np.flatnonzero((values < 0) | (values >= classes))
    if len(outside):
        raise PredictionsError(
            f"labels[{outside[0]}] is {values[outside[0]]}; expected a class index from 0 to {classes - 1}."
        )
    return values.astype(np.int64)


def check_ids(ids: Iterable[str] | None, images: int) -> tuple[str, ...]:
    """Return one unique id for each image; zero-padded positions where none are given."""
    if ids is None:
        width = len(str(images - 1))
        return tuple(f"{image:0{width}d}" for image in range(images))
    given = tuple(str(name) for name in ids)
    if len(given) != images:
        raise PredictionsError(f"ids has {len(given)} entries; expected {images}, one for each image.")
    seen: dict[str, int] = {}
    for position, name in enumerate(given):
        if seen.setdefault(name, position) != position:
            raise PredictionsError(
                f"ids[{seen[name]}] and ids[{position}] are both {name!r}; expected a different id for each image."
            )
    return given


def check_class_names(class_names: Iterable[str] | None, classes: int) -> tuple[str, ...] | None:
    """Return one name for each class, or None where there are none."""
    if class_names is None:
        return None
    names = tuple(str(name) for name in class_names)
    if len(names) != classes:
        raise PredictionsError(f"class_names has {len(names)} entries; expected {classes}, one for each class.")
    return names


def check_number_of_classes(classifier: str, source: Source, classes: int) -> None:
    """Refuse data that names more or fewer classes than the classifier answers."""
    names = source.class_names
    if names is None or len(names) == classes:
        return
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    repair = "use a classifier of these classes, or leave out the images of the others"
    if len(names) < classes:
        repair = f"name all classes in the order of the outputs {_place_of_names(source)}"
    raise PredictionsError(
        f"data {source.spec!r} has {len(names)} classes ({shown}), but classifier {classifier!r} answers {classes}; "
        f"{repair}."
    )


def check_class_names_agree(classifiers: Sequence[Classifier], source: Source) -> None:
    """Refuse labels by names in another order than a classifier's, and warn once where names differ otherwise."""
    if source.labels is None or source.class_names is None:
        return
    repair = f"give the data the classifier's order {_place_of_names(source)}"
    differences = []
    for classifier in classifiers:
        names = classifier.class_names or ()
        place = _first_difference(names, source.class_names)
        if place is None:
            continue
        differences.append(
            f"classifier {classifier.name!r} calls class {place} {names[place]!r}, "
            f"data {source.spec!r} calls it {source.class_names[place]!r}"
        )
        if sorted(map(_spelling, names)) == sorted(map(_spelling, source.class_names)):
            raise PredictionsError(f"{differences[-1]}, so both have the same names in another order; {repair}.")
    if differences:
        question = "if that is another class and not another spelling, the labels are wrong"
        warnings.warn(f"{differences[0]}; {question}: {repair}.", ClassNamesWarning, stacklevel=3)


def _first_difference(ours: tuple[str, ...], theirs: tuple[str, ...]) -> int | None:
    """Return the first class whose names differ; None where there is none, or where names cannot be compared."""
    # The synset ids of ImageNet and the words of a model are both right, and always differ.
    if len(ours) != len(theirs) or all(map(SYNSET.match, ours)) != all(map(SYNSET.match, theirs)):
        return None
    pairs = zip(ours, theirs, strict=True)
    return next((place for place, (one, other) in enumerate(pairs) if _spelling(one) != _spelling(other)), None)


def _spelling(name: str) -> str:
    """Return the name without what people write differently: case, spaces, '_' and '-'."""
    return re.sub(r"[\s_-]", "", name).casefold()


def _place_of_names(source: Source) -> str:
    from secondlook.sources import SOURCES

    scheme = SOURCES.get(source.spec.partition(":")[0])
    if scheme is not None and "classes" in scheme.options:
        return "with ?classes=FILE, one name per line"
    return "in its class_names, and number its labels so"


def check_predict_from(predict_from: str) -> None:
    """Refuse what the class cannot be taken from."""
    if predict_from not in ("image", "views"):
        raise PredictionsError(
            f"predict_from is {predict_from!r}; expected 'image' or 'views' (the mean over all views)."
        )


def check_top_k(top_k: int, classes: int) -> int:
    """Return how many leading classes count as the answer, at least one and at most all."""
    if not 1 <= top_k <= classes:
        raise PredictionsError(f"top_k is {top_k}; expected the number of leading classes, from 1 to {classes}.")
    return top_k


def resolve_positions(images: object, count: int) -> IntArray:
    """Return the positions int64 that an index array or a mask bool [N] chooses of `count` images."""
    chosen = np.asarray(images)
    if chosen.dtype.kind == "b":
        if chosen.shape != (count,):
            raise PredictionsError(f"images is a mask of shape {list(chosen.shape)}; expected [{count}].")
        chosen = np.flatnonzero(chosen)
    elif chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise PredictionsError(
            f"images has shape {list(chosen.shape)} and dtype {chosen.dtype}; expected a list of positions or a mask."
        )
    if chosen.size == 0:
        raise PredictionsError("images chooses no image; expected at least one.")
    return _checked_positions(chosen.astype(np.int64), count)


def _checked_positions(positions: IntArray, count: int) -> IntArray:
    outside = positions[(positions < -count) | (positions >= count)]
    if len(outside):
        raise PredictionsError(f"images asks for position {outside[0]}; expected positions from 0 to {count - 1}.")
    positions = np.where(positions < 0, positions + count, positions)
    unique, times = np.unique(positions, return_counts=True)
    if (times > 1).any():
        raise PredictionsError(f"images asks for position {unique[times > 1][0]} twice; expected each at most once.")
    return positions


def check_members_agree(members: tuple[Predictions, ...], views: ViewSet) -> None:
    """Refuse members of an ensemble that differ in views, classes or images."""
    first = members[0]
    for number, member in enumerate(members):
        if member.views.texts != views.texts:
            raise PredictionsError(
                f"members[{number}] has the views {', '.join(member.views.texts)}; expected {', '.join(views.texts)}."
            )
        if member.n_classes != first.n_classes:
            raise PredictionsError(
                f"members[{number}] has {member.n_classes} classes; expected {first.n_classes}, as members[0]."
            )
        if tuple(member.ids) != tuple(first.ids):
            raise PredictionsError(
                f"members[{number}] has other images ({member.n_images}) than members[0] ({first.n_images}); "
                "expected the same ids in the same order."
            )
