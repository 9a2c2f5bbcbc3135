"""Confidences of several classifiers on the same images, side by side and paired."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.evaluation.estimate import Estimate, percentile_interval
from secondlook.evaluation.resampled import SortedImages, resampling_counts
from secondlook.evaluation.table import reasons_of, table_of
from secondlook.metrics import Measure, Ranking, measures, rank


@dataclass(frozen=True)
class Comparison:
    """Estimates of several entries, each less the first on the same resamplings. `print` shows a table."""

    rows: tuple[Estimate, ...]
    first: str
    level: float

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON can hold it."""
        return {"first": self.first, "level": self.level, "rows": [one.to_dict() for one in self.rows]}

    def __str__(self) -> str:
        return "\n".join([table_of(self.rows, self.first, self.level), *reasons_of(self.rows)])


def compare(
    entries: Mapping[str, tuple[BoolArray, Float64Array]],
    metrics: Iterable[str],
    *,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> Comparison:
    """Compare confidences, each with its own correctness, on the same images. name -> (bool [N], float64 [N])"""
    if len({len(correct) for correct, _ in entries.values()}) != 1:
        raise MetricError("the entries to compare differ in their number of images; compare runs of the same data.")
    chosen = measures(metrics)
    first = next(iter(entries))
    rankings = {name: rank(*entry) for name, entry in entries.items()}
    drawn = _drawn(entries, chosen, resamples, seed)
    rows = tuple(
        _estimate(name, first, place, one, rankings, drawn, level)
        for place, one in enumerate(chosen)
        for name in entries
    )
    return Comparison(rows, first, level)


def _drawn(
    entries: Mapping[str, tuple[BoolArray, Float64Array]], chosen: tuple[Measure, ...], resamples: int, seed: int
) -> dict[str, Float64Array]:
    """Return each entry's metrics on each resampling, NaN where one has no meaning. float64 [R, M] each"""
    images = {name: SortedImages(*entry) for name, entry in entries.items()}
    drawn = {name: np.full((resamples, len(chosen)), np.nan) for name in entries}
    n_images = len(next(iter(entries.values()))[0])
    for row, counts in enumerate(resampling_counts(n_images, resamples, seed)):
        for name, sorted_images in images.items():
            ranking = sorted_images.ranking(counts)
            for place, one in enumerate(chosen):
                value = _value(one, ranking)[0]
                drawn[name][row, place] = np.nan if value is None else value
    return drawn


def _value(one: Measure, ranking: Ranking) -> tuple[float | None, str | None]:
    try:
        return one.of(ranking), None
    except MetricError as error:
        return None, str(error)


def _estimate(
    name: str,
    first: str,
    place: int,
    one: Measure,
    rankings: Mapping[str, Ranking],
    drawn: Mapping[str, Float64Array],
    level: float,
) -> Estimate:
    value, reason = _value(one, rankings[name])
    reference = _value(one, rankings[first])[0]
    difference = None if name == first or value is None or reference is None else value - reference
    differences = drawn[name][:, place] - drawn[first][:, place]
    return Estimate(
        part="all images",
        method=name,
        metric=one.text,
        better=one.metric.better,
        value=value,
        interval=None if value is None else percentile_interval(drawn[name][:, place], level),
        difference=difference,
        difference_interval=None if difference is None else percentile_interval(differences, level),
        reason=reason,
        images=rankings[name].n_images,
        errors=rankings[name].n_errors,
    )
