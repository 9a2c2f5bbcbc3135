"""The plots of the experiments, drawn by matplotlib from plain rows and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reproduction.findings import Picture, Row
from secondlook.arrays import BoolArray, Float64Array
from secondlook.metrics import aorc_joint, coverage_at, joint_risk_coverage, risk_coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""A palette that color-blind readers can tell apart."""
MARKERS = "os^D"
"""Where colors begin again, the marker is another."""
MOST_POINTS = 2000
"""A curve of more points looks the same and takes longer."""


def gains_picture(name: str, title: str, rows: Sequence[Row]) -> Picture:
    """Draw each method's gain over MSR(x) with its interval, a group for each column."""
    columns = list(dict.fromkeys(row.column for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))

    def draw(axes: Axes) -> None:
        for place, method in enumerate(methods):
            of_method = [row for row in rows if row.method == method]
            heights = [columns.index(row.column) + (place + 0.5) / len(methods) * 0.8 - 0.4 for row in of_method]
            gains = [100 * (row.gain or 0.0) for row in of_method]
            errors = np.abs(np.array([_ends_of_gain(row) for row in of_method]).T - gains)
            color, marker = _color(place), MARKERS[place // len(COLORS) % len(MARKERS)]
            axes.errorbar(gains, heights, xerr=errors, fmt=marker, ms=4, lw=1.2, color=color, label=method)
        axes.axvline(0, color="#666666", lw=0.8)
        axes.set_yticks(range(len(columns)), columns)
        axes.invert_yaxis()
        axes.set_xlabel("gain over MSR(x), AORC x100, 95 % interval")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))

    return Picture(name, f"{title}: gain over MSR(x)", _saved(draw, height=1.2 + 0.14 * len(rows)))


def _ends_of_gain(row: Row) -> tuple[float, float]:
    gain = row.gain or 0.0
    return (
        100 * (gain if row.gain_low is None else row.gain_low),
        100 * (gain if row.gain_high is None else row.gain_high),
    )


def curves_picture(name: str, title: str, axis: str, rows: Sequence[Row], *, logarithmic: bool = False) -> Picture:
    """Draw the values of rows over their places on an axis, a curve with a band for each column."""

    def draw(axes: Axes) -> None:
        for place, column in enumerate(dict.fromkeys(row.column for row in rows)):
            points = [row for row in rows if row.column == column]
            at = [row.at or 0.0 for row in points]
            values = [100 * row.value for row in points]
            color = _color(place)
            axes.plot(at, values, "o-", ms=3, lw=1.4, color=color, label=column)
            low = [100 * (row.value if row.low is None else row.low) for row in points]
            high = [100 * (row.value if row.high is None else row.high) for row in points]
            axes.fill_between(at, low, high, color=color, alpha=0.12, lw=0)
        if logarithmic:
            axes.set_xscale("log")
        axes.set_xlabel(axis)
        axes.set_ylabel("AORC x100")
        axes.legend(fontsize=8)

    return Picture(name, title, _saved(draw))


def risk_coverage_picture(
    name: str, title: str, curves: Mapping[str, tuple[Float64Array, BoolArray]], risk: float
) -> Picture:
    """Draw selective risk over coverage for each method, and the tolerated risk."""

    def draw(axes: Axes) -> None:
        for place, (method, (confidence, correct)) in enumerate(curves.items()):
            curve = risk_coverage(correct, confidence)
            covered = coverage_at(correct, confidence, risk)
            _line(axes, curve.coverage, 100 * curve.risk, f"{method}: coverage {covered:.3f}", _color(place))
        axes.axhline(100 * risk, color="#666666", ls="--", lw=0.8)
        axes.set_xlabel("coverage")
        axes.set_ylabel("risk, % of the accepted")
        axes.set_xlim(0, 1)
        axes.legend(fontsize=8)

    return Picture(name, title, _saved(draw))


def aorc_picture(name: str, title: str, correct: BoolArray, confidence: Float64Array) -> Picture:
    """Draw the worst, the perfect and the method's curve of joint risk, and the area that AORC counts."""

    def draw(axes: Axes) -> None:
        worst, own, perfect = (
            joint_risk_coverage(correct, confidence, order=order) for order in ("worst", "given", "perfect")
        )
        value = aorc_joint(correct, confidence)
        axes.fill_between(worst.coverage, 100 * own.risk, 100 * worst.risk, color=COLORS[1], alpha=0.15, lw=0)
        _line(axes, worst.coverage, 100 * worst.risk, "worst", COLORS[1])
        _line(axes, own.coverage, 100 * own.risk, f"method: AORC {100 * value:.2f}", COLORS[2])
        _line(axes, perfect.coverage, 100 * perfect.risk, "perfect", COLORS[0])
        axes.set_xlabel("coverage")
        axes.set_ylabel("joint risk, % of all images")
        axes.set_xlim(0, 1)
        axes.legend(fontsize=8)

    return Picture(name, title, _saved(draw))


def _color(place: int) -> str:
    return COLORS[place % len(COLORS)]


def _line(axes: Axes, x: Float64Array, y: Float64Array, label: str, color: str) -> None:
    step = max(1, len(x) // MOST_POINTS)
    axes.plot(x[::step], y[::step], lw=1.4, color=color, label=label)


def _saved(draw: Callable[[Axes], None], *, height: float = 4.0) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, max(2.5, height)), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.5)
        figure.savefig(path, dpi=120, metadata={"Software": None})

    return save
