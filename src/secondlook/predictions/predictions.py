"""`Predictions`: the outputs of a classifier for every view of every image, with labels if known."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, Self

import numpy as np

from secondlook.arrays import (
    Array,
    BoolArray,
    Float32Array,
    Float64Array,
    IntArray,
    Output,
    as_array,
    resolve_positions,
    top_classes,
)
from secondlook.errors import ANY, PredictionsError, Repair
from secondlook.files import write_atomically
from secondlook.predictions.batching import block_rows
from secondlook.predictions.store import Origin, StoredTable, StoreEntry, Table, find_entry, read_member_names
from secondlook.predictions.validation import (
    as_class_names,
    as_ids,
    as_labels,
    as_outputs,
    check_members_match,
    check_prediction,
    resolve_views,
)
from secondlook.progress import Advance, ignore_progress, progress_bar
from secondlook.tables import pandas_frame
from secondlook.views import ViewSet, ViewsLike

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

PredictFrom = Literal["image", "views"]
"""Whether the predicted class comes from the image itself or from the mean over all views."""


class _ArrayTable(Table):
    """Outputs in memory, one array [N, V, C] of float32 or float64."""

    def __init__(self, values: Array, kind: Output) -> None:
        self._values = _freeze(values.view())
        self.kind = kind
        n_images, n_views, n_classes = values.shape
        self.shape = n_images, n_views, n_classes

    def read(self, images: IntArray, views: IntArray | None = None) -> Array:
        rows: Array = self._values[images]
        return rows if views is None else rows[:, views]


class Predictions:
    """Outputs [N images, V views, C classes] of a classifier, or of each member of an ensemble.

    View 0 is the identity, the image itself. Predictions are immutable; `select` returns new ones. Stored predictions
    are read on demand, and `blocks` reads them in bounded memory.

    Parameters
    ----------
    probabilities, logits
        Outputs, float [N, V, C], not copied. Pass exactly one of `probabilities`, `logits` and `members`.
    views
        The views, in the order of the second axis. For views computed elsewhere, a list may have plain names like
        ["orig", "crop 1"]; the first must be the image itself, and is renamed to "identity".
    labels
        True class of each image, int [N], or, if `class_names` are given, its name.
    ids
        Unique id of each image; zero-padded positions by default.
    class_names
        Name of each class.
    members
        Predictions of the members of an ensemble for the same views and images. Labels, ids, class names and skipped
        images of the first member are the defaults for the ensemble.
    skipped
        Id and reason of each image that could not be read.
    origin
        The classifier and the images of the outputs; set by `collect`.

    Attributes
    ----------
    members, views, ids, class_names, skipped, origin
        As passed; `members` is empty for a single classifier, `class_names` and `origin` are None if unknown.
    entry, ledger
        The name of the opened store entry, and the file in which `certify` records calibrations on it; otherwise empty
        and None.
    """

    members: tuple[Predictions, ...] = ()
    views: ViewSet
    ids: tuple[str, ...]
    class_names: tuple[str, ...] | None = None
    skipped: tuple[tuple[str, str], ...]
    origin: Origin | None = None
    entry: str = ""
    ledger: Path | None = None
    _table: Table | None = None
    _labels: IntArray | None
    _image_positions: IntArray
    _view_positions: IntArray | None = None
    _advance: Advance
    _predicted: dict[tuple[PredictFrom, int], IntArray]

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
        skipped: Iterable[tuple[str, str]] = (),
        origin: Origin | None = None,
    ) -> None:
        members = tuple(members)
        if (probabilities is not None) + (logits is not None) + bool(members) != 1:
            choices = dict.fromkeys(("probabilities", "logits", "members"), ANY)
            repair = Repair("pass {probabilities}, {logits} or {members}", **choices)
            raise PredictionsError("Predictions takes exactly one of outputs and members", repair=repair)
        view_set = ViewSet.with_names(views)
        table: Table | None = None
        if members:
            check_members_match(members, view_set)
            labels = members[0]._labels if labels is None else labels
            ids = members[0].ids if ids is None else ids
            class_names = members[0].class_names if class_names is None else class_names
            skipped = tuple(skipped) or members[0].skipped
            n_images, _, n_classes = members[0].shape
        else:
            kind: Output = "logits" if logits is not None else "probabilities"
            values = logits if logits is not None else probabilities
            table = _ArrayTable(as_outputs(values, kind, view_set.texts), kind)
            n_images, _, n_classes = table.shape
        names = as_class_names(class_names, n_classes)
        checked = None if labels is None else as_labels(labels, n_images, n_classes, names)
        others = {"members": members, "class_names": names, "origin": origin}
        self._initialize(table, view_set, as_ids(ids, n_images), checked, skipped, **others)

    @classmethod
    def from_outputs(cls, outputs: Array, kind: Output, views: ViewSet, **fields: Any) -> Self:
        """Wrap outputs [N, V, C] without validation.

        `fields` are `ids` and, if known, `labels`, `class_names`, `skipped` and `origin`.
        """
        return cls._from_table(_ArrayTable(outputs, kind), views, **fields)

    @classmethod
    def _from_table(cls, table: Table, views: ViewSet, **fields: Any) -> Self:
        preds = cls.__new__(cls)
        preds._initialize(table, views, **fields)
        return preds

    @classmethod
    def open(
        cls,
        store: str | Path,
        *,
        entry: str | None = None,
        views: ViewsLike | None = None,
        ledger: Path | None = None,
    ) -> Predictions:
        """Open stored predictions. Outputs are read on demand; the classifier is not needed.

        Parameters
        ----------
        store
            The folder passed to `collect`, or the folder of one entry.
        entry
            Start of the name of the entry to open, if the store has several.
        views
            The views to open; all by default.
        ledger
            The file in which `certify` records calibrations on these images; a run has one.
        """
        view_set = None if views is None else ViewSet(views)
        folder = find_entry(Path(store), entry)
        names = read_member_names(folder)
        if not names:
            opened = open_entry(StoreEntry.open(folder), view_set)
        else:
            members = [open_entry(StoreEntry.open(folder.parent / name), view_set) for name in names]
            opened = Predictions(members=members, views=members[0].views)
        return opened._replace(entry=folder.name, ledger=ledger)

    def _initialize(
        self,
        table: Table | None,
        views: ViewSet,
        ids: Sequence[str],
        labels: IntArray | None = None,
        skipped: Iterable[tuple[str, str]] = (),
        **others: Any,
    ) -> None:
        self.__dict__.update(
            others,
            views=views,
            ids=tuple(ids),
            skipped=tuple(skipped),
            _table=table,
            _labels=None if labels is None else _freeze(labels),
            _image_positions=np.arange(len(ids)),
            _advance=ignore_progress,
            _predicted={},
        )

    def _replace(self, **changes: Any) -> Predictions:
        """Return a copy with some attributes replaced, without validation."""
        copy = Predictions.__new__(Predictions)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def __setattr__(self, name: str, value: object = None) -> NoReturn:
        raise AttributeError(f"cannot change {name!r}: Predictions are immutable; create new ones, or use select().")

    __delattr__ = __setattr__

    @property
    def n_images(self) -> int:
        """Number of images."""
        return len(self.ids)

    @property
    def n_views(self) -> int:
        """Number of views, including the identity."""
        return len(self.views)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.members[0].n_classes if self._table is None else self._table.shape[2]

    @property
    def n_members(self) -> int:
        """Number of classifiers: the members of an ensemble, or one."""
        return max(1, len(self.members))

    @property
    def n_outputs(self) -> int:
        """Number of outputs per image: one for each view and member."""
        return self.n_members * self.n_views

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of images, views and classes."""
        return self.n_images, self.n_views, self.n_classes

    @property
    def block_rows(self) -> int:
        """Number of images per block of outputs that bounds memory."""
        return block_rows(self.n_views, self.n_classes)

    @property
    def has_labels(self) -> bool:
        """Whether the images are labeled."""
        return self._labels is not None

    @property
    def has_logits(self) -> bool:
        """Whether the outputs are logits; False for an ensemble, which is a mean of probabilities."""
        return self._table is not None and self._table.kind == "logits"

    @property
    def labels(self) -> IntArray:
        """True class of each image, int64 [N], read-only."""
        if self._labels is None:
            repair = Repair("pass {labels} when creating or collecting them", labels=ANY)
            raise PredictionsError("these predictions have no labels", repair=repair)
        return self._labels

    @property
    def probabilities(self) -> Float32Array:
        """All probabilities, float32 [N, V, C]; `blocks` yields them block by block in float64."""
        return self._join(self.blocks())

    @property
    def logits(self) -> Float32Array:
        """All logits, float32 [N, V, C]."""
        return self._join(self.logit_blocks())

    def _join(self, blocks: Iterator[tuple[slice, Float64Array]]) -> Float32Array:
        joined: Float32Array | None = None
        for rows, block in blocks:
            joined = np.empty(self.shape, dtype=np.float32) if joined is None else joined
            joined[rows] = block
        assert joined is not None, "there is always at least one image"
        return joined

    def blocks(self, rows: int | None = None) -> Iterator[tuple[slice, Float64Array]]:
        """Yield the probabilities block by block: a slice of images, and their probabilities float64 [n, V, C].

        Logits are converted in float64; the members of an ensemble are averaged. `rows` is the number of images per
        block; the default bounds memory. The blocks may be modified.
        """
        for images in self._block_slices(self._choose_block_rows(self.n_views) if rows is None else rows):
            yield images, self._read_probabilities(images)

    def logit_blocks(self, rows: int | None = None) -> Iterator[tuple[slice, Float64Array]]:
        """Yield the logits block by block, like `blocks`."""
        if not self.has_logits:
            reason = "an ensemble is a mean of" if self.members else "the classifier outputs"
            fault = f"these predictions have no logits: {reason} probabilities"
            raise PredictionsError(fault, repair="use .probabilities or .blocks()")
        for images in self._block_slices(self._choose_block_rows(self.n_views) if rows is None else rows):
            yield images, self._read(images).astype(np.float64, copy=False)

    def _block_slices(self, rows: int) -> Iterator[slice]:
        if rows < 1:
            expected = "is invalid; expected the number of images per block, at least 1"
            raise PredictionsError(expected, argument="rows", value=rows)
        for start in range(0, self.n_images, rows):
            stop = min(start + rows, self.n_images)
            yield slice(start, stop)
            self._advance(stop - start)

    def _choose_block_rows(self, n_views: int) -> int:
        if self._table is None:
            return max(member._choose_block_rows(n_views) for member in self.members)
        return block_rows(n_views, self.n_classes, self._table.rows_per_read)

    def _locate(self, images: slice | IntArray, views: IntArray | None) -> tuple[IntArray, IntArray | None]:
        """Return the positions of images and views in the table; None for all views."""
        if self._view_positions is not None:
            views = self._view_positions if views is None else self._view_positions[views]
        return self._image_positions[images], views

    def _read(self, images: slice | IntArray, views: IntArray | None = None) -> Array:
        assert self._table is not None, "an ensemble is read through its members"
        return self._table.read(*self._locate(images, views))

    def _read_probabilities(self, images: slice, views: IntArray | None = None) -> Float64Array:
        if self._table is None:
            total = self.members[0]._read_probabilities(images, views)
            for member in self.members[1:]:
                total += member._read_probabilities(images, views)
            total /= len(self.members)
            return total
        return self._table.read_probabilities(*self._locate(images, views))

    @contextmanager
    def show_progress(self, description: str, passes: int, *, enabled: bool = True) -> Iterator[Predictions]:
        """Yield the same predictions, with a progress bar for `passes` passes over the images."""
        total = passes * self.n_images * self.n_members
        with progress_bar(description, total, "images", enabled=enabled) as advance:
            yield self._with_advance(advance)

    def _with_advance(self, advance: Advance) -> Predictions:
        return self._replace(members=tuple(member._with_advance(advance) for member in self.members), _advance=advance)

    def predicted(self, predict_from: PredictFrom = "image", top_k: int = 1) -> IntArray:
        """Return the predicted class, int64 [N], or the top k classes, int64 [N, k], best first; read-only.

        `predict_from="image"` uses the image itself, `predict_from="views"` the mean over all views. Ties go to the
        lower class.
        """
        check_prediction(predict_from, top_k, self.n_classes)
        if (predict_from, top_k) not in self._predicted:
            self._predicted[predict_from, top_k] = _freeze(self._predict(predict_from, top_k))
        classes = self._predicted[predict_from, top_k]
        return classes[:, 0] if top_k == 1 else classes

    def _predict(self, predict_from: PredictFrom, top_k: int) -> IntArray:
        views, n_views = (np.array([0]), 1) if predict_from == "image" else (None, self.n_views)
        classes = np.empty((self.n_images, top_k), dtype=np.int64)
        for images in self._block_slices(self._choose_block_rows(n_views)):
            classes[images] = top_classes(self._read_probabilities(images, views).mean(axis=1), top_k)
        return classes

    def correct(self, predict_from: PredictFrom = "image", top_k: int = 1) -> BoolArray:
        """Return whether the label is the predicted class, or among the top k classes, bool [N]."""
        labels = self.labels
        predicted = self.predicted(predict_from, top_k).reshape(self.n_images, top_k)
        correct: BoolArray = (predicted == labels[:, None]).any(axis=1)
        return correct

    def select(self, *, views: ViewsLike | None = None, images: object = None) -> Predictions:
        """Return the predictions for some views and images, without reading or copying outputs.

        `views` are in the given order, with the identity always first; `images` are positions or a mask bool [N].
        """
        view_set = self.views if views is None else ViewSet.with_identity(views, self.views)
        view_positions = self._view_positions
        if view_set.texts != self.views.texts:
            chosen = resolve_views(view_set, self.views.texts)
            view_positions = chosen if view_positions is None else view_positions[chosen]
        positions = np.arange(self.n_images)
        if images is not None:
            positions = resolve_positions(images, self.n_images, "images", PredictionsError)
        return self._replace(
            members=tuple(member.select(views=view_set, images=images) for member in self.members),
            views=view_set,
            ids=self.ids if images is None else tuple(self.ids[position] for position in positions),
            _labels=None if self._labels is None else _freeze(self._labels[positions]),
            _image_positions=self._image_positions[positions],
            _view_positions=view_positions,
            _predicted={},
        )

    def concatenate(
        self, other: Predictions, *, labels: object = None, ids: Iterable[str] | None = None
    ) -> Predictions:
        """Return the predictions for these images followed by those of `other`; the outputs are read on demand.

        Both must have the same views and classes and come from the same classifier. `labels`, int [N], and `ids` are
        for all images; by default the result is unlabeled, with zero-padded positions as ids.
        """
        for name, expected, found in (
            ("views", ", ".join(self.views.texts), ", ".join(other.views.texts)),
            ("number of classes", self.n_classes, other.n_classes),
            ("number of ensemble members", len(self.members), len(other.members)),
            ("output", *("logits" if preds.has_logits else "probabilities" for preds in (self, other))),
        ):
            if found != expected:
                fault = f"cannot concatenate predictions with different {name}: {expected} and {found}"
                raise PredictionsError(fault, repair="collect both with the same classifier and views")
        ids = None if ids is None else tuple(ids)
        skipped = self.skipped + other.skipped
        if self.members:
            pairs = zip(self.members, other.members, strict=True)
            members = [one.concatenate(another, labels=labels, ids=ids) for one, another in pairs]
            return Predictions(members=members, views=self.views, class_names=self.class_names, skipped=skipped)
        table = _ConcatenatedTable(self, other)
        n_images, _, n_classes = table.shape
        return Predictions._from_table(
            table,
            self.views,
            ids=as_ids(ids, n_images),
            labels=None if labels is None else as_labels(labels, n_images, n_classes, self.class_names),
            class_names=self.class_names,
            skipped=skipped,
        )

    def to_arrow(self, *, probabilities: bool = False) -> pa.Table:
        """Return an Arrow table with one row per image.

        The columns are `id`, `label`, `predicted_image`, `predicted_views`, `correct_image` and `correct_views`. Each
        column of class indices is followed by one of class names, like `label_name`, if these are known; `label` and
        `correct_...` require labels. With `probabilities=True` there is also a column for each view, like
        `probabilities:hflip`, with a list of C float32.
        """
        import pyarrow as pa

        columns: dict[str, Any] = {"id": list(self.ids)}
        classes = {"label": self._labels} if self._labels is not None else {}
        classes |= {"predicted_image": self.predicted("image"), "predicted_views": self.predicted("views")}
        for name, values in classes.items():
            columns[name] = values
            if self.class_names is not None:
                columns[f"{name}_name"] = [self.class_names[value] for value in values]
        if self.has_labels:
            columns |= {"correct_image": self.correct("image"), "correct_views": self.correct("views")}
        if probabilities:
            outputs = self.probabilities
            for view, text in enumerate(self.views.texts):
                own = outputs[:, view].reshape(-1)
                columns[f"probabilities:{text}"] = pa.FixedSizeListArray.from_arrays(own, self.n_classes)
        return pa.table(columns)

    def to_frame(self, *, probabilities: bool = False) -> pd.DataFrame:
        """Return the table of `to_arrow` as a pandas data frame; pandas is an optional dependency."""
        return pandas_frame(self.to_arrow(probabilities=probabilities))

    def to_fd_shifts(self, folder: str | Path, confidence: object, *, dataset: object = 0) -> None:
        """Write the files for the analysis of fd-shifts: logits of the image, logits of all views, and a confidence.

        The views replace the dropout passes of fd-shifts. A folder holds one confidence, which fd-shifts calls `ext`;
        existing files are replaced.

        Parameters
        ----------
        folder
            Where `raw_logits.npz`, `raw_logits_dist.npz` and `external_confids.npz` are written.
        confidence
            Confidence of each image, float [N], for example from `confidence`.
        dataset
            Index of the data set in the configuration of fd-shifts: one for all images, or int [N].
        """
        if not self.has_logits:
            repair = "export each of .members" if self.members else "collect from a classifier that outputs logits"
            raise PredictionsError("fd-shifts needs logits, and these predictions have none", repair=repair)
        values = as_array(confidence, "confidence", PredictionsError)
        if values.shape != (self.n_images,) or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            found = f"confidence has dtype {values.dtype} and shape {list(values.shape)}"
            raise PredictionsError(f"{found}; expected finite numbers [{self.n_images}], one per image.")
        indices = as_array(dataset, "dataset", PredictionsError)
        if indices.shape not in ((), (self.n_images,)) or indices.dtype.kind not in "iu" or (indices < 0).any():
            found = f"dataset has dtype {indices.dtype} and shape {list(indices.shape)}"
            raise PredictionsError(f"{found}; expected an index from 0, or one for each of {self.n_images} images.")
        columns = np.column_stack([self.labels, np.broadcast_to(indices, self.n_images)])
        image = self.select(views="identity")
        n_images, n_views, n_classes = self.shape
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        rows = (np.column_stack([block[:, 0], columns[images]]) for images, block in image.logit_blocks())
        _write_npz(path / "raw_logits.npz", (n_images, n_classes + 2), rows)
        passes = (block.transpose(0, 2, 1) for _, block in self.logit_blocks())
        _write_npz(path / "raw_logits_dist.npz", (n_images, n_classes, n_views), passes)
        _write_npz(path / "external_confids.npz", (n_images,), [values])

    def __len__(self) -> int:
        return self.n_images

    def __repr__(self) -> str:
        kind = f"{len(self.members)} members" if self.members else "logits" if self.has_logits else "probabilities"
        labeled = "labeled" if self.has_labels else "unlabeled"
        shape = f"{self.n_images} images x {self.n_views} views x {self.n_classes} classes"
        return f"<Predictions: {shape}, {kind}, {labeled}>"


def _freeze(array: Array) -> Array:
    array.flags.writeable = False
    return array


def _write_npz(path: Path, shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
    """Write one array of float64 block by block, in the format of `numpy.savez`."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive, archive.open("arr_0.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f8", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)
            for block in blocks:
                member.write(np.ascontiguousarray(block, dtype="<f8").data)

    write_atomically(path, write, clean=True)


def open_entry(entry: StoreEntry, views: ViewSet | None = None) -> Predictions:
    """Open an entry of a store for some of its views; all by default."""
    view_set = ViewSet(entry.manifest.views) if views is None else views
    resolve_views(view_set, entry.manifest.views)
    ids, labels = entry.read_images()
    entry.check_complete(view_set.texts, len(ids))
    indices = entry.readable_indices()
    table, data = StoredTable(entry, view_set.texts), entry.manifest.data
    n_images, _, n_classes = table.shape
    return Predictions._from_table(
        table,
        view_set,
        ids=[ids[index] for index in indices],
        labels=None if labels is None else as_labels(labels[indices], n_images, n_classes),
        class_names=as_class_names(data.class_names, n_classes),
        skipped=[(image.id, image.reason) for image in entry.manifest.skipped],
        origin=Origin(entry.manifest.classifier, data.spec, data.digest, entry.manifest.versions),
    )


class _ConcatenatedTable(Table):
    """The concatenated outputs of two predictions."""

    def __init__(self, first: Predictions, second: Predictions) -> None:
        self._predictions = (first, second)
        self.kind = "logits" if first.has_logits else "probabilities"
        self.shape = (first.n_images + second.n_images, first.n_views, first.n_classes)

    def read(self, images: IntArray, views: IntArray | None = None) -> Float64Array:
        """Read outputs, float64 [len(images), len(views), C]; of all views by default."""
        outputs = np.empty((len(images), self.shape[1] if views is None else len(views), self.shape[2]))
        start = 0
        for preds in self._predictions:
            places = np.flatnonzero((images >= start) & (images < start + preds.n_images))
            if len(places):
                outputs[places] = preds._read(images[places] - start, views)
            start += preds.n_images
        return outputs
