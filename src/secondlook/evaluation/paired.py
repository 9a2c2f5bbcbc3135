"""Metrics of several confidences on the same images, with intervals and paired differences to one of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.evaluation.estimate import Estimate, percentile_interval
from secondlook.evaluation.resampled import SortedImages, resampling_counts
from secondlook.metrics import Measure, Ranking, rank

Entries = Mapping[str, tuple[BoolArray, Float64Array]]
"""By name: which images are right, and how sure each answer is. bool [N], float64 [N], the same images in each"""


@dataclass(frozen=True)
class Setting:
    """What stays the same over all comparisons."""

    measures: tuple[Measure, ...]
    no_probabilities: frozenset[str]
    """The entries whose values must not be read as probabilities, even where they lie in [0, 1]."""
    baseline: str
    level: float
    resamples: int
    seed: int


def paired_estimates(part: str, entries: Entries, setting: Setting) -> Iterator[Estimate]:
    """Yield every metric of every entry; all entries see the same resamplings of the images."""
    rankings = {name: rank(*entry) for name, entry in entries.items()}
    drawn = _resampled_values(entries, setting)
    for name, ranking in rankings.items():
        for column, one in enumerate(setting.measures):
            value, reason = _value_or_reason(one, name, ranking, setting)
            reference = _value_or_reason(one, setting.baseline, rankings[setting.baseline], setting)[0]
            difference = None
            if name != setting.baseline and value is not None and reference is not None:
                difference = value - reference
            values, reference_values = drawn[name][:, column], drawn[setting.baseline][:, column]
            yield Estimate(
                part=part,
                method=name,
                metric=one.text,
                better=one.metric.better,
                value=value,
                interval=None if value is None else percentile_interval(values, setting.level),
                difference=difference,
                difference_interval=(
                    None if difference is None else percentile_interval(values - reference_values, setting.level)
                ),
                reason=reason,
                images=ranking.n_images,
                errors=ranking.n_errors,
            )


def _resampled_values(entries: Entries, setting: Setting) -> dict[str, Float64Array]:
    """Return each entry's metrics on each resampling, NaN where one has no meaning. float64 [R, M] each"""
    images = {name: SortedImages(*entry) for name, entry in entries.items()}
    drawn = {name: np.full((setting.resamples, len(setting.measures)), np.nan) for name in images}
    n_images = len(next(iter(entries.values()))[0])
    for row, counts in enumerate(resampling_counts(n_images, setting.resamples, setting.seed)):
        for name, sorted_images in images.items():
            ranking = sorted_images.ranking(counts)
            for column, one in enumerate(setting.measures):
                value = _value_or_reason(one, name, ranking, setting)[0]
                drawn[name][row, column] = np.nan if value is None else value
    return drawn


def _value_or_reason(
    one: Measure, name: str, ranking: Ranking, setting: Setting
) -> tuple[float, None] | tuple[None, str]:
    if one.metric.reads == "values" and name in setting.no_probabilities:
        return None, f"{one.text} has no meaning for {name!r}, which is a score and not a probability of being right."
    try:
        return one.of(ranking), None
    except MetricError as error:
        return None, str(error)
