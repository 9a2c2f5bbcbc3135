"""The plots of a report as pictures to put elsewhere: PNG and SVG, drawn without a screen."""

import io
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from secondlook.report.findings import Findings
from secondlook.report.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#d55e00", "#0072b2", "#009e73", "#aa4499", "#56b4e9", "#e69f00", "#332288", "#777777")
"""Told apart with any kind of color vision; the page uses the same."""
RIGHT, WRONG, REFERENCE = "#6c88a8", "#c8553d", "#888888"
CLASSES_DRAWN = 60
"""More names than these cannot be read; the table has all of them."""
FORMATS = ("png", "svg")
TOP_OF_RISK = 1.5
"""The plot of risk ends at this many times the error rate: above it there is only the worst order."""


def static_plots(findings: Findings) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each plot, as PNG and as SVG."""
    import matplotlib

    # The salt makes an SVG the same in every run; a class named "$5" is no formula.
    settings = matplotlib.rc_context({"svg.hashsalt": "secondlook", "text.parse_math": False})
    with settings, warnings.catch_warnings():
        # A class name in a script that the font lacks is drawn as boxes; the page and the CSV have it right.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        for name, draw in DRAWINGS.items():
            figure = draw(findings)
            for suffix in FORMATS:
                yield f"{name}.{suffix}", _saved(figure, suffix)


def risk_coverage_figure(findings: Findings) -> "Figure":
    """Draw risk over coverage: every method with its band, the perfect and the worst order."""
    study = findings.study
    figure, axes = _axes(7.2, 4.4)
    for color, (name, curve) in zip(_colors(len(findings.curves)), findings.curves.items(), strict=True):
        axes.fill_between(100 * curve.band_coverage, 100 * curve.low, 100 * curve.high, color=color, alpha=0.12, lw=0)
        axes.plot(100 * curve.accepted / study.n_images, 100 * curve.risk, color=color, lw=1.6, label=name)
    coverage = np.linspace(1 / study.n_images, 1, 500)
    for label, style, risk in (
        ("perfect", ":", np.maximum(0, 1 - (1 - study.error_rate) / coverage)),
        ("worst", "--", np.minimum(1, study.error_rate / coverage)),
    ):
        axes.plot(100 * coverage, 100 * risk, color=REFERENCE, lw=1.2, ls=style, label=label)
    axes.set(xlabel="coverage (%)", ylabel="risk: errors among the accepted (%)", xlim=(0, 100))
    axes.set_ylim(0, 100 * highest_risk_drawn(study))
    axes.legend(frameon=False)
    return figure


def highest_risk_drawn(study: Study) -> float:
    """Return where the axis of risk ends."""
    return min(1.0, max(TOP_OF_RISK * study.error_rate, 0.01))


def histogram_figure(findings: Findings) -> "Figure":
    """Draw, for each method, how many right (up) and wrong (down) answers have which confidence."""
    figure, panels = _panels(len(findings.histograms), 2.0)
    for axes, (name, one) in zip(panels, findings.histograms.items(), strict=True):
        middle, width = (one.edges[:-1] + one.edges[1:]) / 2, np.diff(one.edges)
        axes.bar(middle, one.right, width, color=RIGHT, label="right")
        axes.bar(middle, -one.wrong, width, color=WRONG, label="wrong")
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
        axes.set(title=name, ylabel="images (log)")
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("confidence")
    return figure


def reliability_figure(findings: Findings) -> "Figure":
    """Draw accuracy against confidence for the methods that are probabilities."""
    figure, axes = _axes(4.8, 4.6)
    axes.plot([0, 1], [0, 1], color=REFERENCE, lw=1.2, ls=":", label="as it should be")
    colors = dict(zip(findings.study.confidences, _colors(len(findings.study.confidences)), strict=True))
    for name, curve in findings.reliability.items():
        axes.plot(curve.confidence, curve.accuracy, color=colors[name], marker="o", ms=4, lw=1.4, label=name)
    axes.set(xlabel="mean confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False)
    return figure


def class_figure(findings: Findings) -> "Figure":
    """Draw the error rate of each class, and what is left of it among the accepted."""
    classes = sorted(findings.classes, key=lambda one: one.error_rate)[-CLASSES_DRAWN:]
    figure, axes = _axes(7.2, max(2.5, 0.28 * len(classes) + 1.2))
    if len(classes) < len(findings.classes):
        axes.set_title(f"the {len(classes)} of {len(findings.classes):,} classes with most errors", loc="left")
    places = np.arange(len(classes))
    axes.barh(places, [100 * one.error_rate for one in classes], color=REFERENCE, alpha=0.5, label="all answers")
    left = [100 * (one.risk or 0.0) for one in classes]
    axes.barh(places, left, height=0.4, color=WRONG, label=f"accepted at {100 * findings.risk:g} % risk")
    axes.set_yticks(places, [one.name for one in classes])
    axes.set(xlabel="errors (%)")
    axes.legend(frameon=False)
    return figure


def view_figure(findings: Findings) -> "Figure":
    """Draw how each view alone finds errors, and how AUROC changes when it is left out."""
    figure, (alone, change) = _side_by_side(max(2.5, 0.28 * len(findings.views) + 1.2))
    places = np.arange(len(findings.views))[::-1]
    alone.set_yticks(places, [one.text for one in findings.views])
    for place, one in zip(places, findings.views, strict=True):
        if one.auroc_alone is not None:
            alone.plot(100 * one.auroc_alone, place, "o", color=COLORS[1], ms=5)
        if one.change is not None:
            change.plot(100 * one.change, place, "o", color=COLORS[1], ms=5)
        if one.change_interval is not None:
            ends = 100 * one.change_interval.low, 100 * one.change_interval.high
            change.plot(ends, (place, place), color=COLORS[1], lw=1.2)
    change.axvline(0, color=REFERENCE, lw=1)
    change.set_yticks(places, [])
    alone.set_xlabel("AUROC of the view alone (%)")
    change.set_xlabel("change of AUROC without it (points)")
    return figure


DRAWINGS: "dict[str, Callable[[Findings], Figure]]" = {
    "risk-coverage": risk_coverage_figure,
    "histograms": histogram_figure,
    "reliability": reliability_figure,
    "classes": class_figure,
    "views": view_figure,
}
N_PLOTS = len(DRAWINGS) * len(FORMATS)


def _colors(count: int) -> list[str]:
    return [COLORS[place % len(COLORS)] for place in range(count)]


def _axes(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    _calm(axes)
    return figure, axes


def _panels(count: int, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height * count + 0.6), layout="constrained")
    panels = [figure.add_subplot(count, 1, place + 1) for place in range(count)]
    for axes in panels:
        _calm(axes)
    return figure, panels


def _side_by_side(height: float) -> "tuple[Figure, tuple[Axes, Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, height), layout="constrained")
    first, second = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    _calm(first)
    _calm(second)
    return figure, (first, second)


def _calm(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)


def _saved(figure: "Figure", suffix: str) -> bytes:
    file = io.BytesIO()
    if suffix == "svg":
        figure.savefig(file, format="svg", metadata={"Date": None})
    else:
        figure.savefig(file, format="png", dpi=144)
    return file.getvalue()
