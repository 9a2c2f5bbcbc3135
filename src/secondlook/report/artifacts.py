"""The results of a report as files: every table as CSV at full precision, and every plot as PNG and SVG."""

import io
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import Array
from secondlook.metrics import Interval
from secondlook.report.displays import CORRECT, REFERENCE, WRONG, looks_ticks, risk_axis_end
from secondlook.report.findings import Findings
from secondlook.report.operating_points import NOTHING_ACCEPTED, point_at_risk
from secondlook.tables import format_csv_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Iterable[Sequence[object]]


def render_tables(findings: Findings, facts: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the bytes of each table."""
    yield "facts.csv", _encode_csv(("fact", "value"), facts.items())
    for name, (columns, list_rows) in TABLES.items():
        methods = tuple(findings.study.confidences) if name == "galleries" else ()
        yield f"{name}.csv", _encode_csv((*columns.split(), *methods), list_rows(findings))


def _encode_csv(columns: Sequence[str], rows: Rows) -> bytes:
    return "".join(map(format_csv_row, itertools.chain([columns], rows))).encode("utf-8")


def _zip_arrays(method: str, *columns: Array) -> Rows:
    return ((method, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _method_rows(findings: Findings) -> Rows:
    for row in findings.evaluation.rows:
        value = (row.value, *_ends(row.interval), row.difference, *_ends(row.difference_interval))
        yield row.method, row.metric, row.better, *value, row.verdict, row.images, row.errors, row.reason


def _curve_rows(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        yield from _zip_arrays(name, curve.accepted, curve.accepted / findings.study.n_images, curve.risk)


def _band_rows(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        yield from _zip_arrays(name, curve.band_coverage, curve.low, curve.high)


def _operating_point_rows(findings: Findings) -> Rows:
    study = findings.study
    for name, ranking in study.rankings.items():
        certified = findings.certified[name]
        for index, risk in enumerate(findings.risks.tolist()):
            point = point_at_risk(ranking, risk)
            guaranteed = NOTHING_ACCEPTED if isinstance(certified, str) else certified[index]
            cells = astuple(guaranteed) if guaranteed.accepted else (None, None, None)
            counts = (point.accepted, study.n_images - point.accepted, point.errors)
            yield name, risk, point.threshold, *counts, *cells


def _adaptive_rows(findings: Findings) -> Rows:
    if isinstance(findings.adaptive, str):
        return
    for point in findings.adaptive.points:
        yield *point, point == findings.adaptive.chosen


def _histogram_rows(findings: Findings) -> Rows:
    for name, one in findings.histograms.items():
        yield from _zip_arrays(name, one.edges[:-1], one.edges[1:], one.correct, one.wrong)


def _reliability_rows(findings: Findings) -> Rows:
    for name, curve in findings.reliability.items():
        yield from _zip_arrays(name, curve.confidence, curve.accuracy, curve.images)


def _class_rows(findings: Findings) -> Rows:
    for one in findings.classes:
        counts = (one.images, one.errors, one.error_rate, one.accepted, one.coverage, one.errors_accepted)
        yield one.name, *counts, one.risk, one.auroc


def _view_rows(findings: Findings) -> Rows:
    for one in findings.views:
        yield one.text, one.accuracy, one.auroc_alone, one.auroc_without, one.change, *_ends(one.change_interval)


def _confusion_rows(findings: Findings) -> Rows:
    study, cells = findings.study, findings.cells
    accept = study.confidences[findings.method] >= findings.point.threshold
    columns = (cells.labels, cells.predicted, cells.correct, cells.images, cells.count(accept))
    for label, predicted, *numbers in zip(*(column.tolist() for column in columns), strict=True):
        yield study.class_names[label], study.class_names[predicted], *numbers


def _gallery_rows(findings: Findings) -> Rows:
    study, adaptive = findings.study, findings.adaptive
    for index in findings.images.tolist():
        label, predicted = (study.class_names[classes[index]] for classes in (study.preds.labels, study.leading))
        accepted = bool(study.confidences[findings.method][index] >= findings.point.threshold)
        confidences = (float(values[index]) for values in study.confidences.values())
        given = int(study.fitted.judged[index])
        looks = None if isinstance(adaptive, str) else int(adaptive.looks[index]) or None
        decision = (bool(study.correct[index]), accepted, looks)
        yield study.preds.ids[index], given, label, predicted, *decision, *confidences


TABLES: dict[str, tuple[str, Callable[[Findings], Rows]]] = {
    "methods": (
        "method metric better value low high difference difference_low difference_high verdict images errors reason",
        _method_rows,
    ),
    "risk-coverage": ("method accepted coverage risk", _curve_rows),
    "risk-coverage-bands": ("method coverage low high", _band_rows),
    "operating-points": (
        "method tolerated_risk threshold accepted rejected errors_accepted "
        "guaranteed_threshold guaranteed_accepted guaranteed_errors_accepted",
        _operating_point_rows,
    ),
    "adaptive-looking": ("margin looks certified_coverage differing default_tolerance", _adaptive_rows),
    "histograms": ("method from to correct wrong", _histogram_rows),
    "reliability": ("method confidence accuracy images", _reliability_rows),
    "classes": ("class images errors error_rate accepted coverage errors_accepted risk auroc", _class_rows),
    "views": ("view accuracy auroc_alone auroc_without change change_low change_high", _view_rows),
    "confusions": ("label predicted correct images accepted", _confusion_rows),
    "galleries": ("id index label predicted correct accepted looks", _gallery_rows),
    "skipped": ("id reason", lambda findings: findings.study.preds.skipped),
}
"""Columns and rows of each table; that of the galleries also has the confidence of each method."""

COLORS = ("#d55e00", "#0072b2", "#009e73", "#aa4499", "#56b4e9", "#e69f00", "#332288", "#777777")
"""Distinguishable with any kind of color vision; the page uses the same colors."""
LINE_STYLES = ("-", "--", "-.", (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v")
"""Curves differ in dashes and markers as well, for readers and printers without colors; the page uses the same."""
MAX_CLASSES = 60
"""More names would not be legible; the table has all of them."""
PLOT_FORMATS = ("png", "svg")


def render_plots(findings: Findings) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the bytes of each plot, as PNG and as SVG."""
    import matplotlib

    # The salt makes SVG files reproducible; a class named "$5" must not be parsed as a formula.
    settings = matplotlib.rc_context({"svg.hashsalt": "secondlook", "text.parse_math": False})
    with settings, warnings.catch_warnings():
        # Class names in a script that the font lacks are drawn as boxes; the page and the tables show them correctly.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        for name, draw in PLOTS.items():
            figure = draw(findings)
            for suffix in PLOT_FORMATS:
                yield f"{name}.{suffix}", _encode_figure(figure, suffix)


def draw_risk_coverage(findings: Findings) -> "Figure":
    """Draw risk over coverage: every method with its band, and the perfect and the worst ranking."""
    study = findings.study
    figure, (axes,) = _new_figure(7.2, 4.4)
    for place, (name, curve) in enumerate(findings.curves.items()):
        style = _curve_style(place)
        low, high = 100 * curve.low, 100 * curve.high
        axes.fill_between(100 * curve.band_coverage, low, high, color=style["color"], alpha=0.12, lw=0)
        # Curves that nearly coincide have their markers at different places.
        markers = (0.03 + 0.03 * place / len(findings.curves), 0.12)
        coverage = 100 * curve.accepted / study.n_images
        axes.plot(coverage, 100 * curve.risk, **style, markevery=markers, ms=5, lw=1.6, label=name)
    coverage = np.linspace(1 / study.n_images, 1, 500)
    for label, dashes, risk in (
        ("perfect", ":", np.maximum(0, 1 - (1 - study.error_rate) / coverage)),
        ("worst", "--", np.minimum(1, study.error_rate / coverage)),
    ):
        axes.plot(100 * coverage, 100 * risk, color=REFERENCE, lw=1.2, ls=dashes, label=label)
    axes.set(xlabel="coverage (%)", ylabel="risk: error rate among accepted (%)", xlim=(0, 100))
    axes.set_ylim(0, 100 * risk_axis_end(study.error_rate))
    axes.legend(frameon=False)
    return figure


def draw_adaptive_looking(findings: Findings) -> "Figure":
    """Draw the certified coverage over the mean number of looks, with the default tolerance and all looks marked."""
    adaptive = findings.adaptive
    figure, (axes,) = _new_figure(7.2, 4.0)
    axes.set(xlabel="looks per image, on average", ylabel="certified coverage (%)")
    if isinstance(adaptive, str):
        axes.set_title(f"not shown: {adaptive}", loc="left", wrap=True)
        return figure
    full, chosen = adaptive.frontier.all_looks, adaptive.chosen
    looks, coverage = zip(*((point.looks, 100 * point.coverage) for point in adaptive.points), strict=True)
    axes.axhline(100 * full.coverage, color=REFERENCE, lw=1.2, ls=":", label="all looks")
    axes.plot(looks, coverage, color=COLORS[1], marker="s", ms=4, lw=1.6, label=adaptive.method)
    axes.plot(chosen.looks, 100 * chosen.coverage, "o", color=COLORS[0], ms=9, label="default tolerance")
    axes.set_xlim(1, full.looks)
    axes.set_xticks(looks_ticks(findings.study.preds.n_views))
    axes.legend(frameon=False)
    return figure


def draw_histograms(findings: Findings) -> "Figure":
    """Draw the confidence of correct (up) and wrong (down) predictions, for each method."""
    n_methods = len(findings.histograms)
    figure, panels = _new_figure(7.2, 2.0 * n_methods + 0.6, rows=n_methods)
    for axes, (name, histogram) in zip(panels, findings.histograms.items(), strict=True):
        edges = histogram.edges
        middle, width = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
        axes.bar(middle, histogram.correct, width, color=CORRECT, label="correct")
        axes.bar(middle, -histogram.wrong, width, color=WRONG, label="wrong")
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
        axes.set(title=name, ylabel="images (log)")
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("confidence")
    return figure


def draw_reliability(findings: Findings) -> "Figure":
    """Draw accuracy against confidence for the methods whose confidence is a probability."""
    figure, (axes,) = _new_figure(4.8, 4.6)
    axes.plot([0, 1], [0, 1], color=REFERENCE, lw=1.2, ls=":", label="perfectly calibrated")
    places = {name: place for place, name in enumerate(findings.study.confidences)}
    for name, curve in findings.reliability.items():
        axes.plot(curve.confidence, curve.accuracy, **_curve_style(places[name]), ms=4, lw=1.4, label=name)
    axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False)
    return figure


def draw_classes(findings: Findings) -> "Figure":
    """Draw the error rate of each class, over all predictions and over the accepted ones."""
    classes = sorted(findings.classes, key=lambda one: one.error_rate)[-MAX_CLASSES:]
    figure, (axes,) = _new_figure(7.2, max(2.5, 0.28 * len(classes) + 1.2))
    if len(classes) < len(findings.classes):
        axes.set_title(
            f"the {len(classes)} of {len(findings.classes):,} classes with the highest error rates", loc="left"
        )
    positions = np.arange(len(classes))
    axes.barh(positions, [100 * one.error_rate for one in classes], color=REFERENCE, alpha=0.5, label="all predictions")
    risks = [100 * (one.risk or 0.0) for one in classes]
    axes.barh(positions, risks, height=0.4, color=WRONG, label=f"accepted by {findings.method}")
    axes.set_yticks(positions, [one.name for one in classes])
    axes.set(xlabel="error rate (%)")
    axes.legend(frameon=False)
    return figure


def draw_views(findings: Findings) -> "Figure":
    """Draw the AUROC of each view alone, and how the AUROC of the mean changes without it."""
    figure, (alone, change) = _new_figure(8.4, max(2.5, 0.28 * len(findings.views) + 1.2), columns=2)
    positions = np.arange(len(findings.views))[::-1]
    alone.set_yticks(positions, [one.text for one in findings.views])
    for position, one in zip(positions, findings.views, strict=True):
        if one.auroc_alone is not None:
            alone.plot(100 * one.auroc_alone, position, "o", color=COLORS[1], ms=5)
        if one.change is not None:
            change.plot(100 * one.change, position, "o", color=COLORS[1], ms=5)
        if one.change_interval is not None:
            ends = 100 * one.change_interval.low, 100 * one.change_interval.high
            change.plot(ends, (position, position), color=COLORS[1], lw=1.2)
    change.axvline(0, color=REFERENCE, lw=1)
    change.set_yticks(positions, [])
    alone.set_xlabel("AUROC of the view alone (%)")
    change.set_xlabel("change in AUROC without it (percentage points)")
    return figure


PLOTS: "dict[str, Callable[[Findings], Figure]]" = {
    "risk-coverage": draw_risk_coverage,
    "adaptive-looking": draw_adaptive_looking,
    "histograms": draw_histograms,
    "reliability": draw_reliability,
    "classes": draw_classes,
    "views": draw_views,
}
N_PLOTS = len(PLOTS) * len(PLOT_FORMATS)


def _curve_style(place: int) -> dict[str, Any]:
    cycles = (("color", COLORS), ("linestyle", LINE_STYLES), ("marker", MARKERS))
    return {name: values[place % len(values)] for name, values in cycles}


def _new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = [figure.add_subplot(rows, columns, index + 1) for index in range(rows * columns)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def _encode_figure(figure: "Figure", suffix: str) -> bytes:
    file = io.BytesIO()
    if suffix == "svg":
        figure.savefig(file, format="svg", metadata={"Date": None})
    else:
        figure.savefig(file, format="png", dpi=144)
    return file.getvalue()
