"""Running an intensity figure: the AORC of single views against their strength, averaged over directions."""

from dataclasses import replace

import numpy as np

from reproduction.bench import Bench
from reproduction.experiment import Column, Intensity, MethodRow, views_needed
from reproduction.findings import Findings, Row
from reproduction.grid import Grid, ends, percent
from reproduction.needed import Missing
from reproduction.plots import curves_picture
from reproduction.scoring import Cell, cells_of, row_of, scores_of
from secondlook.errors import SecondLookError

METRIC = "aorc_joint"


def run_intensity(intensity: Intensity, bench: Bench) -> Findings:
    """Return one row per column and point of the axis."""
    rows: list[Row] = []
    missing: list[Missing] = []
    for column in intensity.columns:
        lacking = bench.missing_for(column)
        missing += lacking
        if not lacking:
            rows += _curve(intensity, column, bench)
    head = ("column", intensity.axis, "views", "AORC x100", "95 % interval")
    grid = Grid(intensity.title, head, tuple(_grid_row(row) for row in rows))
    pictures = (curves_picture(intensity.name, intensity.title, intensity.axis, rows),) if rows else ()
    return Findings(intensity.title, tuple(rows), (grid,) if rows else (), pictures, tuple(missing))


def _curve(intensity: Intensity, column: Column, bench: Bench) -> list[Row]:
    methods = tuple(MethodRow(text, f"view:{text}") for _, texts in intensity.points for text in texts)
    preds = bench.predictions(column, intensity.part, views_needed(column, methods))
    scores = scores_of(bench, column, preds, methods, "x", intensity.part)
    if scores.missing:
        raise SecondLookError(scores.missing[0].why)
    cells = cells_of(scores, (METRIC,), bench)
    rows = []
    for at, texts in intensity.points:
        if (texts[0], METRIC) in cells:
            method = f"mean of {len(texts)} views" if len(texts) > 1 else texts[0]
            mean = _mean(cells, texts)
            row = row_of(intensity.name, column, intensity.part, scores.correct, method, METRIC, mean)
            rows.append(replace(row, at=at))
    return rows


def _mean(cells: dict[tuple[str, str], Cell], texts: tuple[str, ...]) -> Cell:
    """Return the mean over views; over the same resamplings, so that its interval is that of the mean."""
    chosen = [cells[text, METRIC] for text in texts]
    return Cell(float(np.mean([cell.value for cell in chosen])), np.mean([cell.drawn for cell in chosen], axis=0))


def _grid_row(row: Row) -> tuple[str, ...]:
    return row.column, f"{row.at:g}", row.method, percent(row.value), ends(row.low, row.high)
