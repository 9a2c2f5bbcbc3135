"""Matplotlib plots of confidences, views and schedules, and the plot files of a report.

matplotlib is in the extra `plots` and is imported only here.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from secondlook.diagnosis import Diagnosis, diagnose_views
from secondlook.errors import ANY, DecisionError, DiagnosisError, MetricError, MissingExtraError, Repair
from secondlook.estimators import METHODS, FittedMethods, find_method
from secondlook.metrics import METRICS, Ranking, rank
from secondlook.policies import Policy, Schedule, read_policy
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.report.findings import Findings
from secondlook.report.study import name_method
from secondlook.tables import format_value, shorten_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from secondlook.report.run import Run

CORRECT, WRONG, REFERENCE = "#6c88a8", "#c8553d", "#888888"
DOTTED: dict[str, Any] = {"color": REFERENCE, "lw": 1.2, "ls": ":"}
STATUS_MARKERS = {"usable": (CORRECT, "o"), "weak": ("#b37a00", "s"), "harmful": (WRONG, "X")}
"""Color and marker of each status; each is distinguishable without the other."""
ROW_HEIGHT = 0.28
COLORS = ("#d55e00", "#0072b2", "#009e73", "#882255", "#2f8fc9", "#b37a00", "#332288", "#777777")
"""Colorblind-safe; the page uses the same colors."""
LINE_STYLES = ("-", "--", "-.", (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v")
"""Curves also differ in dashes and markers, for grayscale; the page uses the same."""
MAX_CLASSES = 60
"""More names would not be legible; the table has all classes."""
FORMATS: dict[str, dict[str, Any]] = {"png": {"dpi": 144}, "svg": {"metadata": {"Date": None}}}

Quantity = Literal["auroc_with_image", "auroc_alone", "accuracy", "agreement", "confident_agreement"]
LABELS = {
    "auroc_with_image": "AUROC of the mean over the image and the view",
    "auroc_alone": "AUROC of the view alone",
    "accuracy": "accuracy of the view alone",
    "agreement": "same prediction as the image itself",
    "confident_agreement": "same prediction, among the confident half of the images",
}
"""Axis label of `draw_views`, by quantity."""


def draw_risk_coverage(
    data: "Predictions | Run | ArrayLike",
    confidence: str | ArrayLike = "mean",
    *,
    ax: "Axes | None" = None,
    name: str | None = None,
    ref_line: bool = True,
    **line_kw: Any,
) -> "Axes":
    """Draw risk (the error rate among accepted images) against coverage (the share of accepted images).

    Parameters
    ----------
    data, confidence
        Labeled predictions or a run, and the name of a method; or `correct`, bool [N], and your own confidence, float
        [N]. With a run, classes are predicted as in the run, and its tuning images are excluded.
    ax
        Axes to draw on, by default those of a new figure.
    name
        Name in the legend, by default the method.
    ref_line
        Whether to draw the curve of the perfect order as a dotted line.
    **line_kw
        Passed to `Axes.plot`.
    """
    ranking, name = _rank(data, confidence, name)
    axes, curve = _use_axes(ax), ranking.risk_coverage()
    top = axes.get_ylim()[1] if axes.lines else 0.0
    axes.plot(curve.coverage, curve.risk, **{"label": _label(name, "aurc", ranking), **line_kw})
    if ref_line:
        perfect = ranking.perfect().risk_coverage()
        _draw_reference(axes, perfect.coverage, perfect.risk, "perfect order")
    _finish_risk_axes(axes, float(curve.risk[-1]), top)
    return axes


def draw_reliability(
    data: "Predictions | Run | ArrayLike",
    confidence: str | ArrayLike = "mean",
    *,
    ax: "Axes | None" = None,
    name: str | None = None,
    bins: int = 15,
    ref_line: bool = True,
    **line_kw: Any,
) -> "Axes":
    """Draw a reliability diagram: accuracy against confidence, in bins of equal width.

    The arguments are those of `draw_risk_coverage`. The dotted diagonal is perfect calibration.
    """
    if isinstance(confidence, str) and not find_method(confidence).is_probability:
        known = ", ".join(one.form for one in METHODS.values() if one.is_probability)
        raise MetricError(f"reliability needs a probability, but {confidence!r} is not one; choose among: {known}.")
    ranking, name = _rank(data, confidence, name)
    curve = ranking.reliability(bins)
    axes = _use_axes(ax)
    options = {"label": _label(name, "ece", ranking, bins=bins), "marker": "o", **line_kw}
    axes.plot(curve.confidence, curve.accuracy, **options)
    if ref_line:
        _draw_reference(axes, (0, 1), (0, 1), "perfectly calibrated")
    axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left")
    return axes


def draw_histogram(
    data: "Predictions | Run | ArrayLike",
    confidence: str | ArrayLike = "mean",
    *,
    ax: "Axes | None" = None,
    name: str | None = None,
    bins: int = 40,
    **bar_kw: Any,
) -> "Axes":
    """Draw histograms of correct (up) and wrong (down) predictions by confidence, on a logarithmic scale.

    The arguments are those of `draw_risk_coverage`; `name` is the title, and `bar_kw` goes to `Axes.bar`.
    """
    ranking, name = _rank(data, confidence, name)
    counts = ranking.histogram(bins)
    axes, edges = _use_axes(ax), counts.edges
    options = {"width": edges[1:] - edges[:-1], "align": "edge", **bar_kw}
    axes.bar(edges[:-1], counts.correct, **{"color": CORRECT, "label": "correct", **options})
    axes.bar(edges[:-1], -counts.wrong, **{"color": WRONG, "label": "wrong", **options})
    axes.axhline(0, color=REFERENCE, lw=0.8)
    axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    axes.set(xlabel="confidence", ylabel="images (log scale)")
    if name is not None:
        axes.set_title(name)
    axes.legend(loc="upper left")
    return axes


def draw_views(
    data: "Diagnosis | Predictions | Run",
    *,
    ax: "Axes | None" = None,
    quantity: Quantity | None = None,
    **scatter_kw: Any,
) -> "Axes":
    """Draw one number per view of a diagnosis, with the image itself as the reference.

    Parameters
    ----------
    data
        A diagnosis, or predictions or a run to diagnose.
    ax
        Axes to draw on, by default those of a new figure with enough height for all views.
    quantity
        'auroc_with_image', 'auroc_alone', 'accuracy', 'agreement' or 'confident_agreement'; by default
        'auroc_with_image', or 'agreement' without labels.
    **scatter_kw
        Passed to `Axes.scatter`.
    """
    if isinstance(data, Predictions):
        data = diagnose_views(data)
    diagnosis = data if isinstance(data, Diagnosis) else diagnose_views(data.predictions, top_k=data.top_k)
    label, values = _read_quantity(diagnosis, quantity)
    axes = _use_axes(ax, height=max(2.4, ROW_HEIGHT * len(values) + 1.2))
    for status, (color, marker) in STATUS_MARKERS.items():
        rows = [place for place, row in enumerate(diagnosis) if row.status == status]
        if rows:
            options = {"color": color, "marker": marker, "label": status, "zorder": 3, **scatter_kw}
            axes.scatter([values[place] for place in rows], rows, **options)
    axes.axvline(values[0], label="the image itself", **DOTTED)
    axes.set_yticks(range(len(values)), [row.view for row in diagnosis], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    return axes


def draw_schedule(policy: Schedule | Policy | str | Path, *, ax: "Axes | None" = None, **line_kw: Any) -> "Axes":
    """Draw agreement with the decisions of all looks against the mean number of looks, on the tuning images.

    `policy` is a schedule, a policy with a schedule, or a policy file. The line shows all margins, the point the margin
    of the schedule; `line_kw` goes to `Axes.plot`.
    """
    loaded = read_policy(policy) if isinstance(policy, str | Path) else policy
    schedule = loaded.schedule if isinstance(loaded, Policy) else loaded
    if schedule is None:
        repair = Repair("certify with {adaptive}", adaptive=True)
        raise DecisionError("the policy has no schedule, since it looks at all views", repair=repair)
    chosen = next((point for point in schedule.frontier if point.margin == schedule.margin), None)
    if chosen is None:
        raise DecisionError(f"the frontier of the schedule lacks its margin, {schedule.margin:g}; fit it again.")
    axes = _use_axes(ax)
    looks, agreement = zip(*((point.looks, 1 - point.differing) for point in schedule.frontier), strict=True)
    options = {"color": CORRECT, "marker": ".", "label": f"{schedule.method}, all margins", **line_kw}
    axes.plot(looks, agreement, **options)
    name = f"margin {schedule.margin:g}: {chosen.looks:.2f} looks, {100 * (1 - chosen.differing):.2f} % equal"
    axes.plot(chosen.looks, 1 - chosen.differing, "o", color=WRONG, ms=9, label=name, zorder=3)
    axes.axhline(1 - schedule.tolerance, label=f"tolerance of {100 * schedule.tolerance:g} %", **DOTTED)
    _finish_looks_axes(axes, schedule.full_looks, "decisions equal to those with all looks")
    return axes


def _finish_risk_axes(axes: "Axes", error_rate: float, top: float = 0.0) -> None:
    """Label the axes, and limit the risk axis: early errors would squash the rest of the curve."""
    end = min(1.0, max(1.5 * error_rate, 0.01, top))
    axes.set(xlabel="coverage", ylabel="risk (error rate among accepted images)", xlim=(0, 1), ylim=(0, end))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_format_share)
    axes.legend(loc="upper left")


def _finish_looks_axes(axes: "Axes", full_looks: int, label: str) -> None:
    """Label the axes, with ticks at one look, all looks, and some in between."""
    steps = max(1, min(full_looks - 1, 6))
    axes.set_xticks([round(1 + (full_looks - 1) * step / steps) for step in range(steps + 1)])
    axes.set(xlabel="mean number of looks", ylabel=label, xlim=(1, full_looks))
    axes.yaxis.set_major_formatter(_format_share)
    axes.legend(loc="lower right")  # the line is above


def _format_share(share: float, _: object) -> str:
    return f"{100 * share:g}%"


def _rank(data: Any, confidence: str | ArrayLike, name: str | None) -> tuple[Ranking, str | None]:
    """Return the ranking of the judged images by a confidence, and its name."""
    if not isinstance(confidence, str):
        return rank(data, confidence), name
    predict_from: PredictFrom = "image"
    preds, top_k, tuning = data, 1, None
    if not isinstance(data, Predictions):
        preds, predict_from, top_k = data.predictions, data.predict_from, data.top_k
        tuning = data.tuning_positions if len(data.tuning_positions) else None
    if not preds.has_labels:
        raise MetricError("the predictions have no labels to draw", repair=Repair("pass {labels}", labels=ANY))
    fitted = FittedMethods.fit(preds, [confidence], tuning=tuning, predict_from=predict_from, top_k=top_k)
    judged = fitted.select_judged(preds)
    correct = judged.correct(predict_from=predict_from, top_k=top_k)
    return rank(correct, fitted.compute(judged, confidence)), confidence if name is None else name


def _read_quantity(diagnosis: Diagnosis, quantity: Quantity | None) -> tuple[str, list[float]]:
    """Return the axis label and the value of each view."""
    if quantity is not None and quantity not in LABELS:
        hint = did_you_mean(quantity, LABELS)
        raise DiagnosisError(f"unknown quantity {quantity!r}; expected one of: {', '.join(LABELS)}.{hint}")
    agreements = {"agreement": "overall", "confident_agreement": "confident"}
    for name in ("auroc_with_image", "agreement") if quantity is None else (quantity,):
        part = agreements.get(name)
        values = [getattr(row.agreement, part) if part else getattr(row, name) for row in diagnosis]
        if None not in values:
            return LABELS[name], values
    needs = "labels" if quantity == "accuracy" else "labels, correct and wrong predictions"
    raise DiagnosisError(f"{quantity!r} needs {needs}, which this diagnosis lacks; choose 'agreement'.")


def _use_axes(ax: "Axes | None", height: float = 4.8) -> "Axes":
    """Return the given axes, or those of a new pyplot figure (`height` in inches), which notebooks display."""
    if ax is not None:
        return ax
    if not has_matplotlib():
        raise MissingExtraError("a plot", "matplotlib", "plots")
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.4, height), layout="constrained")[1]


def _label(name: str | None, metric: str, ranking: Ranking, **options: int) -> str:
    value = f"{metric.upper()} = {format_value(METRICS[metric].ranked(ranking, **options))}"
    return value if name is None else f"{name} ({value})"


def _draw_reference(axes: "Axes", x: ArrayLike, y: ArrayLike, label: str) -> None:
    """Draw a dotted line with at most one legend entry per axes."""
    named = any(line.get_label() == label for line in axes.lines)
    axes.plot(x, y, label="_" if named else label, **DOTTED)


def has_matplotlib() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def render_plots(findings: Findings) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the bytes of each plot of a report, as PNG and as SVG."""
    import matplotlib

    # The salt makes SVG files reproducible; a class named "$5" must not be parsed as a formula.
    settings = matplotlib.rc_context({"svg.hashsalt": "secondlook", "text.parse_math": False})
    with settings, warnings.catch_warnings():
        # Characters missing from the font are drawn as boxes; the page and the tables show them correctly.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        for name, draw in PLOTS.items():
            figure = draw(findings)
            for suffix, options in FORMATS.items():
                file = io.BytesIO()
                figure.savefig(file, format=suffix, **options)
                yield f"{name}.{suffix}", file.getvalue()


def _draw_curves(findings: Findings) -> "Figure":
    study = findings.study
    figure, (axes,) = _new_figure(7.2, 4.4)
    for place, (name, curve) in enumerate(findings.curves.items()):
        style = _curve_style(place)
        axes.fill_between(curve.band_coverage, curve.low, curve.high, color=style["color"], alpha=0.12, lw=0)
        # Shift the markers, so that coinciding curves remain visible.
        markers = (0.03 + 0.03 * place / len(findings.curves), 0.12)
        coverage = curve.accepted / study.n_images
        axes.plot(coverage, curve.risk, **style, markevery=markers, ms=5, lw=1.6, label=name_method(name))
    coverage = np.linspace(1 / study.n_images, 1, 500)
    axes.plot(coverage, np.maximum(0, 1 - (1 - study.error_rate) / coverage), label="perfect", **DOTTED)
    axes.plot(coverage, np.minimum(1, study.error_rate / coverage), label="worst", **{**DOTTED, "ls": "--"})
    _finish_risk_axes(axes, study.error_rate)
    return figure


def _draw_adaptive_looking(findings: Findings) -> "Figure":
    adaptive = findings.adaptive
    figure, (axes,) = _new_figure(7.2, 4.0)
    if isinstance(adaptive, str):
        axes.set_title(f"not shown: {adaptive}", loc="left", wrap=True)
        return figure
    chosen = adaptive.frontier.chosen
    looks, coverage = zip(*((point.looks, point.coverage) for point in adaptive.frontier.certified_points), strict=True)
    axes.axhline(adaptive.frontier.all_looks.coverage, label="all looks", **DOTTED)
    axes.plot(looks, coverage, color=COLORS[1], marker="s", ms=4, lw=1.6, label=name_method(adaptive.method))
    axes.plot(chosen.looks, chosen.coverage, "o", color=COLORS[0], ms=9, label="default tolerance")
    _finish_looks_axes(axes, findings.study.preds.n_views, "certified coverage")
    return figure


def _draw_histograms(findings: Findings) -> "Figure":
    study, n_methods = findings.study, len(findings.study.confidences)
    figure, panels = _new_figure(7.2, 2.0 * n_methods + 0.6, rows=n_methods)
    for axes, (name, values) in zip(panels, study.confidences.items(), strict=True):
        draw_histogram(study.correct, values, ax=axes, name=name_method(name))
    return figure


def _draw_reliability_curves(findings: Findings) -> "Figure":
    study = findings.study
    figure, (axes,) = _new_figure(4.8, 4.6)
    for place, (name, values) in enumerate(study.confidences.items()):
        if name in study.probabilities:
            style = {**_curve_style(place), "ms": 4, "lw": 1.4}
            draw_reliability(study.correct, values, ax=axes, name=name_method(name), **style)
    return figure


def _draw_classes(findings: Findings) -> "Figure":
    classes = sorted(findings.classes, key=lambda one: one.error_rate)[-MAX_CLASSES:]
    figure, (axes,) = _new_figure(7.2, max(2.5, ROW_HEIGHT * len(classes) + 1.2))
    if len(classes) < len(findings.classes):
        figure.suptitle(f"{len(classes)} of {len(findings.classes):,} classes, with the largest error rates")
    positions = np.arange(len(classes))
    axes.barh(positions, [100 * one.error_rate for one in classes], color=REFERENCE, alpha=0.5, label="all predictions")
    risks = [100 * (one.risk or 0.0) for one in classes]
    axes.barh(positions, risks, height=0.4, color=WRONG, label=f"accepted by {name_method(findings.method)}")
    axes.set_yticks(positions, [shorten_name(one.name, 40) for one in classes])
    axes.set(xlabel="error rate (%)", ylim=(-1, len(classes)))
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    return figure


def _draw_contributions(findings: Findings) -> "Figure":
    figure, (alone, change) = _new_figure(8.4, max(2.5, ROW_HEIGHT * len(findings.views) + 1.2), columns=2)
    positions = np.arange(len(findings.views))[::-1]
    alone.set_yticks(positions, [one.text for one in findings.views])
    for position, one in zip(positions, findings.views, strict=True):
        for axes, value in ((alone, one.auroc_alone), (change, one.change)):
            if value is not None:
                axes.plot(100 * value, position, "o", color=COLORS[1], ms=5)
        if one.change_interval is not None:
            ends = 100 * one.change_interval.low, 100 * one.change_interval.high
            change.plot(ends, (position, position), color=COLORS[1], lw=1.2)
    change.axvline(0, color=REFERENCE, lw=1)
    change.set_yticks(positions, [])
    alone.set_xlabel("AUROC of the view alone (%)")
    change.set_xlabel("change in AUROC without it (percentage points)")
    return figure


PLOTS: "dict[str, Callable[[Findings], Figure]]" = {
    "risk-coverage": _draw_curves,
    "adaptive-looking": _draw_adaptive_looking,
    "histograms": _draw_histograms,
    "reliability": _draw_reliability_curves,
    "classes": _draw_classes,
    "views": _draw_contributions,
}
N_PLOTS = len(PLOTS) * len(FORMATS)


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
