"""Confidences and correctness of one column, and their numbers with resamplings of the images."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from reproduction.bench import Bench
from reproduction.experiment import PREDICT_FROM, By, Column, MethodRow, PartName, texts_of
from reproduction.findings import Row
from reproduction.needed import Missing
from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import ConfidenceError, MetricError, SecondLookError
from secondlook.estimators import confidence
from secondlook.evaluation import INTERVALS, RESAMPLINGS
from secondlook.metrics import BoundMetric, Ranking, parse_metrics, percentile_interval, rank, resample_metrics
from secondlook.predictions import Predictions
from secondlook.progress import progress_bar

LEVEL, RESAMPLES = 0.95, 500


@dataclass(frozen=True, eq=False)
class Cell:
    """A metric of a method, and its values over resamplings of the images. float64 [RESAMPLES], NaN undefined"""

    value: float
    drawn: Float64Array

    def less(self, other: "Cell") -> "Cell":
        """Return the difference, which over the same resamplings has an interval of its own."""
        return Cell(self.value - other.value, self.drawn - other.drawn)

    @property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        """The ends of the percentile interval; None where too few resamplings have a value."""
        interval = percentile_interval(self.drawn, LEVEL)
        return (None, None) if interval is None else (interval.low, interval.high)


@dataclass(frozen=True, eq=False)
class Scores:
    """What a column's methods say about its images: correct bool [N], and float64 [N] by the symbol of the method."""

    correct: BoolArray
    confidences: Mapping[str, Float64Array]
    missing: tuple[Missing, ...] = ()


def scores_of(
    bench: Bench, column: Column, preds: Predictions, rows: Iterable[MethodRow], by: By, part: PartName
) -> Scores:
    """Return correctness by D of the column's own views, and the confidence of each row that makes sense for it."""
    wanted = [row for row in rows if row.views is None or by == "x"]
    confidences, missing = {}, []
    with preds.read_with_bar(column.title, len(wanted) + 1, enabled=bench.progress) as seen:
        looks = seen.select(views=texts_of(column.views))
        for row in wanted:
            try:
                options = dict(row.options) | _given(bench, column, row, part)
                looked_at = _looked_at(seen, looks, row)
                confidences[row.symbol] = confidence(
                    looked_at, row.confidence, predict_from=PREDICT_FROM[by], top_k=column.k, **options
                )
            except SecondLookError as error:
                missing.append(Missing(f"{row.symbol} of {column.title}", str(error)))
        return Scores(looks.correct(predict_from=PREDICT_FROM[by], top_k=column.k), confidences, tuple(missing))


def _looked_at(preds: Predictions, looks: Predictions, row: MethodRow) -> Predictions:
    if row.confidence.startswith("view:"):
        return preds
    return looks if row.views is None else preds.select(views=texts_of(row.views))


def _given(bench: Bench, column: Column, row: MethodRow, part: PartName) -> dict[str, object]:
    """Return what the bench gives a method beyond its declared options."""
    if row.confidence in ("bootstrap", "bootstrap-lower"):
        return {"seed": bench.seed}
    if row.tuned:
        return {"tune_on": np.arange(bench.experimental_images(column, part))}
    return _embeddings(bench, column, part) if row.confidence == "distance" else {}


def _embeddings(bench: Bench, column: Column, part: PartName) -> dict[str, object]:
    """Return activations of a layer for the images and for the training images."""
    from secondlook.estimators import embeddings

    (key,) = column.classifiers
    layer, classifier = bench.layer(key), bench.classifier(key)
    if layer is None:
        raise ConfidenceError(
            f'the activation distances of {key!r} need a torch classifier and its layer; add layer = "NAME" below '
            f"[{key}] in the TOML file."
        )
    training = bench.training_source(column.data_set)
    fitted = [
        np.concatenate([classifier.preprocessing.fit(batch.images) for batch in source.batches(256)])
        for source in (bench.source(column.data_set, part), training)
    ]
    here, there = (embeddings(classifier, images, layer=layer) for images in fitted)
    return {"embeddings": here, "train_embeddings": there, "train_labels": training.labels}


def row_of(
    piece: str, column: Column, part: PartName, correct: BoolArray, method: str, metric: str, cell: Cell, by: By = "x"
) -> Row:
    """Return the row of a cell, with its interval."""
    low, high = cell.ends
    return Row(
        piece=piece,
        column=column.title,
        part=part,
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


def cells_of(scores: Scores, metrics: tuple[str, ...], bench: Bench) -> dict[tuple[str, str], Cell]:
    """Return each method's metrics by (symbol, metric), all over the same resamplings of the images."""
    wanted = parse_metrics(metrics)

    def values_of(_: str, ranking: Ranking) -> list[float]:
        return [_value(one, ranking) for one in wanted]

    entries = {name: (scores.correct, values) for name, values in scores.confidences.items()}
    with progress_bar(INTERVALS, RESAMPLES, RESAMPLINGS, enabled=bench.progress) as advance:
        drawn = resample_metrics(entries, values_of, RESAMPLES, bench.seed, advance) if entries else {}
    values = {name: values_of(name, rank(*entry)) for name, entry in entries.items()}
    return {
        (name, one.text): Cell(values[name][place], drawn[name][:, place])
        for name in entries
        for place, one in enumerate(wanted)
        if not np.isnan(values[name][place])
    }


def _value(one: BoundMetric, ranking: Ranking) -> float:
    try:
        return one.of(ranking)
    except MetricError:
        return float("nan")  # no error among the images, or nothing else: such a cell is left out
