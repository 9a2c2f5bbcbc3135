"""Plots of the experiments, drawn with matplotlib from rows and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reproduction.results import Picture, ResultRow
from secondlook.arrays import BoolArray, Float64Array
from secondlook.metrics import aorc_joint, coverage_at, rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Colors that color-blind readers can distinguish."""
MARKERS = "os^D"
"""The marker changes when the palette repeats."""
MAX_POINTS = 2000
"""A curve with more points looks the same and takes longer to draw."""


def plot_gains(name: str, title: str, rows: Sequence[ResultRow]) -> Picture:
    """Plot the gain of each method over MSR(x) with its interval, grouped by column."""
    columns = list(dict.fromkeys(row.column for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))

    def draw(axes: Axes) -> None:
        for position, method in enumerate(methods):
            chosen = [row for row in rows if row.method == method]
            heights = [columns.index(row.column) + (position + 0.5) / len(methods) * 0.8 - 0.4 for row in chosen]
            gains = [100 * (row.gain or 0.0) for row in chosen]
            errors = np.abs(np.array([_gain_interval(row) for row in chosen]).T - gains)
            color, marker = _color(position), MARKERS[position // len(PALETTE) % len(MARKERS)]
            axes.errorbar(gains, heights, xerr=errors, fmt=marker, ms=4, lw=1.2, color=color, label=method)
        axes.axvline(0, color="#666666", lw=0.8)
        axes.set_yticks(range(len(columns)), columns)
        axes.invert_yaxis()
        axes.set_xlabel("gain over MSR(x), AORC x100, 95 % interval")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))

    return Picture(name, f"{title}: gain over MSR(x)", _make_save(draw, height=1.2 + 0.14 * len(rows)))


def _gain_interval(row: ResultRow) -> tuple[float, float]:
    gain = row.gain or 0.0
    return (
        100 * (gain if row.gain_low is None else row.gain_low),
        100 * (gain if row.gain_high is None else row.gain_high),
    )


def plot_curves(name: str, title: str, axis: str, rows: Sequence[ResultRow], *, logarithmic: bool = False) -> Picture:
    """Plot the values of rows against their position on an axis, one curve with a band for each column."""

    def draw(axes: Axes) -> None:
        for position, column in enumerate(dict.fromkeys(row.column for row in rows)):
            points = [row for row in rows if row.column == column]
            at = [row.at or 0.0 for row in points]
            values = [100 * row.value for row in points]
            color = _color(position)
            axes.plot(at, values, "o-", ms=3, lw=1.4, color=color, label=column)
            low = [100 * (row.value if row.low is None else row.low) for row in points]
            high = [100 * (row.value if row.high is None else row.high) for row in points]
            axes.fill_between(at, low, high, color=color, alpha=0.12, lw=0)
        if logarithmic:
            axes.set_xscale("log")
        axes.set_xlabel(axis)
        axes.set_ylabel("AORC x100")
        axes.legend(fontsize=8)

    return Picture(name, title, _make_save(draw))


def plot_risk_coverage(
    name: str, title: str, curves: Mapping[str, tuple[Float64Array, BoolArray]], risk: float
) -> Picture:
    """Plot selective risk against coverage for each method, and the tolerated risk."""

    def draw(axes: Axes) -> None:
        for position, (method, (confidence, correct)) in enumerate(curves.items()):
            curve = rank(correct, confidence).risk_coverage()
            coverage = coverage_at(correct, confidence, risk)
            _draw_line(axes, curve.coverage, 100 * curve.risk, f"{method}: coverage {coverage:.3f}", _color(position))
        axes.axhline(100 * risk, color="#666666", ls="--", lw=0.8)
        axes.set_xlabel("coverage")
        axes.set_ylabel("risk, % of the accepted")
        axes.set_xlim(0, 1)
        axes.legend(fontsize=8)

    return Picture(name, title, _make_save(draw))


def plot_aorc(name: str, title: str, correct: BoolArray, confidence: Float64Array) -> Picture:
    """Plot the joint risk of the worst, the perfect and the method's order, and the area that AORC measures."""

    def draw(axes: Axes) -> None:
        ranking = rank(correct, confidence)
        worst, method, perfect = (
            one.risk_coverage(joint=True) for one in (ranking.worst(), ranking, ranking.perfect())
        )
        value = aorc_joint(correct, confidence)
        axes.fill_between(worst.coverage, 100 * method.risk, 100 * worst.risk, color=PALETTE[1], alpha=0.15, lw=0)
        _draw_line(axes, worst.coverage, 100 * worst.risk, "worst", PALETTE[1])
        _draw_line(axes, method.coverage, 100 * method.risk, f"method: AORC {100 * value:.2f}", PALETTE[2])
        _draw_line(axes, perfect.coverage, 100 * perfect.risk, "perfect", PALETTE[0])
        axes.set_xlabel("coverage")
        axes.set_ylabel("joint risk, % of all images")
        axes.set_xlim(0, 1)
        axes.legend(fontsize=8)

    return Picture(name, title, _make_save(draw))


def _color(position: int) -> str:
    return PALETTE[position % len(PALETTE)]


def _draw_line(axes: Axes, x: Float64Array, y: Float64Array, label: str, color: str) -> None:
    step = max(1, len(x) // MAX_POINTS)
    axes.plot(x[::step], y[::step], lw=1.4, color=color, label=label)


def _make_save(draw: Callable[[Axes], None], *, height: float = 4.0) -> Callable[[Path], None]:
    """Return a function that draws a figure and saves it; matplotlib is imported only when it is called."""

    def save(path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, max(2.5, height)), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.5)
        figure.savefig(path, dpi=120, metadata={"Software": None})

    return save
