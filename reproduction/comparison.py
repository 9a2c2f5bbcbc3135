"""Run a comparison: methods by metrics for each column, next to the published numbers, and contrasts of cells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from reproduction.experiment import By, Column, Comparison, Contrast, required_views
from reproduction.inputs import MissingItem
from reproduction.measurements import (
    BASELINE,
    Cell,
    ColumnConfidences,
    add_gain,
    compute_cells,
    compute_confidences,
    make_row,
)
from reproduction.paper import METRIC_NAMES, find_published_value
from reproduction.plots import plot_gains
from reproduction.results import (
    PieceResult,
    ResultRow,
    TextTable,
    format_difference,
    format_interval,
    format_percent,
)
from reproduction.workspace import Workspace

PRINTED_METRICS = {name: printed for printed, name in METRIC_NAMES.items()} | {
    "aorc": "AORC, selective risk",
    "accuracy": "accuracy",
}

CellKey = tuple[str, str, str, str]
"""Column, class by, method, metric."""


@dataclass(frozen=True)
class _ColumnResult:
    rows: tuple[ResultRow, ...]
    cells: Mapping[CellKey, Cell]
    missing: tuple[MissingItem, ...]


def run_comparison(comparison: Comparison, workspace: Workspace) -> PieceResult:
    """Return rows for all columns with available inputs."""
    results = [_run_column(comparison, column, workspace) for column in comparison.columns]
    rows = tuple(row for result in results for row in result.rows)
    cells = {key: cell for result in results for key, cell in result.cells.items()}
    contrasts = tuple(_compute_contrasts(comparison, cells, rows))
    tables = [_metric_table(comparison, rows, metric, by) for metric in comparison.metrics for by in comparison.by]
    if contrasts:
        tables.append(_contrast_table(comparison, contrasts))
    gains = [row for row in rows if row.metric == comparison.metrics[0] and row.gain is not None and row.by == "x"]
    return PieceResult(
        comparison.title,
        (*rows, *contrasts),
        tuple(table.drop_empty_columns() for table in tables if table.rows),
        (plot_gains(f"{comparison.name}-gains", comparison.title, gains),) if gains else (),
        tuple(item for result in results for item in result.missing),
    )


def _run_column(comparison: Comparison, column: Column, workspace: Workspace) -> _ColumnResult:
    missing = workspace.find_missing(column)
    if missing:
        return _ColumnResult((), {}, missing)
    methods, subset = (*comparison.methods, *column.methods), comparison.subset
    preds = workspace.collect_predictions(column, subset, required_views(column, comparison.methods))
    rows: list[ResultRow] = []
    cells: dict[CellKey, Cell] = {}
    for by in comparison.by:
        confidences = compute_confidences(workspace, column, preds, methods, subset, by)
        found = compute_cells(confidences, comparison.metrics, workspace)
        rows += [_make_row(comparison, column, by, confidences, key, found) for key in found if _has_row(key)]
        cells |= {(column.title, by, *key): cell for key, cell in found.items()}
        missing += confidences.missing
    return _ColumnResult(tuple(rows), cells, missing)


def _has_row(key: tuple[str, str]) -> bool:
    """Return whether a cell gets a row: accuracy is the same for every method, so it is listed once."""
    method, metric = key
    return metric != "accuracy" or method == BASELINE


def _make_row(
    comparison: Comparison,
    column: Column,
    by: By,
    confidences: ColumnConfidences,
    key: tuple[str, str],
    cells: Mapping[tuple[str, str], Cell],
) -> ResultRow:
    method, metric = key
    row = make_row(comparison.name, column, comparison.subset, confidences.correct, method, metric, cells[key], by)
    row = add_gain(row, cells)
    published = find_published_value(column.published, by, metric, column.k, method)
    if published is None:
        return row
    return replace(row, published=published.value, published_gain=published.gain, published_accuracy=published.accuracy)


def _compute_contrasts(
    comparison: Comparison, cells: Mapping[CellKey, Cell], rows: tuple[ResultRow, ...]
) -> Iterator[ResultRow]:
    for contrast in comparison.contrasts:
        keys = [(term.column, term.by, term.method, contrast.metric) for term in contrast.terms]
        if all(key in cells for key in keys):
            yield _compute_contrast(comparison, contrast, [cells[key] for key in keys], rows)


def _compute_contrast(
    comparison: Comparison, contrast: Contrast, cells: list[Cell], rows: tuple[ResultRow, ...]
) -> ResultRow:
    signs = np.array([term.sign for term in contrast.terms])
    value = float(signs @ [cell.value for cell in cells])
    low, high = Cell(value, signs @ np.array([cell.resampled for cell in cells])).interval
    # The terms may have different errors, so the difference has no number of errors.
    return ResultRow(
        piece=f"{comparison.name}-contrasts",
        column=contrast.question,
        subset=comparison.subset,
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


def _metric_table(comparison: Comparison, rows: tuple[ResultRow, ...], metric: str, by: By) -> TextTable:
    title = f"{comparison.title}: {PRINTED_METRICS[metric]} x100, class by {by}"
    head = ("column", "accuracy", "method", "published", "ours", "95 % interval", "ours - published", "gain published",
            "gain", "95 % interval of the gain")  # fmt: skip
    chosen = [row for row in rows if row.metric == metric and row.by == by]
    return TextTable(title, head, tuple(_metric_table_row(row) for row in chosen))


def _metric_table_row(row: ResultRow) -> tuple[str, ...]:
    accuracy = f"{1 - (row.errors or 0) / row.images:.4f}"
    if row.published_accuracy is not None:
        accuracy += f" (published {row.published_accuracy:.3f})"
    return (
        row.column,
        accuracy,
        row.method,
        format_percent(row.published),
        format_percent(row.value),
        format_interval(row.low, row.high),
        format_difference(row.difference),
        format_difference(row.published_gain),
        format_difference(row.gain),
        format_interval(row.gain_low, row.gain_high, sign=True),
    )


def _contrast_table(comparison: Comparison, contrasts: tuple[ResultRow, ...]) -> TextTable:
    return TextTable(
        f"{comparison.title}: differences on the same images, x100",
        ("difference", "metric", "value", "95 % interval", "verdict"),
        tuple(
            (
                row.column,
                PRINTED_METRICS[row.metric],
                format_difference(row.value),
                format_interval(row.low, row.high, sign=True),
                _verdict(row),
            )
            for row in contrasts
        ),
    )


def _verdict(row: ResultRow) -> str:
    if row.low is None or row.high is None or row.low <= 0 <= row.high:
        return "unclear"
    return "above zero" if row.low > 0 else "below zero"
