"""Confidences of one column, and metrics of them with intervals from resamplings of the images."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

import secondlook as sl
from reproduction.distance import compute_distance_confidence, compute_embeddings
from reproduction.experiment import PREDICT_FROM, By, Column, ImageSubset, MethodRow, view_texts
from reproduction.inputs import MissingItem
from reproduction.results import ResultRow
from reproduction.workspace import SUBSETS, Workspace
from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.errors import ConfidenceError
from secondlook.estimators import fit_method
from secondlook.metrics import Interval, Ranking, parse_metrics, rank, resample_metrics
from secondlook.predictions import PredictFrom
from secondlook.progress import progress_bar

BASELINE = "MSR(x)"
"""The symbol of the baseline for gains."""
DISTANCE = "distance"
"""A confidence outside the library: it needs the activations of a network."""
CONFIDENCE_LEVEL = 0.95
IMAGE_RESAMPLINGS = 500


@dataclass(frozen=True, eq=False)
class Cell:
    """A metric of a method, and its values over resamplings of the images. float64 [R], NaN if undefined"""

    value: float
    resampled: Float64Array

    def minus(self, other: "Cell") -> "Cell":
        """Return the paired difference over the same resamplings."""
        return Cell(self.value - other.value, self.resampled - other.resampled)

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """The percentile interval; None if too few resamplings have a value."""
        interval = Interval.from_resamples(self.resampled, CONFIDENCE_LEVEL)
        return (None, None) if interval is None else (interval.low, interval.high)


@dataclass(frozen=True, eq=False)
class ColumnConfidences:
    """Correctness of a column's predictions, bool [N], and the confidence of each method by symbol, float64 [N]."""

    correct: BoolArray
    by_method: Mapping[str, Float64Array]
    missing: tuple[MissingItem, ...] = ()


def compute_confidences(
    workspace: Workspace,
    column: Column,
    preds: sl.Predictions,
    rows: Iterable[MethodRow],
    subset: ImageSubset,
    by: By = "x",
) -> ColumnConfidences:
    """Compute the confidence of each method; a method that fails is listed as missing.

    Classes by D are predicted from the column's own views, so methods with other views are omitted for them.
    """
    applicable = [row for row in rows if row.views is None or by == "x"]
    confidences: dict[str, Float64Array] = {}
    missing = []
    with preds.show_progress(column.title, len(applicable) + 1, enabled=workspace.progress) as watched:
        column_preds = watched.select(views=view_texts(column.views))
        for row in applicable:
            try:
                row_preds = _select_views(watched, column_preds, row)
                confidences[row.symbol] = _compute_confidence(
                    workspace, column, row_preds, row, subset, PREDICT_FROM[by]
                )
            except sl.SecondLookError as error:
                missing.append(MissingItem(f"{row.symbol} of {column.title}", str(error)))
        correct = column_preds.correct(predict_from=PREDICT_FROM[by], top_k=column.k)
    return ColumnConfidences(correct, confidences, tuple(missing))


def _select_views(preds: sl.Predictions, column_preds: sl.Predictions, row: MethodRow) -> sl.Predictions:
    if row.confidence.startswith("view:"):
        return preds
    return column_preds if row.views is None else preds.select(views=view_texts(row.views))


def _compute_confidence(
    workspace: Workspace,
    column: Column,
    preds: sl.Predictions,
    row: MethodRow,
    subset: ImageSubset,
    predict_from: PredictFrom,
) -> Float64Array:
    if row.confidence == DISTANCE:
        return _compute_distance_confidence(workspace, column, preds.predicted(predict_from), subset)
    options = dict(row.options) | ({"seed": workspace.seed} if row.confidence == "bootstrap" else {})
    if row.tuned:
        tuning = preds.select(images=np.arange(workspace.count_experimental(column, subset)))
        options = fit_method(tuning, row.confidence, predict_from=predict_from, top_k=column.k, **options)
    return sl.confidence(preds, row.confidence, predict_from=predict_from, top_k=column.k, **options)


def _compute_distance_confidence(
    workspace: Workspace, column: Column, classes: IntArray, subset: ImageSubset
) -> Float64Array:
    """Compare the activations of a layer for the images with those for the training images. int64 [N] -> [N]"""
    (name,) = column.classifiers
    layer, classifier = workspace.get_layer(name), workspace.get_classifier(name)
    if layer is None:
        raise ConfidenceError(
            f"activation distances of {name!r} need a torch classifier and the name of a layer; add layer = "
            f'"NAME" below [{name}] in the TOML file.'
        )

    def embed(*sources: sl.Source) -> Array:
        batches = [batch.images for source in sources for batch in source.batches(256)]
        fitted = np.concatenate([classifier.preprocessing.fit(images) for images in batches])
        return compute_embeddings(classifier, fitted, layer)

    training = workspace.open_training_source(column.data_set)
    sources = [workspace.open_subset(column.data_set, one) for one in SUBSETS[subset]]
    assert training.labels is not None, "training images are opened with labels"
    return compute_distance_confidence(embed(*sources), embed(training), training.labels, classes)


def compute_cells(
    confidences: ColumnConfidences, metrics: tuple[str, ...], workspace: Workspace
) -> dict[tuple[str, str], Cell]:
    """Compute the metrics of each method by (symbol, metric), all over the same resamplings of the images."""
    bound_metrics = parse_metrics(metrics)

    def compute_metrics(_: str, ranking: Ranking) -> list[float]:
        # Omit undefined cells: all images are correct, or all are errors.
        return [one.try_compute(ranking)[0] for one in bound_metrics]

    entries = {symbol: (confidences.correct, values) for symbol, values in confidences.by_method.items()}
    with progress_bar("intervals", IMAGE_RESAMPLINGS, "resamplings", enabled=workspace.progress) as advance:
        resampled = (
            resample_metrics(entries, compute_metrics, IMAGE_RESAMPLINGS, workspace.seed, advance) if entries else {}
        )
    values = {symbol: compute_metrics(symbol, rank(*entry)) for symbol, entry in entries.items()}
    return {
        (symbol, one.text): Cell(values[symbol][position], resampled[symbol][:, position])
        for symbol in entries
        for position, one in enumerate(bound_metrics)
        if not np.isnan(values[symbol][position])
    }


def make_row(
    piece: str,
    column: Column,
    subset: ImageSubset,
    correct: BoolArray,
    method: str,
    metric: str,
    cell: Cell,
    by: By = "x",
) -> ResultRow:
    """Return the row of a cell, with its interval."""
    low, high = cell.interval
    return ResultRow(
        piece=piece,
        column=column.title,
        subset=subset,
        images=len(correct),
        errors=int((~correct).sum()),
        by=by,
        k=column.k,
        method=method,
        metric=metric,
        value=cell.value,
        low=low,
        high=high,
    )


def add_gain(row: ResultRow, cells: Mapping[tuple[str, str], Cell]) -> ResultRow:
    """Return the row with its gain over the baseline, unless it is the baseline itself."""
    baseline = cells.get((BASELINE, row.metric))
    if baseline is None or row.method == BASELINE:
        return row
    gain = cells[row.method, row.metric].minus(baseline)
    low, high = gain.interval
    return replace(row, gain=gain.value, gain_low=low, gain_high=high)
