"""`Predictions`: what a classifier answers to every view of every image, with the labels where they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

import numpy as np

from secondlook.arrays import Array, BoolArray, Float32Array, Float64Array, IntArray, Output, softmax
from secondlook.errors import PredictionsError
from secondlook.predictions.asked_views import positions_of
from secondlook.predictions.checks import (
    check_class_names,
    check_ids,
    check_labels,
    check_members_agree,
    check_outputs,
    check_predict_from,
    check_top_k,
    resolve_positions,
)
from secondlook.predictions.leading import top_classes
from secondlook.predictions.table import ArrayTable, Table, block_rows
from secondlook.progress import Advance, progress_bar, unwatched
from secondlook.views import ViewSet, ViewsLike, as_view_set, as_view_set_with_identity

PredictFrom = Literal["image", "views"]


class Predictions:
    """The answers [N images, V views, C classes] of one classifier, or of each member of an ensemble.

    View 0 is the identity. A value never changes: `select` gives another one. Nothing is read from a store before it
    is asked for, and `blocks` reads it piece by piece.

    Attributes
    ----------
    members
        The predictions of each member of an ensemble; empty otherwise.
    views, ids, class_names
        What the axes stand for; `class_names` is None where the classes have no names.
    skipped
        The id of each image that could not be read and is not among these, with the reason.
    """

    members: tuple[Predictions, ...]
    views: ViewSet
    ids: Sequence[str]
    class_names: tuple[str, ...] | None
    skipped: tuple[tuple[str, str], ...] = ()
    _labels: IntArray | None
    _advance: Advance = staticmethod(unwatched)

    def __init__(
        self,
        *,
        probabilities: object = None,
        logits: object = None,
        views: ViewsLike,
        labels: object = None,
        ids: Iterable[str] | None = None,
        class_names: Iterable[str] | None = None,
        members: Iterable[Predictions] = (),
    ) -> None:
        """Wrap arrays [N, V, C]: exactly one of `probabilities` and `logits`, or the `members` of an ensemble."""
        given_members = tuple(members)
        if (probabilities is not None) + (logits is not None) + bool(given_members) != 1:
            raise PredictionsError(
                "Predictions needs exactly one of probabilities=, logits= and members=; give the one you have."
            )
        view_set = as_view_set(views)
        table: Table | None = None
        if not given_members:
            kind: Output = "logits" if logits is not None else "probabilities"
            values = logits if logits is not None else probabilities
            table = ArrayTable(check_outputs(values, kind, view_set.texts), kind)
        self._set(table, given_members, view_set, labels, ids, class_names)

    @classmethod
    def from_table(
        cls,
        table: Table,
        views: ViewSet,
        *,
        labels: object = None,
        ids: Iterable[str] | None = None,
        class_names: Iterable[str] | None = None,
    ) -> Self:
        """Wrap a table that was checked when it was made, such as one kept in a store."""
        made = cls.__new__(cls)
        made._set(table, (), views, labels, ids, class_names)
        return made

    @classmethod
    def open(
        cls,
        store: str | Path,
        *,
        run: str | None = None,
        views: ViewsLike | None = None,
    ) -> Predictions:
        """Open what `collect` kept in `store`, without a classifier and without reading the table.

        `run` is the beginning of a run's name where the store holds several; `views` takes only some of the views.
        """
        from secondlook.predictions.opening import open_predictions

        return open_predictions(Path(store), run, None if views is None else as_view_set(views))

    def _set(
        self,
        table: Table | None,
        members: tuple[Predictions, ...],
        views: ViewSet,
        labels: object,
        ids: Iterable[str] | None,
        class_names: Iterable[str] | None,
    ) -> None:
        if members:
            check_members_agree(members, views)
            labels = members[0]._labels if labels is None else labels
            ids = members[0].ids if ids is None else ids
            class_names = members[0].class_names if class_names is None else class_names
        shape = table.shape if table is not None else members[0].shape
        self.members = members
        self.views = views
        self.ids = check_ids(ids, shape[0])
        self.class_names = check_class_names(class_names, shape[2])
        self._labels = None if labels is None else check_labels(labels, shape[0], shape[2])
        self._table = table
        self._image_positions: IntArray = np.arange(shape[0])
        self._view_positions: IntArray = np.arange(shape[1])
        self._n_classes = shape[2]
        self._predicted: dict[tuple[str, int], IntArray] = {}

    @property
    def n_images(self) -> int:
        """How many images there are."""
        return len(self._image_positions)

    @property
    def n_views(self) -> int:
        """How many views of each image there are, the identity included."""
        return len(self._view_positions)

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return self._n_classes

    @property
    def n_members(self) -> int:
        """How many classifiers answered: the members of an ensemble, or one."""
        return max(1, len(self.members))

    @property
    def n_outputs(self) -> int:
        """How many answers there are to each image: one for each view of each member."""
        return self.n_members * self.n_views

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, views, classes."""
        return self.n_images, self.n_views, self.n_classes

    @property
    def has_labels(self) -> bool:
        """Whether the right classes are known."""
        return self._labels is not None

    @property
    def has_logits(self) -> bool:
        """Whether the classifier gave logits (an ensemble is a mean of probabilities and has none)."""
        return self._table is not None and self._table.kind == "logits"

    @property
    def labels(self) -> IntArray:
        """The right class of each image, int64 [N]."""
        if self._labels is None:
            raise PredictionsError("these predictions have no labels; give them as labels= where they are made.")
        return self._labels

    @property
    def probabilities(self) -> Float32Array:
        """All probabilities at once, float32 [N, V, C]; `blocks` gives them piece by piece and in float64."""
        return self._filled(self.blocks())

    @property
    def logits(self) -> Float32Array:
        """All logits at once, float32 [N, V, C]."""
        return self._filled(self.logit_blocks())

    def _filled(self, blocks: Iterator[tuple[slice, Float64Array]]) -> Float32Array:
        whole: Float32Array | None = None
        for rows, block in blocks:
            whole = np.empty(self.shape, dtype=np.float32) if whole is None else whole
            whole[rows] = block
        assert whole is not None, "there is always at least one image"
        return whole

    def blocks(self, rows: int | None = None) -> Iterator[tuple[slice, Float64Array]]:
        """Give the probabilities piece by piece: the images as a slice, and float64 [n, V, C] for them.

        Logits become probabilities in float64; the members of an ensemble are averaged.
        """
        for chosen in self._slices(rows):
            yield chosen, self._probabilities_of(chosen)

    def logit_blocks(self, rows: int | None = None) -> Iterator[tuple[slice, Float64Array]]:
        """Give the logits piece by piece: the images as a slice, and float64 [n, V, C] for them."""
        if not self.has_logits:
            gives = "is an ensemble, a mean of probabilities" if self.members else "gave probabilities"
            raise PredictionsError(f"these predictions have no logits: the classifier {gives}; use probabilities.")
        for chosen in self._slices(rows):
            yield chosen, self._read(chosen).astype(np.float64, copy=False)

    def _slices(self, rows: int | None) -> Iterator[slice]:
        rows = self._rows_per_block() if rows is None else rows
        if rows < 1:
            raise PredictionsError(f"rows is {rows}; expected the number of images in a block, at least 1.")
        for start in range(0, self.n_images, rows):
            stop = min(start + rows, self.n_images)
            yield slice(start, stop)
            self._advance(stop - start)

    @contextmanager
    def read_with_bar(self, description: str, times: int, *, enabled: bool = True) -> Iterator[Predictions]:
        """Give the same predictions, drawing a progress bar as they are read about so many times."""
        total = times * self.n_images * self.n_members
        with progress_bar(description, total, "images", enabled=enabled) as advance:
            yield self._telling(advance)

    def _telling(self, advance: Advance) -> Predictions:
        telling = self.select()
        telling._predicted = self._predicted
        telling.members = tuple(member._telling(advance) for member in self.members)
        telling._advance = advance
        return telling

    def _rows_per_block(self) -> int:
        if self._table is None:
            return max(member._rows_per_block() for member in self.members)
        return block_rows(self.n_views, self.n_classes, self._table.rows_read_together)

    def _read(self, chosen: slice) -> Array:
        assert self._table is not None, "an ensemble is read through its members"
        return self._table.read(self._image_positions[chosen], self._view_positions)

    def _probabilities_of(self, chosen: slice) -> Float64Array:
        if self._table is None:
            total = self.members[0]._probabilities_of(chosen)
            for member in self.members[1:]:
                total += member._probabilities_of(chosen)
            total /= len(self.members)
            return total
        answers = self._read(chosen)
        return softmax(answers) if self._table.kind == "logits" else answers.astype(np.float64, copy=False)

    def predicted(self, predict_from: PredictFrom = "image", top_k: int = 1) -> IntArray:
        """Return the predicted class, int64 [N], or for k > 1 the k leading ones, [N, k], best first.

        `predict_from="image"` takes it from the image itself, `predict_from="views"` from the mean over all views. Ties go to the lower class.
        """
        check_predict_from(predict_from)
        check_top_k(top_k, self.n_classes)
        if (predict_from, top_k) not in self._predicted:
            self._predicted[predict_from, top_k] = self._leading(predict_from, top_k)
        leading = self._predicted[predict_from, top_k]
        return leading[:, 0] if top_k == 1 else leading

    def _leading(self, predict_from: PredictFrom, top_k: int) -> IntArray:
        looked_at = self.select(views="identity") if predict_from == "image" else self
        leading = np.empty((self.n_images, top_k), dtype=np.int64)
        for rows, block in looked_at.blocks():
            leading[rows] = top_classes(block.mean(axis=1), top_k)
        leading.flags.writeable = False
        return leading

    def correct(self, predict_from: PredictFrom = "image", top_k: int = 1) -> BoolArray:
        """Return whether the predicted class (for k > 1: any of the k leading ones) is right, bool [N]."""
        labels = self.labels
        predicted = self.predicted(predict_from, top_k).reshape(self.n_images, top_k)
        correct: BoolArray = (predicted == labels[:, None]).any(axis=1)
        return correct

    def select(self, *, views: ViewsLike | None = None, images: object = None) -> Predictions:
        """Return the predictions of some views and images only; nothing is read or copied yet.

        `views` in the order given, the identity first in any case; `images` are positions or a mask bool [N].
        """
        view_set = self.views if views is None else as_view_set_with_identity(views)
        kept_views = positions_of(view_set, self.views.texts)
        kept_images = np.arange(self.n_images) if images is None else resolve_positions(images, self.n_images)
        selected = Predictions.__new__(Predictions)
        selected.members = tuple(member.select(views=view_set, images=images) for member in self.members)
        selected.views = view_set
        selected.ids = self.ids if images is None else tuple(self.ids[position] for position in kept_images)
        selected.class_names = self.class_names
        selected._labels = None if self._labels is None else self._labels[kept_images]
        selected._table = self._table
        selected._image_positions = self._image_positions[kept_images]
        selected._view_positions = self._view_positions[kept_views]
        selected._n_classes = self._n_classes
        selected.skipped = self.skipped
        selected._advance = self._advance
        selected._predicted = {}
        return selected

    def __len__(self) -> int:
        return self.n_images

    def __repr__(self) -> str:
        kind = f"{len(self.members)} members" if self.members else "logits" if self.has_logits else "probabilities"
        labeled = "labeled" if self.has_labels else "unlabeled"
        shape = f"{self.n_images} images x {self.n_views} views x {self.n_classes} classes"
        return f"<Predictions: {shape}, {kind}, {labeled}>"
