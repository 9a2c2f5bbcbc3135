"""Metrics of several confidences on the same images, with intervals and paired differences to a baseline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from secondlook.arrays import is_number, is_whole_number
from secondlook.errors import MetricError
from secondlook.metrics import (
    BoundMetric,
    Interval,
    NamedConfidences,
    Ranking,
    percentile_interval,
    rank,
    resample_metrics,
)
from secondlook.progress import Advance, ignore_progress
from secondlook.tables import arrow_table, format_table, pandas_frame

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ARROWS = {"higher": "↑", "lower": "↓"}


@dataclass(frozen=True)
class Estimate:
    """A metric of one method on one group of images, with its interval and its difference to the baseline."""

    group: str
    method: str
    metric: str
    better: Literal["higher", "lower"]
    value: float | None
    """None where the metric is undefined on these images; `reason` tells why."""
    interval: Interval | None
    difference: float | None
    """Value minus that of the baseline on the same images; None for the baseline itself."""
    difference_interval: Interval | None
    reason: str | None
    images: int
    errors: int

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"] | None:
        """Comparison with the baseline; 'unclear' if the interval of the difference contains zero."""
        interval = self.difference_interval
        if interval is None:
            return None
        if interval.low <= 0 <= interval.high:
            return "unclear"
        return "better" if (interval.low > 0) == (self.better == "higher") else "worse"

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as plain values for JSON."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Estimate":
        """Return the estimate that `to_dict` was called on."""
        intervals = {
            name: None if values[name] is None else Interval(values[name]["low"], values[name]["high"])
            for name in ("interval", "difference_interval")
        }
        return cls(**{name: values[name] for name in cls.__dataclass_fields__} | intervals)


@dataclass(frozen=True)
class EstimateOptions:
    """Metrics, baseline and resamplings that all groups share."""

    metrics: tuple[BoundMetric, ...]
    scores: frozenset[str]
    """Names of entries whose values are not probabilities, even where they lie in [0, 1]."""
    baseline: str
    level: float
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        check_level(self.level)
        if not is_whole_number(self.resamples) or self.resamples < 1:
            raise MetricError(f"resamples is {self.resamples!r}; expected at least 1.")
        if not is_whole_number(self.seed) or self.seed < 0:
            raise MetricError(f"seed is {self.seed!r}; expected a whole number of at least 0.")


def check_level(level: float) -> None:
    """Reject a confidence level outside of (0, 1)."""
    if not is_number(level) or not 0 < level < 1:
        raise MetricError(f"level is {level!r}; expected a confidence level between 0 and 1, such as 0.95.")


def estimate_metrics(
    group: str, entries: NamedConfidences, options: EstimateOptions, advance: Advance = ignore_progress
) -> Iterator[Estimate]:
    """Yield every metric of every entry; all entries share the same resamplings of the images."""
    rankings = {name: rank(*entry) for name, entry in entries.items()}

    def values_of(name: str, ranking: Ranking) -> list[float]:
        values = (_compute_metric(metric, name, ranking, options)[0] for metric in options.metrics)
        return [math.nan if value is None else value for value in values]

    resampled = resample_metrics(entries, values_of, options.resamples, options.seed, advance)
    for name, ranking in rankings.items():
        for column, metric in enumerate(options.metrics):
            value, reason = _compute_metric(metric, name, ranking, options)
            reference = _compute_metric(metric, options.baseline, rankings[options.baseline], options)[0]
            difference = None
            if name != options.baseline and value is not None and reference is not None:
                difference = value - reference
            values, reference_values = resampled[name][:, column], resampled[options.baseline][:, column]
            yield Estimate(
                group=group,
                method=name,
                metric=metric.text,
                better=metric.metric.better,
                value=value,
                interval=None if value is None else percentile_interval(values, options.level),
                difference=difference,
                difference_interval=(
                    None if difference is None else percentile_interval(values - reference_values, options.level)
                ),
                reason=reason,
                images=ranking.n_images,
                errors=ranking.n_errors,
            )


def _compute_metric(
    metric: BoundMetric, name: str, ranking: Ranking, options: EstimateOptions
) -> tuple[float, None] | tuple[None, str]:
    """Return the value, or the reason why it is undefined."""
    if metric.metric.reads == "values" and name in options.scores:
        return None, f"{metric.text} is undefined for {name!r}, which is a score and not a probability."
    try:
        return metric.compute(ranking), None
    except MetricError as error:
        return None, str(error)


def format_estimates(estimates: Sequence[Estimate], baseline: str, level: float) -> str:
    """Return a table with a block per metric and a line per method, followed by why values are missing."""
    interval = f"{100 * level:g} % interval"
    header = ["", "value", interval, f"Δ vs {baseline}", interval, ""]
    rows = [header]
    for metric in dict.fromkeys(one.metric for one in estimates):
        block = [one for one in estimates if one.metric == metric]
        # The metric has a line of its own, so that the table of the usual methods fits into 80 columns.
        rows.append([f"{metric} {ARROWS[block[0].better]}", *[""] * (len(header) - 1)])
        rows += [_format_row(one) for one in block]
    reasons = dict.fromkeys((one.method, one.reason) for one in estimates if one.reason)
    return "\n".join([format_table(rows), *(f"- {method}: {reason}" for method, reason in reasons)])


def _format_row(one: Estimate) -> list[str]:
    value = "-" if one.value is None else f"{one.value:.4f}"
    difference = "" if one.difference is None else f"{one.difference:+.4f}"
    intervals = _format_interval(one.interval, ".4f"), _format_interval(one.difference_interval, "+.4f")
    return [f"  {one.method}", value, intervals[0], difference, intervals[1], one.verdict or ""]


def _format_interval(interval: Interval | None, form: str) -> str:
    return "" if interval is None else f"[{interval.low:{form}}, {interval.high:{form}}]"


def describe_prediction(predict_from: str, top_k: int) -> str:
    """Return which class counts as the prediction, such as 'class predicted from the image'."""
    return f"{'class' if top_k == 1 else f'top-{top_k} classes'} predicted from the {predict_from}"


class EstimateTable:
    """Base of results that consist of estimates."""

    rows: tuple[Estimate, ...]

    def to_arrow(self) -> "pa.Table":
        """Return an Arrow table with a row per estimate."""
        import pyarrow as pa

        text, number, count = pa.string(), pa.float64(), pa.int64()
        intervals = [(one.interval, one.difference_interval) for one in self.rows]
        columns = {
            "group": ([one.group for one in self.rows], text),
            "method": ([one.method for one in self.rows], text),
            "metric": ([one.metric for one in self.rows], text),
            "better": ([one.better for one in self.rows], text),
            "value": ([one.value for one in self.rows], number),
            "low": ([own and own.low for own, _ in intervals], number),
            "high": ([own and own.high for own, _ in intervals], number),
            "difference": ([one.difference for one in self.rows], number),
            "difference_low": ([paired and paired.low for _, paired in intervals], number),
            "difference_high": ([paired and paired.high for _, paired in intervals], number),
            "verdict": ([one.verdict for one in self.rows], text),
            "images": ([one.images for one in self.rows], count),
            "errors": ([one.errors for one in self.rows], count),
            "reason": ([one.reason for one in self.rows], text),
        }
        return arrow_table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas data frame with a row per estimate."""
        return pandas_frame(self.to_arrow())
