"""Displays: matplotlib plots of a confidence, of the views of a diagnosis and of a schedule."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from numpy.typing import ArrayLike

from secondlook.diagnosis import Diagnosis, diagnose_views
from secondlook.errors import ANY, DecisionError, DiagnosisError, MetricError, Repair
from secondlook.estimators import METHODS, find_method, fit_methods
from secondlook.metrics import (
    Histogram,
    ReliabilityCurve,
    RiskCurve,
    aurc,
    confidence_histogram,
    ece,
    reliability,
    risk_coverage,
)
from secondlook.policies import Policy, Schedule, read_policy
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.tables import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

CORRECT, WRONG, REFERENCE = "#6c88a8", "#c8553d", "#888888"
RISK_AXIS_FACTOR = 1.5
MAX_LOOKS_STEPS = 6
STATUS_MARKERS: dict[str, tuple[str, str]] = {
    "usable": (CORRECT, "o"),
    "weak": ("#e69f00", "s"),
    "harmful": (WRONG, "X"),
}
"""Color and marker of each status: either suffices to tell them apart."""
ROW_HEIGHT = 0.28

Quantity = Literal["auroc_with_image", "auroc_alone", "accuracy", "agreement", "confident_agreement"]
LABELS = {
    "auroc_with_image": "AUROC of the mean over the image and the view",
    "auroc_alone": "AUROC of the view alone",
    "accuracy": "accuracy of the view alone",
    "agreement": "same prediction as the image itself",
    "confident_agreement": "same prediction, among the confident half of the images",
}
"""Label of the axis of `ViewsDisplay`, by quantity."""


class RunLike(Protocol):
    """A run, or anything else with predictions and how classes are predicted from them.

    `tuning_positions` may name images that it has set apart.
    """

    @property
    def predictions(self) -> Predictions: ...  # noqa: D102
    @property
    def predict_from(self) -> PredictFrom: ...  # noqa: D102
    @property
    def top_k(self) -> int: ...  # noqa: D102


class Display:
    """Base of all displays."""

    ax_: "Axes"
    """The axes, after `plot`."""
    figure_: "Figure | SubFigure"
    """Their figure."""

    def _use_axes(self, ax: "Axes | None", height: float = 4.8) -> "Axes":
        """Return the given axes, or those of a new figure of pyplot (`height` in inches), which notebooks show."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(6.4, height), layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax


class ConfidenceDisplay(Display, ABC):
    """Base of displays that are computed from correctness and confidence."""

    needs_probability: ClassVar[bool] = False
    """Whether the confidence must be a probability, not any score."""

    @classmethod
    @abstractmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        **plot_kw: Any,
    ) -> Self:
        """Draw a confidence that you already have; `plot_kw` goes to `plot`. bool [N], float [N]"""

    @classmethod
    def from_predictions(
        cls,
        preds: Predictions,
        method: str = "mean",
        *,
        predict_from: PredictFrom = "image",
        top_k: int = 1,
        tuning: object = None,
        name: str | None = None,
        **plot_kw: Any,
    ) -> Self:
        """Draw a confidence of labeled predictions.

        Parameters
        ----------
        preds
            Labeled predictions.
        method
            Name of a confidence method, such as 'mean'.
        predict_from, top_k
            Whether the class is predicted from the 'image' itself or from the mean over 'views', and how many leading
            classes count as the prediction.
        tuning
            Images that are not drawn, and on which the method is fitted, as in `evaluate`.
        name
            Name in the legend, by default the method.
        **plot_kw
            Passed to `plot`; `ax` are the axes to draw on, by default those of a new figure.
        """
        if not preds.has_labels:
            raise MetricError(
                f"{cls.__name__} needs labels, and these predictions have none",
                repair=Repair("pass {labels} to them", labels=ANY),
            )
        if cls.needs_probability and not find_method(method).is_probability:
            probabilities = ", ".join(one.form for one in METHODS.values() if one.is_probability)
            raise MetricError(
                f"{cls.__name__} needs a probability, and {method!r} is another score; choose one of: {probabilities}."
            )
        fitted = fit_methods(preds, [method], tuning=tuning, predict_from=predict_from, top_k=top_k)
        judged = fitted.select_judged(preds)
        correct, values = judged.correct(predict_from=predict_from, top_k=top_k), fitted.compute(judged, method)
        return cls.from_confidence(correct, values, name=method if name is None else name, **plot_kw)

    @classmethod
    def from_run(cls, run: RunLike, method: str = "mean", *, name: str | None = None, **plot_kw: Any) -> Self:
        """Draw a confidence of the judged images of a run, with classes predicted as in the run."""
        tuning = getattr(run, "tuning_positions", ())
        return cls.from_predictions(
            run.predictions,
            method,
            predict_from=run.predict_from,
            top_k=run.top_k,
            tuning=tuning if len(tuning) else None,
            name=name,
            **plot_kw,
        )


@dataclass(eq=False, repr=False)
class RiskCoverageDisplay(ConfidenceDisplay):
    """Risk (the error rate among accepted images) against coverage (the share of images that are accepted).

    Create it with `from_predictions`, `from_run` or `from_confidence`. After `plot`, `line_`, `ax_` and `figure_` are
    the matplotlib objects.

    Parameters
    ----------
    curve, perfect
        Risk against coverage, and that of the perfect order of the same images.
    aurc
        Area under the curve, for the legend.
    name
        Name in the legend.
    """

    curve: RiskCurve
    perfect: RiskCurve | None = field(default=None, kw_only=True)
    aurc: float | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    line_: "Line2D" = field(init=False)

    @classmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        **plot_kw: Any,
    ) -> Self:
        """Draw the curve of a confidence that you already have; `plot_kw` goes to `plot`. bool [N], float [N]"""
        perfect = risk_coverage(correct, confidence, order="perfect")
        area = aurc(correct, confidence)
        return cls(risk_coverage(correct, confidence), perfect=perfect, aurc=area, name=name).plot(**plot_kw)

    def plot(self, ax: "Axes | None" = None, *, ref_line: bool = True, **line_kw: Any) -> Self:
        """Draw the curve and, as a dotted line, that of the perfect order; `line_kw` goes to `Axes.plot`."""
        from matplotlib.ticker import PercentFormatter

        axes = self._use_axes(ax)
        top = axes.get_ylim()[1] if axes.lines else 0.0
        options = {"label": _describe(self.name, "AURC", self.aurc), **line_kw}
        (self.line_,) = axes.plot(self.curve.coverage, self.curve.risk, **options)
        if ref_line and self.perfect is not None:
            _draw_reference(axes, self.perfect.coverage, self.perfect.risk, "perfect order")
        axes.set(xlabel="coverage", ylabel="risk (error rate among accepted images)", xlim=(0, 1))
        axes.set_ylim(0, max(top, risk_axis_end(float(self.curve.risk[-1]))))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0))
        axes.legend()
        return self


@dataclass(eq=False, repr=False)
class ReliabilityDisplay(ConfidenceDisplay):
    """Accuracy against confidence, in bins of equal width: on the diagonal, the confidence is a probability.

    Create it with `from_predictions`, `from_run` or `from_confidence`. After `plot`, `line_`, `ax_` and `figure_` are
    the matplotlib objects.

    Parameters
    ----------
    curve
        Accuracy and mean confidence of each bin.
    ece
        Expected calibration error, for the legend.
    name
        Name in the legend.
    """

    needs_probability = True
    curve: ReliabilityCurve
    ece: float | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    line_: "Line2D" = field(init=False)

    @classmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        bins: int = 15,
        **plot_kw: Any,
    ) -> Self:
        """Draw the curve of a confidence that you already have; `plot_kw` goes to `plot`. bool [N], float [N]"""
        curve = reliability(correct, confidence, bins=bins)
        return cls(curve, ece=ece(correct, confidence, bins=bins), name=name).plot(**plot_kw)

    def plot(self, ax: "Axes | None" = None, *, ref_line: bool = True, **line_kw: Any) -> Self:
        """Draw the curve and, as a dotted line, the diagonal; `line_kw` goes to `Axes.plot`."""
        axes = self._use_axes(ax)
        options = {"label": _describe(self.name, "ECE", self.ece), "marker": "o", **line_kw}
        (self.line_,) = axes.plot(self.curve.confidence, self.curve.accuracy, **options)
        if ref_line:
            _draw_reference(axes, (0, 1), (0, 1), "perfectly calibrated")
        axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        axes.legend()
        return self


@dataclass(eq=False, repr=False)
class ConfidenceHistogramDisplay(ConfidenceDisplay):
    """The number of correct (up) and of wrong (down) predictions by confidence, on a logarithmic scale.

    Create it with `from_predictions`, `from_run` or `from_confidence`. After `plot`, `bars_` (of correct and of wrong
    predictions), `ax_` and `figure_` are the matplotlib objects.

    Parameters
    ----------
    histogram
        Counts of each bin.
    name
        Title of the axes.
    """

    histogram: Histogram
    name: str | None = field(default=None, kw_only=True)
    bars_: "tuple[BarContainer, BarContainer]" = field(init=False)

    @classmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        bins: int = 40,
        **plot_kw: Any,
    ) -> Self:
        """Draw the histogram of a confidence that you already have; `plot_kw` goes to `plot`. bool [N], float [N]"""
        return cls(confidence_histogram(correct, confidence, bins=bins), name=name).plot(**plot_kw)

    def plot(self, ax: "Axes | None" = None, **bar_kw: Any) -> Self:
        """Draw the bars; `bar_kw` goes to `Axes.bar`."""
        axes = self._use_axes(ax)
        edges, counts = self.histogram.edges, self.histogram
        options = {"width": edges[1:] - edges[:-1], "align": "edge", **bar_kw}
        self.bars_ = (
            axes.bar(edges[:-1], counts.correct, **{"color": CORRECT, "label": "correct", **options}),
            axes.bar(edges[:-1], -counts.wrong, **{"color": WRONG, "label": "wrong", **options}),
        )
        axes.axhline(0, color=REFERENCE, lw=0.8)
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
        axes.set(xlabel="confidence", ylabel="images (log scale)")
        if self.name is not None:
            axes.set_title(self.name)
        axes.legend()
        return self


@dataclass(eq=False, repr=False)
class ViewsDisplay(Display):
    """One number per view of a diagnosis, with the image itself as the reference.

    Create it with `from_predictions` or `from_run`, or from a `Diagnosis` followed by `plot`. After `plot`, `points_`
    (by status), `ax_` and `figure_` are the matplotlib objects.
    """

    diagnosis: Diagnosis
    points_: "dict[str, PathCollection]" = field(init=False)

    @classmethod
    def from_predictions(cls, preds: Predictions, *, top_k: int = 1, **plot_kw: Any) -> Self:
        """Diagnose the views of predictions and draw them; `plot_kw` goes to `plot`."""
        return cls(diagnose_views(preds, top_k=top_k)).plot(**plot_kw)

    @classmethod
    def from_run(cls, run: RunLike, **plot_kw: Any) -> Self:
        """Diagnose the views of a run and draw them; `plot_kw` goes to `plot`."""
        return cls.from_predictions(run.predictions, top_k=run.top_k, **plot_kw)

    def plot(self, ax: "Axes | None" = None, *, quantity: Quantity | None = None, **scatter_kw: Any) -> Self:
        """Draw one row per view.

        Parameters
        ----------
        ax
            Axes to draw on, by default those of a new figure that is high enough for all views.
        quantity
            'auroc_with_image', 'auroc_alone', 'accuracy', 'agreement' or 'confident_agreement'; by default the first
            that the predictions allow: without labels, 'agreement'.
        **scatter_kw
            Passed to `Axes.scatter`.
        """
        label, values = self._read(quantity)
        axes = self._use_axes(ax, height=max(2.4, ROW_HEIGHT * len(values) + 1.2))
        self.points_ = {}
        for status, (color, marker) in STATUS_MARKERS.items():
            rows = [place for place, row in enumerate(self.diagnosis) if row.status == status]
            if rows:
                options = {"color": color, "marker": marker, "label": status, "zorder": 3, **scatter_kw}
                self.points_[status] = axes.scatter([values[place] for place in rows], rows, **options)
        axes.axvline(values[0], color=REFERENCE, lw=1.2, ls=":", label="the image itself")
        axes.set_yticks(range(len(values)), [row.view for row in self.diagnosis], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.grid(axis="y", alpha=0.25)
        axes.legend()
        return self

    def _read(self, quantity: Quantity | None) -> tuple[str, list[float]]:
        """Return the label of the axis and the value of each view."""
        if quantity is not None and quantity not in LABELS:
            hint = did_you_mean(quantity, LABELS)
            raise DiagnosisError(f"unknown quantity {quantity!r}; expected one of: {', '.join(LABELS)}.{hint}")
        for name in ("auroc_with_image", "agreement") if quantity is None else (quantity,):
            values = [_read_quantity(row, name) for row in self.diagnosis]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                return LABELS[name], known
        needs = "labels" if quantity == "accuracy" else "labels, correct and wrong predictions"
        raise DiagnosisError(f"{quantity!r} needs {needs}, which this diagnosis was made without; choose 'agreement'.")


@dataclass(eq=False, repr=False)
class ScheduleDisplay(Display):
    """Agreement with the decisions of all looks against the mean number of looks, on the tuning images of a schedule.

    Create it with `from_schedule` or `from_policy`. After `plot`, `line_` (every margin), `point_` (the margin of the
    schedule), `ax_` and `figure_` are the matplotlib objects.
    """

    schedule: Schedule
    line_: "Line2D" = field(init=False)
    point_: "Line2D" = field(init=False)

    def __post_init__(self) -> None:
        if self.schedule.margin not in [point.margin for point in self.schedule.frontier]:
            raise DecisionError(
                f"the frontier of the schedule lacks its margin, {self.schedule.margin:g}; draw a schedule that "
                "fit_schedule returned."
            )

    @classmethod
    def from_schedule(cls, schedule: Schedule, **plot_kw: Any) -> Self:
        """Draw a schedule; `plot_kw` goes to `plot`."""
        return cls(schedule).plot(**plot_kw)

    @classmethod
    def from_policy(cls, policy: Policy | str | Path, **plot_kw: Any) -> Self:
        """Draw the schedule of a policy, or of a policy file; `plot_kw` goes to `plot`."""
        loaded = policy if isinstance(policy, Policy) else read_policy(policy)
        if loaded.schedule is None:
            raise DecisionError(
                "the policy has no schedule, since it looks at all views",
                repair=Repair("certify with {adaptive}", adaptive=True),
            )
        return cls.from_schedule(loaded.schedule, **plot_kw)

    def plot(self, ax: "Axes | None" = None, **line_kw: Any) -> Self:
        """Draw the line of all margins, and a point for that of the schedule; `line_kw` goes to `Axes.plot`."""
        from matplotlib.ticker import PercentFormatter

        schedule, axes = self.schedule, self._use_axes(ax)
        looks, agreement = zip(*((point.looks, 1 - point.differing) for point in schedule.frontier), strict=True)
        options = {"color": CORRECT, "marker": ".", "label": f"{schedule.method}, all margins", **line_kw}
        (self.line_,) = axes.plot(looks, agreement, **options)
        chosen = next(point for point in schedule.frontier if point.margin == schedule.margin)
        name = f"margin {schedule.margin:g}: {chosen.looks:.2f} looks, {100 * (1 - chosen.differing):.2f} % equal"
        (self.point_,) = axes.plot(chosen.looks, 1 - chosen.differing, "o", color=WRONG, ms=9, label=name, zorder=3)
        tolerance = f"tolerance of {100 * schedule.tolerance:g} %"
        axes.axhline(1 - schedule.tolerance, color=REFERENCE, lw=1.2, ls=":", label=tolerance)
        axes.set(xlabel="mean number of looks", ylabel="decisions equal to those with all looks")
        axes.set_xlim(1, schedule.full_looks)
        axes.set_xticks(looks_ticks(schedule.full_looks))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="lower right")  # the line is above
        return self


def risk_axis_end(error_rate: float) -> float:
    """Return the end of a risk axis: a few errors among the first images must not squash the rest of the plot."""
    return min(1.0, max(RISK_AXIS_FACTOR * error_rate, 0.01))


def looks_ticks(full_looks: int) -> list[int]:
    """Return the ticks of an axis of looks: one look, all looks, and some between them."""
    steps = max(1, min(full_looks - 1, MAX_LOOKS_STEPS))
    return [round(1 + (full_looks - 1) * step / steps) for step in range(steps + 1)]


def _read_quantity(row: Any, quantity: str) -> float | None:
    parts = {"agreement": "overall", "confident_agreement": "confident"}
    value: float | None = getattr(row.agreement, parts[quantity]) if quantity in parts else getattr(row, quantity)
    return value


def _describe(name: str | None, metric: str, value: float | None) -> str:
    known = None if value is None else f"{metric} = {format_value(value)}"
    if name is None:
        return known or "confidence"
    return name if known is None else f"{name} ({known})"


def _draw_reference(axes: "Axes", x: ArrayLike, y: ArrayLike, label: str) -> None:
    """Draw a dotted line that the legend of the axes names once, however many displays share them."""
    named = any(line.get_label() == label for line in axes.lines)
    axes.plot(x, y, color=REFERENCE, lw=1.2, ls=":", label="_" if named else label)
