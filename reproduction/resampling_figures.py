"""Running a study of BS(D): how many resamplings are enough, and how much the window matters."""

import numpy as np

from reproduction.bench import Bench
from reproduction.experiment import Column, ResamplingStudy, views_needed
from reproduction.findings import Findings, Row
from reproduction.grid import Grid, ends, percent
from reproduction.needed import Missing
from reproduction.paper_tables import MEAN
from reproduction.plots import curves_picture
from secondlook.arrays import Float64Array
from secondlook.estimators import default_resamplings, other_class_mass, plurality_scores, view_resampling_counts
from secondlook.metrics import aorc_joint
from secondlook.predictions import Predictions
from secondlook.progress import Advance, progress_bar


def run_resampling_study(study: ResamplingStudy, bench: Bench) -> Findings:
    """Return for each number of resamplings, and for each window, the mean AORC over seeds and its range."""
    rows: list[Row] = []
    missing: list[Missing] = []
    for column in study.columns:
        lacking = bench.missing_for(column)
        missing += lacking
        if not lacking:
            rows += _rows(study, column, bench)
    head = ("column", "varied", "at", "AORC x100, mean over seeds", "least to greatest over seeds")
    grid = Grid(study.title, head, tuple(_grid_row(row) for row in rows))
    pictures = tuple(
        curves_picture(f"{study.name}-{varied}", f"{study.title} ({varied})", varied, chosen, logarithmic=True)
        for varied in ("resamplings", "window")
        if (chosen := [row for row in rows if row.method == f"BS(D), {varied}"])
    )
    return Findings(study.title, tuple(rows), (grid,) if rows else (), pictures, tuple(missing))


def _rows(study: ResamplingStudy, column: Column, bench: Bench) -> list[Row]:
    preds = bench.predictions(column, study.part, views_needed(column, (MEAN,)))
    default = default_resamplings(preds.n_views, preds.n_members)
    settings = [
        *(("resamplings", count, count, count) for count in study.resamplings),
        *(("window", window, default, window) for window in study.windows),
    ]
    doubts = other_class_mass(preds, "image", column.k)
    total = len(settings) * len(study.seeds)
    with progress_bar(f"{column.title}: BS(D)", total, "rankings", enabled=bench.progress) as advance:
        return [_row(study, column, preds, doubts, *setting, advance) for setting in settings]


def _row(
    study: ResamplingStudy,
    column: Column,
    preds: Predictions,
    doubts: Float64Array,
    varied: str,
    at: int,
    resamplings: int,
    window: int,
    advance: Advance,
) -> Row:
    correct = preds.correct(top_k=column.k)
    values = []
    for seed in study.seeds:
        counts = view_resampling_counts(doubts.shape[1], resamplings, seed)
        values.append(aorc_joint(correct, plurality_scores(doubts, counts, window)))
        advance(1)
    return Row(
        piece=study.name,
        column=column.title,
        part=study.part,
        images=preds.n_images,
        errors=int((~correct).sum()),
        by="x",
        k=column.k,
        method=f"BS(D), {varied}",
        metric="aorc_joint",
        value=float(np.mean(values)),
        low=min(values),
        high=max(values),
        at=float(at),
    )


def _grid_row(row: Row) -> tuple[str, ...]:
    return row.column, row.method.removeprefix("BS(D), "), f"{row.at:g}", percent(row.value), ends(row.low, row.high)
