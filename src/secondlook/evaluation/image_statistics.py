"""`ImageStatistics`: what an evaluation needs to know about each image, once its outputs are gone.

They are computed image by image, so that those of several parts of the images, joined, are those of all images.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.estimators import FittedMethods, confidence, find_method, other_class_mass
from secondlook.evaluation.image_or_views import METHOD
from secondlook.predictions import PredictFrom, Predictions
from secondlook.tables import arrow_table

if TYPE_CHECKING:
    import pyarrow as pa

PREDICTED_FROM: tuple[PredictFrom, ...] = get_args(PredictFrom)

# Columns of the Arrow table.
ID, LABEL, OTHER_MASS = "id", "label", "other_mass"
PREDICTED, MEAN, CONFIDENCE = "predicted:", "mean:", "confidence:"
MEMBERS, VIEWS = "secondlook.members", "secondlook.views"


@dataclass(frozen=True, eq=False)
class ImageStatistics:
    """What an evaluation needs to know about each of N images."""

    ids: tuple[str, ...]
    n_members: int
    n_views: int
    labels: IntArray | None
    """True classes, int64 [N]; None without labels."""
    predicted: Mapping[PredictFrom, IntArray]
    """The top-k classes predicted from the image, and those from the views, int64 [N, k] each; none where the images
    will never have labels."""
    confidences: Mapping[str, Float64Array]
    """The confidence of each method that is not a rank, by its text. float64 [N] each"""
    means: Mapping[PredictFrom, Float64Array]
    """The confidence 'mean' of both, to compare them, float64 [N] each; none with one view, or without `predicted`."""
    other_mass: Float64Array | None
    """What ranks follow from: `other_class_mass`, float64 [N, members * V]; None if no method is a rank."""

    @property
    def n_images(self) -> int:
        """Number of images."""
        return len(self.ids)

    @property
    def correct(self) -> dict[PredictFrom, BoolArray]:
        """Whether the label is among the classes predicted from the image, and from the views. bool [N] each"""
        assert self.labels is not None, "only of labeled images"
        labels = self.labels[:, None]
        return {one: (classes == labels).any(axis=1) for one, classes in self.predicted.items()}

    def select(self, images: IntArray) -> Self:
        """Return the statistics of some of the images. int64 [n]"""
        parts = {name: values[images] for name, values in self._iter_columns()}
        return self._rebuild([self.ids[image] for image in images.tolist()], parts)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the statistics of the images of all parts, one after another.

        Labels, and what follows from them, are those of all images or none.
        """
        columns = [dict(part._iter_columns()) for part in parts]
        shared = [name for name in columns[0] if all(name in one for one in columns)]
        joined = {name: np.concatenate([one[name] for one in columns]) for name in shared}
        return parts[0]._rebuild([id_ for part in parts for id_ in part.ids], joined)

    def to_arrow(self) -> "pa.Table":
        """Return an Arrow table with a row per image; every number is exact."""
        import pyarrow as pa

        columns: dict[str, Any] = {ID: pa.array(self.ids, pa.string())}
        for name, values in self._iter_columns():
            columns[name] = pa.array(np.ascontiguousarray(values).reshape(-1))
            if values.ndim == 2:
                columns[name] = pa.FixedSizeListArray.from_arrays(columns[name], values.shape[1])
        return arrow_table(columns).replace_schema_metadata({MEMBERS: str(self.n_members), VIEWS: str(self.n_views)})

    @classmethod
    def from_arrow(cls, table: "pa.Table") -> Self:
        """Return the statistics that `to_arrow` was called on."""
        metadata = table.schema.metadata
        n_members, n_views = (int(metadata[name.encode()]) for name in (MEMBERS, VIEWS))
        empty = cls((), n_members, n_views, None, {}, {}, {}, None)
        columns = {name: _read_column(table[name]) for name in table.column_names if name != ID}
        return empty._rebuild(table[ID].to_pylist(), columns)

    def _iter_columns(self) -> Iterator[tuple[str, Array]]:
        """Yield the name and the values of each array."""
        if self.labels is not None:
            yield LABEL, self.labels
        for prefix, arrays in ((PREDICTED, self.predicted), (CONFIDENCE, self.confidences), (MEAN, self.means)):
            for name, values in arrays.items():
                yield f"{prefix}{name}", values
        if self.other_mass is not None:
            yield OTHER_MASS, self.other_mass

    def _rebuild(self, ids: Sequence[str], columns: Mapping[str, Array]) -> Self:
        """Return statistics of other images from what `_iter_columns` yields."""

        def find(prefix: str) -> dict[Any, Array]:
            return {name.removeprefix(prefix): columns[name] for name in columns if name.startswith(prefix)}

        return type(self)(
            tuple(ids),
            self.n_members,
            self.n_views,
            columns.get(LABEL),
            find(PREDICTED),
            find(CONFIDENCE),
            find(MEAN),
            columns.get(OTHER_MASS),
        )


def _read_column(column: "pa.ChunkedArray") -> Array:
    joined = column.combine_chunks()
    is_list = hasattr(joined.type, "list_size")
    values: Array = (joined.flatten() if is_list else joined).to_numpy(zero_copy_only=False)
    return values.reshape(-1, joined.type.list_size) if is_list else values


def compute_statistics(
    preds: Predictions, fitted: FittedMethods, *, is_judged: bool = True, progress: bool = False
) -> ImageStatistics:
    """Return the statistics of all images of `preds`, which need not be those that the methods were fitted with.

    `is_judged` tells whether the images have labels, or will get them: whether predictions are correct matters. A
    method that ranks images by something else than their other-class mass ranks those of `preds`.
    """
    ranked = list_rankings(fitted)
    for text in ranked:
        fitted.resample(text, preds.n_members, preds.n_views)  # invalid options are rejected before anything is read
    predicted_from = PREDICTED_FROM if is_judged else ()
    compared = predicted_from if preds.n_views > 1 else ()
    top_k = fitted.top_k
    with preds.show_progress("confidences", len(fitted.options) + 1 + len(compared), enabled=progress) as watched:
        return ImageStatistics(
            ids=preds.ids,
            n_members=preds.n_members,
            n_views=preds.n_views,
            labels=preds.labels if preds.has_labels else None,
            predicted={one: watched.predicted(one, top_k).reshape(-1, top_k) for one in predicted_from},
            confidences={text: fitted.compute(watched, text) for text in fitted.options if text not in ranked},
            means={one: confidence(watched, METHOD, predict_from=one, top_k=top_k) for one in compared},
            other_mass=other_class_mass(watched, fitted.predict_from, top_k) if ranked else None,
        )


def list_rankings(fitted: FittedMethods) -> tuple[str, ...]:
    """Return the texts of the methods that rank images by their other-class mass."""
    return tuple(text for text in fitted.options if find_method(text).resampling is not None)


def check_divisible(methods: Sequence[str]) -> None:
    """Raise unless all methods can be computed from the statistics of parts of the images."""
    for text in methods:
        found = find_method(text)
        if found.is_rank and found.resampling is None:
            raise MetricError(
                f"method {text!r} ranks all images together, so that it cannot be computed part by part; leave it out, "
                "or evaluate without engine=."
            )
