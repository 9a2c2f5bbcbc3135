"""The table that an evaluation prints: a block for each metric, a line for each method."""

from collections.abc import Sequence

from secondlook.evaluation.estimate import Estimate
from secondlook.metrics import Interval

ARROWS = {"higher": "↑", "lower": "↓"}


def table_of(estimates: Sequence[Estimate], baseline: str, level: float) -> str:
    """Return the estimates of one part as aligned text, each method with its difference to the baseline."""
    interval = f"{100 * level:g} % interval"
    rows = [["", "value", interval, f"less {baseline}", interval, ""]]
    metrics = list(dict.fromkeys(one.metric for one in estimates))
    for metric in metrics:
        of_metric = [one for one in estimates if one.metric == metric]
        # On a line of its own, so that the rest fits beside the usual methods on 80 columns.
        rows.append([f"{metric} {ARROWS[of_metric[0].better]}", *[""] * (len(rows[0]) - 1)])
        rows += [_cells(one) for one in of_metric]
    return _aligned(rows)


def reasons_of(estimates: Sequence[Estimate]) -> list[str]:
    """Return why numbers are missing, by method."""
    missing = [(one.method, one.reason) for one in estimates if one.reason]
    return [f"- {method}: {reason}" for method, reason in dict.fromkeys(missing)]


def _cells(one: Estimate) -> list[str]:
    value = "-" if one.value is None else f"{one.value:.4f}"
    difference = "" if one.difference is None else f"{one.difference:+.4f}"
    ends = [_ends(one.interval, ".4f"), difference, _ends(one.difference_interval, "+.4f")]
    return [f"  {one.method}", value, *ends, one.verdict or ""]


def _ends(interval: Interval | None, form: str) -> str:
    return "" if interval is None else f"[{interval.low:{form}}, {interval.high:{form}}]"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
