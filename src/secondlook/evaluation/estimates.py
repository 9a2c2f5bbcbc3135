"""Metrics of several confidences on the same images, with intervals and paired differences to a baseline."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, is_number, is_whole_number
from secondlook.errors import MetricError
from secondlook.files import Count, PositiveCount
from secondlook.metrics import Interval, Ranking, parse_metrics, rank, resample_metrics
from secondlook.progress import progress_bar
from secondlook.tables import (
    ARROWS,
    TextTable,
    format_difference,
    format_difference_interval,
    format_html,
    format_value,
    pandas_frame,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ALL_IMAGES = "all images"
LINE_WIDTH = 80
MAX_RESAMPLES = 100_000
"""More resamples change at most the third digit of an interval, and take hours."""
MIN_OUTCOMES = 5
"""With fewer errors, or fewer correct predictions, there are no intervals: [1, 1], for example, looks certain."""
OPPOSITES = {"wrong": "correct", "unknown": "known", "wrong or unknown": "correct"}
"""Names of images that count as errors, and of the other images."""
SUMMARY_METRICS, SUMMARY_COLUMNS = ("auroc", "aurc", "coverage_at"), 3
"""Preferred metrics of a summary, and its largest number of metrics."""
ENOUGH_OUTCOMES = 100
"""With fewer errors, or fewer correct predictions, there are no verdicts: intervals of differences are too narrow."""


@dataclass(frozen=True)
class Estimate:
    """A metric of one method on one group of images, with its interval and its difference to the baseline."""

    group: str
    method: str
    metric: str
    better: Literal["higher", "lower"]
    value: float | None
    """None if the metric is undefined on these images; `reason` says why."""
    interval: Interval | None
    difference: float | None
    """Value minus the value of the baseline on the same images; None for the baseline itself."""
    difference_interval: Interval | None
    reason: str | None
    images: PositiveCount
    errors: Count

    def __post_init__(self) -> None:
        if self.errors > self.images:
            raise ValueError(f"{self.errors} errors among {self.images} images")

    @property
    def n_rarer(self) -> int:
        """Number of errors or of correct predictions, whichever is smaller."""
        return min(self.errors, self.images - self.errors)

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"] | None:
        """Comparison with the baseline: 'unclear' if the interval of the difference contains zero.

        None for the baseline itself, and if there are too few errors or too few correct predictions to judge.
        """
        interval = self.difference_interval
        if interval is None or self.n_rarer < ENOUGH_OUTCOMES:
            return None
        if interval.low <= 0 <= interval.high:
            return "unclear"
        return "better" if (interval.low > 0) == (self.better == "higher") else "worse"

    def format_value(self) -> str:
        """Return the value as text, '-' if undefined."""
        return "-" if self.value is None else format_value(self.value)

    def format_difference_interval(self, none: str = "same") -> str:
        """Return the interval of the difference as text; `none` without a difference, "" if unknown."""
        interval = self.difference_interval
        if interval is None or self.n_rarer < MIN_OUTCOMES:
            return ""
        return format_difference_interval(interval.low, interval.high) or none

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as plain values for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def check_resampling(level: float, resamples: int, seed: int) -> None:
    """Check the confidence level of intervals, the number of resamples, and the seed."""
    if not is_number(level) or not 0 < level < 1:
        raise MetricError("is not a confidence level in (0, 1), such as 0.95", argument="level", value=level)
    if not is_whole_number(resamples) or not 0 < resamples <= MAX_RESAMPLES:
        raise MetricError(f"is not a whole number from 1 to {MAX_RESAMPLES:,}", argument="resamples", value=resamples)
    if not is_whole_number(seed) or seed < 0:
        raise MetricError("is not a whole number of at least 0", argument="seed", value=seed)


def estimate_metrics(
    groups: Mapping[str, Mapping[str, tuple[BoolArray, Float64Array]]],
    metrics: Iterable[str],
    *,
    baseline: str,
    scores: Collection[str],
    level: float,
    resamples: int,
    seed: int,
    progress: bool,
) -> tuple[Estimate, ...]:
    """Return every metric of every entry of every group of images.

    `scores` are the names of entries that are not probabilities, even if their values are in [0, 1].
    """
    check_resampling(level, resamples, seed)
    parsed = parse_metrics(metrics)
    if not parsed:
        raise MetricError("is empty; pass at least one metric, such as 'auroc'", argument="metrics")

    def compute(name: str, ranking: Ranking) -> list[tuple[float, str | None]]:
        return [metric.try_compute(ranking, name if name in scores else None) for metric in parsed]

    estimates = []
    with progress_bar("intervals", len(groups) * resamples, "resamples", enabled=progress) as advance:
        for group, entries in groups.items():
            rankings = {name: rank(*entry) for name, entry in entries.items()}
            exact = {name: compute(name, ranking) for name, ranking in rankings.items()}
            if any(min(one.n_errors, one.n_images - one.n_errors) >= MIN_OUTCOMES for one in rankings.values()):
                resampled = resample_metrics(  # shared by all entries
                    entries,
                    lambda name, ranking: [value for value, _ in compute(name, ranking)],
                    resamples,
                    seed,
                    advance,
                )
            else:  # most of a thousand classes have as few
                resampled = dict.fromkeys(entries, np.full((1, len(parsed)), np.nan))
                advance(resamples)
            for (name, ranking), (column, metric) in product(rankings.items(), enumerate(parsed)):
                (value, reason), (reference, missing) = exact[name][column], exact[baseline][column]
                values = resampled[name][:, column]
                difference = paired = None
                if name != baseline and reason is None and missing is None:
                    difference = value - reference
                    paired = Interval.from_resamples(values - resampled[baseline][:, column], level)
                estimate = Estimate(
                    group,
                    name,
                    metric.text,
                    metric.better,
                    value if reason is None else None,
                    Interval.from_resamples(values, level) if reason is None else None,
                    difference,
                    paired,
                    reason,
                    ranking.n_images,
                    ranking.n_errors,
                )
                estimates.append(estimate)
    return tuple(estimates)


def estimate_blocks(estimates: Sequence[Estimate], baseline: str, level: float, kind: str = "wrong") -> list[object]:
    """Return a table with a block per metric and a row per method, with notes: few images, missing values.

    `kind` is the name of images that count as errors.
    """
    interval = f"{100 * level:g} % interval"
    header = ["", "value", interval, f"Δ vs {baseline}", interval, ""]
    rows = [header]
    for metric in dict.fromkeys(one.metric for one in estimates):
        block = [one for one in estimates if one.metric == metric]
        # The metric has a separate line, to fit the table of the usual methods into 80 columns.
        rows.append([f"{metric} {ARROWS[block[0].better]}", *[""] * (len(header) - 1)])
        rows += [_format_row(one) for one in block]
    fewest = min(estimates, key=lambda one: one.n_rarer)
    notes = [_note_scarcity(fewest, kind)] if fewest.n_rarer < ENOUGH_OUTCOMES else []
    return [*notes, TextTable(rows), *_list_reasons(estimates)]


def summary_blocks(estimates: Sequence[Estimate], baseline: str) -> list[object]:
    """Return a table with a column per metric and a row per method, with the intervals of differences below each."""
    metrics = list(dict.fromkeys(one.metric for one in estimates))
    if len(metrics) > SUMMARY_COLUMNS:
        known = [one for one in metrics if one.partition(":")[0] in SUMMARY_METRICS]
        metrics = (known or metrics)[:SUMMARY_COLUMNS]
    shown = {(one.method, one.metric): one for one in estimates if one.metric in metrics}
    methods = list(dict.fromkeys(one.method for one in estimates))
    rows = [["", *(f"{metric} {ARROWS[shown[methods[0], metric].better]}" for metric in metrics)]]
    for method in methods:
        cells = [shown[method, metric] for metric in metrics]
        rows.append([method, *(one.format_value() for one in cells)])
        differences = [one.format_difference_interval() for one in cells]
        rows += [[f"  vs {baseline}", *differences]] if any(differences) else []
    return [TextTable(rows), *_list_reasons(shown.values())]


def describe_scarcity(one: Estimate, kind: str) -> tuple[str, str]:
    """Return the number of errors or of correct predictions, whichever is smaller, and the advice, as text."""
    rare = kind if one.errors == one.n_rarer else OPPOSITES[kind]
    number = f"only {one.n_rarer}" if one.n_rarer else "none"
    counts = f"{number} of {one.images:,} image{'s' * (one.images != 1)} {'is' if one.n_rarer <= 1 else 'are'}"
    return f"{counts} {rare}", f"use more labeled images, so that at least {ENOUGH_OUTCOMES} are {rare}"


def _note_scarcity(one: Estimate, kind: str) -> str:
    counts, needed = describe_scarcity(one, kind)
    if one.n_rarer < MIN_OUTCOMES:
        note = f"Too few to judge: {counts}; {needed}."
    else:
        note = f"No verdicts: {counts}, so intervals of differences are too narrow; {needed}."
    return wrap_line(note)


def wrap_line(text: str) -> str:
    """Wrap a text to the width of a table of the usual methods."""
    return textwrap.fill(text, LINE_WIDTH, break_on_hyphens=False)


def _list_reasons(estimates: Iterable[Estimate]) -> list[str]:
    reasons = dict.fromkeys((one.method, one.reason) for one in estimates if one.reason)
    return [f"- {method}: {why}" for method, why in reasons]


def _format_row(one: Estimate) -> list[str]:
    difference = "" if one.difference is None else format_difference(one.difference)
    own, paired = "", one.format_difference_interval(none="")
    if one.n_rarer >= MIN_OUTCOMES and one.interval is not None:
        own = f"[{format_value(one.interval.low)}, {format_value(one.interval.high)}]"
    return [f" {one.method}", one.format_value(), own, difference, paired, (one.verdict or "") if paired else ""]


class EstimateTable(ABC):
    """Base of results that consist of estimates; `print` and notebooks show tables."""

    rows: tuple[Estimate, ...]

    @abstractmethod
    def _blocks(self) -> list[object]: ...

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def __repr__(self) -> str:
        """Return two lines: the size of the evaluation, and the first metric of each method on all images."""
        first = self.rows[0]
        methods, metrics = ({getattr(one, name) for one in self.rows} for name in ("method", "metric"))
        shown = [one for one in self.rows if (one.group, one.metric) == (first.group, first.metric)]
        return (
            f"{type(self).__name__}: {len(methods)} methods x {len(metrics)} metrics on {first.images:,} images\n"
            f"{first.metric} {ARROWS[first.better]}: {', '.join(f'{one.method} {one.format_value()}' for one in shown)}"
        )

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain values for JSON."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "rows"}  # type: ignore[arg-type]
        return {**plain, "rows": [one.to_dict() for one in self.rows]}

    def to_arrow(self) -> "pa.Table":
        """Return an Arrow table with a row per estimate."""
        import pyarrow as pa

        numbers = ("value", "low", "high", "difference", "difference_low", "difference_high")
        types = {name: pa.string() for name in ("group", "method", "metric", "better")}
        types |= {name: pa.float64() for name in numbers}
        types |= {"verdict": pa.string(), "images": pa.int64(), "errors": pa.int64(), "reason": pa.string()}
        rows = [one.to_dict() for one in self.rows]
        for row, one in zip(rows, self.rows, strict=True):
            for prefix, interval in (("", one.interval), ("difference_", one.difference_interval)):
                row[f"{prefix}low"], row[f"{prefix}high"] = interval and interval.low, interval and interval.high
        return pa.Table.from_pylist(rows, pa.schema(types))

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas data frame with a row per estimate."""
        return pandas_frame(self.to_arrow())
