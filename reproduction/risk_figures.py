"""Running the figures about risk: curves over coverage with the gain at a tolerated risk, and AORC explained."""

from dataclasses import replace

from reproduction.bench import Bench
from reproduction.comparing import BASELINE
from reproduction.experiment import Column, MethodRow, MetricExplained, PartName, RiskCoverage, views_needed
from reproduction.findings import Findings, Row
from reproduction.grid import Grid, percent, signed
from reproduction.plots import aorc_picture, risk_coverage_picture
from reproduction.scoring import Scores, cells_of, row_of, scores_of
from secondlook.arrays import BoolArray, Float64Array
from secondlook.metrics import joint_risk_coverage, rank, risk_at


def run_risk_coverage(figure: RiskCoverage, bench: Bench) -> Findings:
    """Return the coverage of each method at the tolerated risk, and what it gains over the baseline in images."""
    missing = bench.missing_for(figure.column)
    if missing:
        return Findings(figure.title, missing=missing)
    scores = _scores(bench, figure.column, figure.methods, figure.part)
    rows = _rows(figure, scores, bench)
    curves = {name: (values, scores.correct) for name, values in scores.confidences.items()}
    picture = risk_coverage_picture(figure.name, figure.title, curves, figure.risk)
    notes = (f"Published: {figure.published}.",) if figure.published else ()
    return Findings(figure.title, rows, (_grid(figure, scores, rows),), (picture,), scores.missing, notes)


def _scores(bench: Bench, column: Column, methods: tuple[MethodRow, ...], part: PartName) -> Scores:
    preds = bench.predictions(column, part, views_needed(column, methods))
    return scores_of(bench, column, preds, methods, "x", part)


def _rows(figure: RiskCoverage, scores: Scores, bench: Bench) -> tuple[Row, ...]:
    cells = cells_of(scores, (f"coverage_at:{figure.risk}", "aorc_joint"), bench)
    rows = []
    for (method, metric), cell in cells.items():
        row = row_of(figure.name, figure.column, figure.part, scores.correct, method, metric, cell)
        if method != BASELINE and (BASELINE, metric) in cells:
            gain = cell.less(cells[BASELINE, metric])
            low, high = gain.ends
            row = replace(row, gain=gain.value, gain_low=low, gain_high=high)
        rows.append(row)
    return tuple(rows)


def _grid(figure: RiskCoverage, scores: Scores, rows: tuple[Row, ...]) -> Grid:
    head = ("method", f"coverage at {figure.risk:.0%} risk", "gain", "images gained", "risk at that coverage",
            "risk of MSR(x) there", "more right images")  # fmt: skip
    covered = [row for row in rows if row.metric.startswith("coverage_at")]
    return Grid(figure.title, head, tuple(_grid_row(row, scores) for row in covered)).filled()


def _grid_row(row: Row, scores: Scores) -> tuple[str, ...]:
    if row.gain is None or row.value == 0:
        return row.method, percent(row.value), "", "", "", "", ""
    own, baseline = (
        risk_at.of(rank(scores.correct, scores.confidences[name]), row.value) for name in (row.method, BASELINE)
    )
    return (
        row.method,
        percent(row.value),
        signed(row.gain),
        f"{round(row.gain * row.images):+,d}",
        percent(own),
        percent(baseline),
        f"{round((baseline - own) * row.value * row.images):+,d}",
    )


def run_metric_explained(figure: MetricExplained, bench: Bench) -> Findings:
    """Return the curves of the worst, the perfect and the method's order on joint risk, and their areas."""
    missing = bench.missing_for(figure.column)
    if missing:
        return Findings(figure.title, missing=missing)
    scores = _scores(bench, figure.column, (figure.method,), figure.part)
    confidence = scores.confidences[figure.method.symbol]
    cell = cells_of(scores, ("aorc_joint",), bench)[figure.method.symbol, "aorc_joint"]
    row = row_of(figure.name, figure.column, figure.part, scores.correct, figure.method.symbol, "aorc_joint", cell)
    grid = Grid(figure.title, ("area", "x100"), tuple(_areas(scores.correct, confidence)))
    return Findings(
        figure.title, (row,), (grid,), (aorc_picture(figure.name, figure.title, scores.correct, confidence),)
    )


def _areas(correct: BoolArray, confidence: Float64Array) -> list[tuple[str, str]]:
    """Return the areas whose ratio is AORC, each as text."""
    worst, own, perfect = (
        float(joint_risk_coverage(correct, confidence, order=order).risk.mean())
        for order in ("worst", "given", "perfect")
    )
    ratio = (worst - own) / (worst - perfect)
    return [
        ("under the worst curve", percent(worst)),
        ("under the method's curve", percent(own)),
        ("under the perfect curve", percent(perfect)),
        ("AORC = (worst - method) / (worst - perfect)", percent(ratio)),
    ]
