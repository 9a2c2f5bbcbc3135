"""Run the figures: intensity of views, risk against coverage, AORC explained, resamplings, and contact sheets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

import secondlook as sl
from reproduction.experiment import (
    Column,
    ContactSheets,
    ImageSubset,
    Intensity,
    MethodRow,
    MetricExplained,
    ResamplingStudy,
    RiskCoverage,
    required_views,
    view_texts,
)
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
from reproduction.paper import MEAN
from reproduction.plots import plot_aorc, plot_curves, plot_risk_coverage
from reproduction.results import (
    Picture,
    PieceResult,
    ResultRow,
    TextTable,
    format_difference,
    format_interval,
    format_percent,
)
from reproduction.workspace import Workspace
from secondlook.arrays import BoolArray, Float64Array
from secondlook.metrics import aorc_joint, rank, risk_at
from secondlook.progress import progress_bar
from secondlook.views import contact_sheet

AORC = "aorc_joint"

T = TypeVar("T")


def _run_columns(
    columns: tuple[Column, ...],
    find_missing: Callable[[Column], tuple[MissingItem, ...]],
    run: Callable[[Column], list[T]],
) -> tuple[list[T], tuple[MissingItem, ...]]:
    """Run all columns with available inputs; return the results, and the missing inputs of the others."""
    results: list[T] = []
    missing: list[MissingItem] = []
    for column in columns:
        absent = find_missing(column)
        missing += absent
        if not absent:
            results += run(column)
    return results, tuple(missing)


def _compute_confidences(
    workspace: Workspace, column: Column, methods: tuple[MethodRow, ...], subset: ImageSubset
) -> ColumnConfidences:
    preds = workspace.collect_predictions(column, subset, required_views(column, methods))
    return compute_confidences(workspace, column, preds, methods, subset)


# --- AORC of single views against their intensity ---


def run_intensity(figure: Intensity, workspace: Workspace) -> PieceResult:
    """Return one row per column and point of the axis."""
    rows, missing = _run_columns(
        figure.columns, workspace.find_missing, lambda column: _compute_intensity_curve(figure, column, workspace)
    )
    if not rows:
        return PieceResult(figure.title, missing=missing)
    head = ("column", figure.axis, "views", "AORC x100", "95 % interval")
    table = TextTable(figure.title, head, tuple(_intensity_table_row(row) for row in rows))
    picture = plot_curves(figure.name, figure.title, figure.axis, rows)
    return PieceResult(figure.title, tuple(rows), (table,), (picture,), missing)


def _compute_intensity_curve(figure: Intensity, column: Column, workspace: Workspace) -> list[ResultRow]:
    methods = tuple(MethodRow(text, f"view:{text}") for _, texts in figure.points for text in texts)
    confidences = _compute_confidences(workspace, column, methods, figure.subset)
    if confidences.missing:
        raise sl.SecondLookError(confidences.missing[0].reason)
    cells = compute_cells(confidences, (AORC,), workspace)
    rows = []
    for at, texts in figure.points:
        if (texts[0], AORC) in cells:
            method = f"mean of {len(texts)} views" if len(texts) > 1 else texts[0]
            cell = _mean_cell([cells[text, AORC] for text in texts])
            row = make_row(figure.name, column, figure.subset, confidences.correct, method, AORC, cell)
            rows.append(replace(row, at=at))
    return rows


def _mean_cell(cells: list[Cell]) -> Cell:
    """Return the mean of cells over the same resamplings, with the interval of the mean."""
    return Cell(float(np.mean([cell.value for cell in cells])), np.mean([cell.resampled for cell in cells], axis=0))


def _intensity_table_row(row: ResultRow) -> tuple[str, ...]:
    return row.column, f"{row.at:g}", row.method, format_percent(row.value), format_interval(row.low, row.high)


# --- Risk against coverage ---


def run_risk_coverage(figure: RiskCoverage, workspace: Workspace) -> PieceResult:
    """Return the coverage of each method at the tolerated risk, and its gain over the baseline in images."""
    missing = workspace.find_missing(figure.column)
    if missing:
        return PieceResult(figure.title, missing=missing)
    confidences = _compute_confidences(workspace, figure.column, figure.methods, figure.subset)
    cells = compute_cells(confidences, (f"coverage_at:{figure.risk}", AORC), workspace)
    rows = tuple(
        add_gain(make_row(figure.name, figure.column, figure.subset, confidences.correct, method, metric, cell), cells)
        for (method, metric), cell in cells.items()
    )
    table = _risk_coverage_table(figure, confidences, rows)
    curves = {symbol: (values, confidences.correct) for symbol, values in confidences.by_method.items()}
    picture = plot_risk_coverage(figure.name, figure.title, curves, figure.risk)
    notes = (f"Published: {figure.published}.",) if figure.published else ()
    return PieceResult(figure.title, rows, (table,), (picture,), confidences.missing, notes)


def _risk_coverage_table(
    figure: RiskCoverage, confidences: ColumnConfidences, rows: tuple[ResultRow, ...]
) -> TextTable:
    head = ("method", f"coverage at {figure.risk:.0%} risk", "gain", "images gained", "risk at that coverage",
            "risk of MSR(x) there", "more right images")  # fmt: skip
    chosen = [row for row in rows if row.metric.startswith("coverage_at")]
    table = TextTable(figure.title, head, tuple(_risk_coverage_table_row(row, confidences) for row in chosen))
    return table.drop_empty_columns()


def _risk_coverage_table_row(row: ResultRow, confidences: ColumnConfidences) -> tuple[str, ...]:
    if row.gain is None or row.value == 0:
        return row.method, format_percent(row.value), "", "", "", "", ""
    risk, baseline_risk = (
        risk_at(confidences.correct, confidences.by_method[symbol], row.value) for symbol in (row.method, BASELINE)
    )
    return (
        row.method,
        format_percent(row.value),
        format_difference(row.gain),
        f"{round(row.gain * row.images):+,d}",
        format_percent(risk),
        format_percent(baseline_risk),
        f"{round((baseline_risk - risk) * row.value * row.images):+,d}",
    )


# --- AORC explained ---


def run_metric_explained(figure: MetricExplained, workspace: Workspace) -> PieceResult:
    """Return the joint risk-coverage curves of the worst, the perfect and the method's order, and their areas."""
    missing = workspace.find_missing(figure.column)
    if missing:
        return PieceResult(figure.title, missing=missing)
    symbol = figure.method.symbol
    confidences = _compute_confidences(workspace, figure.column, (figure.method,), figure.subset)
    correct, confidence = confidences.correct, confidences.by_method[symbol]
    cell = compute_cells(confidences, (AORC,), workspace)[symbol, AORC]
    row = make_row(figure.name, figure.column, figure.subset, correct, symbol, AORC, cell)
    table = TextTable(figure.title, ("area", "x100"), tuple(_area_table_rows(correct, confidence)))
    return PieceResult(figure.title, (row,), (table,), (plot_aorc(figure.name, figure.title, correct, confidence),))


def _area_table_rows(correct: BoolArray, confidence: Float64Array) -> list[tuple[str, str]]:
    """Return the areas that define AORC, as text."""
    ranking = rank(correct, confidence)
    worst, method, perfect = (
        float(one.risk_coverage(joint=True).risk.mean()) for one in (ranking.worst(), ranking, ranking.perfect())
    )
    ratio = (worst - method) / (worst - perfect)
    return [
        ("under the worst curve", format_percent(worst)),
        ("under the method's curve", format_percent(method)),
        ("under the perfect curve", format_percent(perfect)),
        ("AORC = (worst - method) / (worst - perfect)", format_percent(ratio)),
    ]


# --- Number of resamplings and window of BS(D) ---


def run_resampling_study(study: ResamplingStudy, workspace: Workspace) -> PieceResult:
    """Return the mean AORC over seeds and its range, for each number of resamplings and for each window."""
    rows, missing = _run_columns(
        study.columns, workspace.find_missing, lambda column: _compute_resampling_curves(study, column, workspace)
    )
    if not rows:
        return PieceResult(study.title, missing=missing)
    head = ("column", "varied", "at", "AORC x100, mean over seeds", "least to greatest over seeds")
    table = TextTable(study.title, head, tuple(_resampling_table_row(row) for row in rows))
    pictures = tuple(
        plot_curves(f"{study.name}-{varied}", f"{study.title} ({varied})", varied, chosen, logarithmic=True)
        for varied in ("resamplings", "window")
        if (chosen := [row for row in rows if row.method == f"BS(D), {varied}"])
    )
    return PieceResult(study.title, tuple(rows), (table,), pictures, missing)


def _compute_resampling_curves(study: ResamplingStudy, column: Column, workspace: Workspace) -> list[ResultRow]:
    preds = workspace.collect_predictions(column, study.subset, required_views(column, (MEAN,)))
    settings = [
        *(("resamplings", count, count, count) for count in study.resamplings),
        *(("window", window, None, window) for window in study.windows),
    ]
    correct = preds.correct(top_k=column.k)

    def compute_row(varied: str, at: int, resamplings: int | None, window: int) -> ResultRow:
        values = []
        for seed in study.seeds:
            options: dict[str, Any] = {"resamples": resamplings, "window": window, "seed": seed}
            values.append(aorc_joint(correct, sl.confidence(preds, "bootstrap", top_k=column.k, **options)))
            advance(1)
        return _make_resampling_row(study, column, correct, f"BS(D), {varied}", at, values)

    total = len(settings) * len(study.seeds)
    with progress_bar(f"{column.title}: BS(D)", total, "rankings", enabled=workspace.progress) as advance:
        return [compute_row(*setting) for setting in settings]


def _make_resampling_row(
    study: ResamplingStudy, column: Column, correct: BoolArray, method: str, at: int, values: list[float]
) -> ResultRow:
    return ResultRow(
        piece=study.name,
        column=column.title,
        subset=study.subset,
        images=len(correct),
        errors=int((~correct).sum()),
        by="x",
        k=column.k,
        method=method,
        metric=AORC,
        value=float(np.mean(values)),
        low=min(values),
        high=max(values),
        at=float(at),
    )


def _resampling_table_row(row: ResultRow) -> tuple[str, ...]:
    varied = row.method.removeprefix("BS(D), ")
    return row.column, varied, f"{row.at:g}", format_percent(row.value), format_interval(row.low, row.high)


# --- Contact sheets ---


def run_contact_sheets(sheets: ContactSheets, workspace: Workspace) -> PieceResult:
    """Return one sheet for each column with an available data set; no classifier is needed."""
    pictures, missing = _run_columns(
        sheets.columns, workspace.find_missing_data, lambda column: [_draw_sheet(sheets, column, workspace)]
    )
    return PieceResult(sheets.title, pictures=tuple(pictures), missing=missing)


def _draw_sheet(sheets: ContactSheets, column: Column, workspace: Workspace) -> Picture:
    views = sl.ViewSet(list(view_texts(column.views)))
    sheet = contact_sheet(workspace.read_example_image(column, sheets.subset), views)
    name = f"{sheets.name}-{column.data_set}-{column.views}"
    return Picture(name, f"{len(views)} views of an image of {column.title}", sheet.save)
