"""Running a comparison: methods by metrics for each column, beside the published numbers, and contrasts of cells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from reproduction.bench import Bench
from reproduction.experiment import By, Column, Comparison, Contrast, views_needed
from reproduction.findings import Findings, Row
from reproduction.grid import Grid, ends, percent, signed
from reproduction.needed import Missing
from reproduction.plots import gains_picture
from reproduction.published import METRICS, published_value
from reproduction.scoring import Cell, Scores, cells_of, row_of, scores_of

BASELINE = "MSR(x)"
PRINTED = {name: printed for printed, name in METRICS.items()} | {
    "aorc": "AORC, selective risk",
    "accuracy": "accuracy",
}

CellKey = tuple[str, str, str, str]
"""Column, class by, method, metric."""


@dataclass(frozen=True)
class _Outcome:
    rows: tuple[Row, ...]
    cells: Mapping[CellKey, Cell]
    missing: tuple[Missing, ...]


def run_comparison(comparison: Comparison, bench: Bench) -> Findings:
    """Return rows for every column that can be run."""
    outcomes = [_column(comparison, column, bench) for column in comparison.columns]
    rows = tuple(row for outcome in outcomes for row in outcome.rows)
    cells = {key: cell for outcome in outcomes for key, cell in outcome.cells.items()}
    contrasts = tuple(_contrasts(comparison, cells, rows))
    grids = [_grid(comparison, rows, metric, by) for metric in comparison.metrics for by in comparison.by]
    if contrasts:
        grids.append(_contrast_grid(comparison, contrasts))
    gained = [row for row in rows if row.metric == comparison.metrics[0] and row.gain is not None and row.by == "x"]
    return Findings(
        comparison.title,
        (*rows, *contrasts),
        tuple(grid.filled() for grid in grids if grid.rows),
        (gains_picture(f"{comparison.name}-gains", comparison.title, gained),) if gained else (),
        tuple(one for outcome in outcomes for one in outcome.missing),
    )


def _column(comparison: Comparison, column: Column, bench: Bench) -> _Outcome:
    missing = bench.missing_for(column)
    if missing:
        return _Outcome((), {}, missing)
    methods = (*comparison.methods, *column.methods)
    preds = bench.predictions(column, comparison.part, views_needed(column, comparison.methods))
    rows: list[Row] = []
    cells: dict[CellKey, Cell] = {}
    for by in comparison.by:
        scores = scores_of(bench, column, preds, methods, by, comparison.part)
        found = cells_of(scores, comparison.metrics, bench)
        rows += [_row(comparison, column, by, scores, key, found) for key in found if _is_worth_a_row(key)]
        cells |= {(column.title, by, *key): cell for key, cell in found.items()}
        missing += scores.missing
    return _Outcome(tuple(rows), cells, missing)


def _is_worth_a_row(key: tuple[str, str]) -> bool:
    """Whether a cell says something of its own: accuracy is the same for every method."""
    method, metric = key
    return metric != "accuracy" or method == BASELINE


def _row(
    comparison: Comparison,
    column: Column,
    by: By,
    scores: Scores,
    key: tuple[str, str],
    cells: Mapping[tuple[str, str], Cell],
) -> Row:
    method, metric = key
    row = row_of(comparison.name, column, comparison.part, scores.correct, method, metric, cells[key], by)
    printed = published_value(column.published, by, metric, column.k, method)
    if printed is not None:
        row = replace(row, published=printed.value, published_accuracy=printed.accuracy)
    baseline = cells.get((BASELINE, metric))
    if baseline is None or method == BASELINE:
        return row
    gain = cells[key].less(baseline)
    low, high = gain.ends
    printed_baseline = published_value(column.published, by, metric, column.k, BASELINE)
    printed_gain = None if printed is None or printed_baseline is None else printed.value - printed_baseline.value
    return replace(row, gain=gain.value, gain_low=low, gain_high=high, published_gain=printed_gain)


def _contrasts(comparison: Comparison, cells: Mapping[CellKey, Cell], rows: tuple[Row, ...]) -> Iterator[Row]:
    for contrast in comparison.contrasts:
        keys = [(term.column, term.by, term.method, contrast.metric) for term in contrast.terms]
        if all(key in cells for key in keys):
            yield _contrast(comparison, contrast, [cells[key] for key in keys], rows)


def _contrast(comparison: Comparison, contrast: Contrast, cells: list[Cell], rows: tuple[Row, ...]) -> Row:
    signs = np.array([term.sign for term in contrast.terms])
    value = float(signs @ [cell.value for cell in cells])
    low, high = Cell(value, signs @ np.array([cell.drawn for cell in cells])).ends
    # The terms may differ in what counts as an error, so that no one number of errors belongs to the difference.
    return Row(
        piece=f"{comparison.name}-contrasts",
        column=contrast.question,
        part=comparison.part,
        images=next(row.images for row in rows if row.column == contrast.terms[0].column),
        errors=None,
        by="",
        k=1,
        method="difference",
        metric=contrast.metric,
        value=value,
        low=low,
        high=high,
    )


def _grid(comparison: Comparison, rows: tuple[Row, ...], metric: str, by: str) -> Grid:
    title = f"{comparison.title}: {PRINTED[metric]} x100, class by {by}"
    head = ("column", "accuracy", "method", "published", "ours", "95 % interval", "less published", "gain published",
            "gain", "95 % interval of the gain")  # fmt: skip
    chosen = [row for row in rows if row.metric == metric and row.by == by]
    return Grid(title, head, tuple(_grid_row(row) for row in chosen))


def _grid_row(row: Row) -> tuple[str, ...]:
    accuracy = f"{1 - (row.errors or 0) / row.images:.4f}"
    if row.published_accuracy is not None:
        accuracy += f" (published {row.published_accuracy:.3f})"
    return (
        row.column,
        accuracy,
        row.method,
        percent(row.published),
        percent(row.value),
        ends(row.low, row.high),
        signed(row.difference),
        signed(row.published_gain) if row.gain is not None else "",
        signed(row.gain),
        ends(row.gain_low, row.gain_high, sign=True),
    )


def _contrast_grid(comparison: Comparison, contrasts: tuple[Row, ...]) -> Grid:
    return Grid(
        f"{comparison.title}: differences on the same images, x100",
        ("difference", "metric", "value", "95 % interval", "verdict"),
        tuple(
            (row.column, PRINTED[row.metric], signed(row.value), ends(row.low, row.high, sign=True), _verdict(row))
            for row in contrasts
        ),
    )


def _verdict(row: Row) -> str:
    if row.low is None or row.high is None or row.low <= 0 <= row.high:
        return "unclear"
    return "above zero" if row.low > 0 else "below zero"
