"""Metrics of several confidences on the same images, with intervals and paired differences to a baseline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from secondlook.arrays import BoolArray, Float64Array, is_number, is_whole_number
from secondlook.errors import MetricError
from secondlook.files import Count, PositiveCount
from secondlook.metrics import (
    BoundMetric,
    Interval,
    Ranking,
    percentile_interval,
    rank,
    resample_metrics,
)
from secondlook.progress import Advance, ignore_progress
from secondlook.tables import (
    TextTable,
    arrow_table,
    format_difference,
    format_difference_interval,
    format_html,
    format_value,
    pandas_frame,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MAX_RESAMPLES = 100_000
"""More change the third digit of an interval at most, and take hours."""
ARROWS = {"higher": "↑", "lower": "↓"}
MIN_OUTCOMES = 5
"""With fewer errors, or fewer correct predictions, there are no verdicts: up to one in eight would be chance."""
OPPOSITES = {"wrong": "correct", "out of distribution": "in distribution"}
"""What images that count as errors are called, and what the others are."""
ENOUGH_OUTCOMES = 20
"""From so many on, verdicts by chance are as rare as the confidence level says; below, about twice as frequent."""


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
    images: PositiveCount
    errors: Count

    def __post_init__(self) -> None:
        if self.errors > self.images:
            raise ValueError(f"{self.errors} errors among {self.images} images")

    @property
    def n_rarer(self) -> int:
        """Number of errors, or of correct predictions where those are fewer."""
        return min(self.errors, self.images - self.errors)

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"] | None:
        """Comparison with the baseline: 'unclear' if the interval of the difference contains zero.

        None for the baseline itself, and where there are too few errors or too few correct predictions to judge.
        """
        interval = self.difference_interval
        if interval is None or self.n_rarer < MIN_OUTCOMES:
            return None
        if interval.low <= 0 <= interval.high:
            return "unclear"
        return "better" if (interval.low > 0) == (self.better == "higher") else "worse"

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as plain values for JSON."""
        return {**asdict(self), "verdict": self.verdict}


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
        check_resampling(self.level, self.resamples, self.seed)
        if not self.metrics:
            raise MetricError("metrics is empty; pass at least one metric, such as 'auroc'.")


def check_resampling(level: float, resamples: int, seed: int) -> None:
    """Check the confidence level of intervals, the number of resamplings they are percentiles of, and the seed."""
    if not is_number(level) or not 0 < level < 1:
        raise MetricError(f"level is {level!r}; expected a confidence level between 0 and 1, such as 0.95.")
    if not is_whole_number(resamples) or not 0 < resamples <= MAX_RESAMPLES:
        raise MetricError(f"resamples is {resamples!r}; expected a whole number from 1 to {MAX_RESAMPLES:,}.")
    if not is_whole_number(seed) or seed < 0:
        raise MetricError(f"seed is {seed!r}; expected a whole number of at least 0.")


def estimate_metrics(
    group: str,
    entries: Mapping[str, tuple[BoolArray, Float64Array]],
    options: EstimateOptions,
    advance: Advance = ignore_progress,
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


def estimate_blocks(estimates: Sequence[Estimate], baseline: str, level: float, kind: str = "wrong") -> list[object]:
    """Return a table with a block per metric and a line per method, with notes: few images, missing values.

    `kind` is what images that count as errors are called.
    """
    interval = f"{100 * level:g} % interval"
    header = ["", "value", interval, f"Δ vs {baseline}", interval, ""]
    rows = [header]
    for metric in dict.fromkeys(one.metric for one in estimates):
        block = [one for one in estimates if one.metric == metric]
        # The metric has a line of its own, so that the table of the usual methods fits into 80 columns.
        rows.append([f"{metric} {ARROWS[block[0].better]}", *[""] * (len(header) - 1)])
        rows += [_format_row(one) for one in block]
    fewest = min(estimates, key=lambda one: one.n_rarer)
    reasons = dict.fromkeys((one.method, one.reason) for one in estimates if one.reason)
    return [*_describe_scarcity(fewest, kind), TextTable(rows), *(f"- {method}: {why}" for method, why in reasons)]


def _describe_scarcity(one: Estimate, kind: str) -> list[str]:
    """Return a sentence where there are few errors or few correct predictions."""
    if one.n_rarer >= ENOUGH_OUTCOMES:
        return []
    rare = kind if one.errors == one.n_rarer else OPPOSITES[kind]
    number = f"only {one.n_rarer}" if one.n_rarer else "none"
    counts = f"{number} of {one.images:,} image{'s' * (one.images != 1)} {'is' if one.n_rarer <= 1 else 'are'}"
    needed = f"use more labeled images, so that at least {ENOUGH_OUTCOMES} are {rare}."
    if one.n_rarer < MIN_OUTCOMES:
        return [f"Nothing can be judged from so few: {counts} {rare}; {needed}"]
    return [f"Judge with care: {counts} {rare}, so a verdict is chance about twice as often as it should be; {needed}"]


def _format_row(one: Estimate) -> list[str]:
    value = "-" if one.value is None else format_value(one.value)
    difference = "" if one.difference is None else format_difference(one.difference)
    own = paired = ""
    if one.n_rarer >= MIN_OUTCOMES:  # an interval from fewer, such as [1, 1], would look certain
        if one.interval is not None:
            own = f"[{format_value(one.interval.low)}, {format_value(one.interval.high)}]"
        if one.difference_interval is not None:
            paired = format_difference_interval(one.difference_interval.low, one.difference_interval.high)
    return [f" {one.method}", value, own, difference, paired, (one.verdict or "") if paired else ""]


def describe_prediction(predict_from: str, top_k: int) -> str:
    """Return which class counts as the prediction, such as 'class predicted from the image'."""
    return f"{'class' if top_k == 1 else f'top-{top_k} classes'} predicted from the {predict_from}"


class EstimateTable:
    """Base of results that consist of estimates; `print` shows tables, and so does a notebook."""

    rows: tuple[Estimate, ...]

    def _blocks(self) -> list[object]:
        """Return the texts and tables of the result."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

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
