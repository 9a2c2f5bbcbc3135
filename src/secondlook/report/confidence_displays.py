"""Displays of one confidence: risk against coverage, reliability, histogram of correct and wrong predictions."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from numpy.typing import ArrayLike

from secondlook.errors import MetricError
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
from secondlook.predictions import PredictFrom, Predictions
from secondlook.report.display_axes import CORRECT, REFERENCE, WRONG, RunLike, find_axes, find_tuning, risk_axis_end
from secondlook.tables import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

PERFECT_ORDER, PERFECTLY_CALIBRATED = "perfect order", "perfectly calibrated"


class ConfidenceDisplay(ABC):
    """Base of displays that are computed from correctness and confidence."""

    needs_probability: ClassVar[bool] = False
    """Whether the confidence must be a probability, not any score."""
    ax_: "Axes"
    """The axes, after `plot`."""
    figure_: "Figure | SubFigure"
    """Their figure."""

    @classmethod
    @abstractmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        **plot_kw: Any,
    ) -> Self:
        """Draw a confidence that you already have. bool [N], float [N]"""

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
        ax: "Axes | None" = None,
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
        ax
            Axes to draw on, by default those of a new figure.
        **plot_kw
            Passed to `plot`.
        """
        if not preds.has_labels:
            raise MetricError(f"{cls.__name__} needs labels, and these predictions have none; pass labels= to them.")
        if cls.needs_probability:
            _check_probability(method, cls.__name__)
        fitted = fit_methods(preds, [method], tuning=tuning, predict_from=predict_from, top_k=top_k)
        judged = fitted.select_judged(preds)
        correct, values = judged.correct(predict_from=predict_from, top_k=top_k), fitted.compute(judged, method)
        return cls.from_confidence(correct, values, name=method if name is None else name, ax=ax, **plot_kw)

    @classmethod
    def from_run(
        cls,
        run: RunLike,
        method: str = "mean",
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        **plot_kw: Any,
    ) -> Self:
        """Draw a confidence of the judged images of a run, with classes predicted as in the run."""
        return cls.from_predictions(
            run.predictions,
            method,
            predict_from=run.predict_from,
            top_k=run.top_k,
            tuning=find_tuning(run),
            name=name,
            ax=ax,
            **plot_kw,
        )

    def _use_axes(self, ax: "Axes | None") -> "Axes":
        self.ax_ = find_axes(ax)
        self.figure_ = self.ax_.figure
        return self.ax_


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

    line_: "Line2D"

    def __init__(
        self, curve: RiskCurve, *, perfect: RiskCurve | None = None, aurc: float | None = None, name: str | None = None
    ) -> None:
        self.curve = curve
        self.perfect = perfect
        self.aurc = aurc
        self.name = name

    @classmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        ref_line: bool = True,
        **line_kw: Any,
    ) -> Self:
        """Draw the curve of a confidence that you already have. bool [N], float [N]"""
        display = cls(
            risk_coverage(correct, confidence),
            perfect=risk_coverage(correct, confidence, order="perfect"),
            aurc=aurc(correct, confidence),
            name=name,
        )
        return display.plot(ax, ref_line=ref_line, **line_kw)

    def plot(self, ax: "Axes | None" = None, *, ref_line: bool = True, **line_kw: Any) -> Self:
        """Draw the curve and, as a dotted line, that of the perfect order; `line_kw` goes to `Axes.plot`."""
        from matplotlib.ticker import PercentFormatter

        axes = self._use_axes(ax)
        top = axes.get_ylim()[1] if axes.lines else 0.0
        options = {"label": _describe(self.name, "AURC", self.aurc), **line_kw}
        (self.line_,) = axes.plot(self.curve.coverage, self.curve.risk, **options)
        if ref_line and self.perfect is not None:
            _draw_reference(axes, self.perfect.coverage, self.perfect.risk, PERFECT_ORDER)
        axes.set(xlabel="coverage", ylabel="risk (error rate among accepted images)", xlim=(0, 1))
        axes.set_ylim(0, max(top, risk_axis_end(float(self.curve.risk[-1]))))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0))
        axes.legend()
        return self


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
    line_: "Line2D"

    def __init__(self, curve: ReliabilityCurve, *, ece: float | None = None, name: str | None = None) -> None:
        self.curve = curve
        self.ece = ece
        self.name = name

    @classmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        bins: int = 15,
        ref_line: bool = True,
        **line_kw: Any,
    ) -> Self:
        """Draw the curve of a confidence that you already have. bool [N], float [N]"""
        curve = reliability(correct, confidence, bins=bins)
        return cls(curve, ece=ece(correct, confidence, bins=bins), name=name).plot(ax, ref_line=ref_line, **line_kw)

    def plot(self, ax: "Axes | None" = None, *, ref_line: bool = True, **line_kw: Any) -> Self:
        """Draw the curve and, as a dotted line, the diagonal; `line_kw` goes to `Axes.plot`."""
        axes = self._use_axes(ax)
        options = {"label": _describe(self.name, "ECE", self.ece), "marker": "o", **line_kw}
        (self.line_,) = axes.plot(self.curve.confidence, self.curve.accuracy, **options)
        if ref_line:
            _draw_reference(axes, (0, 1), (0, 1), PERFECTLY_CALIBRATED)
        axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        axes.legend()
        return self


class ConfidenceHistogramDisplay(ConfidenceDisplay):
    """The number of correct (up) and of wrong (down) predictions by confidence, on a logarithmic scale.

    Create it with `from_predictions`, `from_run` or `from_confidence`. After `plot`, `bars_`, `ax_` and `figure_` are
    the matplotlib objects.

    Parameters
    ----------
    histogram
        Counts of each bin.
    name
        Title of the axes.
    """

    bars_: "tuple[BarContainer, BarContainer]"
    """The bars of correct and of wrong predictions."""

    def __init__(self, histogram: Histogram, *, name: str | None = None) -> None:
        self.histogram = histogram
        self.name = name

    @classmethod
    def from_confidence(
        cls,
        correct: ArrayLike,
        confidence: ArrayLike,
        *,
        name: str | None = None,
        ax: "Axes | None" = None,
        bins: int = 40,
        **bar_kw: Any,
    ) -> Self:
        """Draw the histogram of a confidence that you already have. bool [N], float [N]"""
        return cls(confidence_histogram(correct, confidence, bins=bins), name=name).plot(ax, **bar_kw)

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


def _check_probability(method: str, display: str) -> None:
    if not find_method(method).is_probability:
        probabilities = ", ".join(one.form for one in METHODS.values() if one.is_probability)
        raise MetricError(
            f"{display} needs a probability, and {method!r} is another score; choose one of: {probabilities}."
        )


def _describe(name: str | None, metric: str, value: float | None) -> str:
    known = None if value is None else f"{metric} = {format_value(value)}"
    if name is None:
        return known or "confidence"
    return name if known is None else f"{name} ({known})"


def _draw_reference(axes: "Axes", x: ArrayLike, y: ArrayLike, label: str) -> None:
    """Draw a dotted line that the legend of the axes names once, however many displays share them."""
    named = any(line.get_label() == label for line in axes.lines)
    axes.plot(x, y, color=REFERENCE, lw=1.2, ls=":", label="_" if named else label)
