"""Metrics of several confidences on the same images, with intervals and paired differences to one of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from secondlook.errors import MetricError
from secondlook.evaluation.estimate import Estimate
from secondlook.metrics import BoundMetric, Entries, Ranking, percentile_interval, rank, resample_metrics
from secondlook.progress import Advance, unwatched

INTERVALS, RESAMPLINGS = "intervals", "resamplings"
"""What a progress bar calls this work, and its unit."""


@dataclass(frozen=True)
class Setting:
    """What stays the same over all comparisons."""

    measures: tuple[BoundMetric, ...]
    no_probabilities: frozenset[str]
    """The entries whose values must not be read as probabilities, even where they lie in [0, 1]."""
    baseline: str
    level: float
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.resamples < 1:
            raise MetricError(
                f"level is {self.level} and resamples {self.resamples}, expected a share in (0, 1) and at least 1."
            )
        if self.seed < 0:
            raise MetricError(f"seed is {self.seed}, expected a whole number of at least 0.")


def paired_estimates(part: str, entries: Entries, setting: Setting, advance: Advance = unwatched) -> Iterator[Estimate]:
    """Yield every metric of every entry; all entries see the same resamplings of the images."""
    rankings = {name: rank(*entry) for name, entry in entries.items()}

    def values_of(name: str, ranking: Ranking) -> list[float]:
        found = (_value_or_reason(one, name, ranking, setting)[0] for one in setting.measures)
        return [math.nan if value is None else value for value in found]

    drawn = resample_metrics(entries, values_of, setting.resamples, setting.seed, advance)
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


def _value_or_reason(
    one: BoundMetric, name: str, ranking: Ranking, setting: Setting
) -> tuple[float, None] | tuple[None, str]:
    if one.metric.reads == "values" and name in setting.no_probabilities:
        return None, f"{one.text} has no meaning for {name!r}, which is a score and not a probability of being right."
    try:
        return one.of(ranking), None
    except MetricError as error:
        return None, str(error)
