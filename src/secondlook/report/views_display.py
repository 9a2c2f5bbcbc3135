"""The display of a diagnosis: one number per view, colored by whether the view is usable, weak or harmful."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from secondlook.diagnosis import Diagnosis, diagnose_views
from secondlook.errors import DiagnosisError
from secondlook.predictions import Predictions
from secondlook.registry import did_you_mean
from secondlook.report.display_axes import CORRECT, REFERENCE, WRONG, RunLike, find_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure, SubFigure

Quantity = Literal["auroc_with_image", "auroc_alone", "accuracy", "agreement", "confident_agreement"]
STATUS_MARKERS: dict[str, tuple[str, str]] = {
    "usable": (CORRECT, "o"),
    "weak": ("#e69f00", "s"),
    "harmful": (WRONG, "X"),
}
"""Color and marker of each status: either suffices to tell them apart."""
ROW_HEIGHT = 0.28


@dataclass(frozen=True)
class _Axis:
    label: str
    read: Callable[[Any], float | None]
    needs: str | None = "labels, correct and wrong predictions"


_AXES: dict[Quantity, _Axis] = {
    "auroc_with_image": _Axis("AUROC of the mean over the image and the view", lambda row: row.auroc_with_image),
    "auroc_alone": _Axis("AUROC of the view alone", lambda row: row.auroc_alone),
    "accuracy": _Axis("accuracy of the view alone", lambda row: row.accuracy, "labels"),
    "agreement": _Axis("same prediction as the image itself", lambda row: row.agreement.overall, None),
    "confident_agreement": _Axis(
        "same prediction, among the confident half of the images", lambda row: row.agreement.confident, None
    ),
}


class ViewsDisplay:
    """One number per view of a diagnosis, with the image itself as the reference.

    Create it with `from_predictions` or `from_run`, or from a `Diagnosis` followed by `plot`. After `plot`, `points_`
    (by status), `ax_` and `figure_` are the matplotlib objects.
    """

    ax_: "Axes"
    figure_: "Figure | SubFigure"
    points_: "dict[str, PathCollection]"

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis

    @classmethod
    def from_predictions(
        cls,
        preds: Predictions,
        *,
        top_k: int = 1,
        quantity: Quantity | None = None,
        ax: "Axes | None" = None,
        **scatter_kw: Any,
    ) -> Self:
        """Diagnose the views of predictions and draw them; see `plot`."""
        return cls(diagnose_views(preds, top_k=top_k)).plot(ax, quantity=quantity, **scatter_kw)

    @classmethod
    def from_run(
        cls, run: RunLike, *, quantity: Quantity | None = None, ax: "Axes | None" = None, **scatter_kw: Any
    ) -> Self:
        """Diagnose the views of a run and draw them; see `plot`."""
        return cls.from_predictions(run.predictions, top_k=run.top_k, quantity=quantity, ax=ax, **scatter_kw)

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
        axis, values = self._read(quantity)
        axes = find_axes(ax, height=max(2.4, ROW_HEIGHT * len(values) + 1.2))
        self.ax_, self.figure_, self.points_ = axes, axes.figure, {}
        for status, (color, marker) in STATUS_MARKERS.items():
            rows = [place for place, row in enumerate(self.diagnosis) if row.status == status]
            if rows:
                options = {"color": color, "marker": marker, "label": status, "zorder": 3, **scatter_kw}
                self.points_[status] = axes.scatter([values[place] for place in rows], rows, **options)
        axes.axvline(values[0], color=REFERENCE, lw=1.2, ls=":", label="the image itself")
        axes.set_yticks(range(len(values)), [row.view for row in self.diagnosis], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel(axis.label)
        axes.grid(axis="y", alpha=0.25)
        axes.legend()
        return self

    def _read(self, quantity: Quantity | None) -> tuple[_Axis, list[float]]:
        if quantity is not None and quantity not in _AXES:
            raise DiagnosisError(
                f"unknown quantity {quantity!r}; expected one of: {', '.join(_AXES)}.{did_you_mean(quantity, _AXES)}"
            )
        chosen: tuple[Quantity, ...] = ("auroc_with_image", "agreement") if quantity is None else (quantity,)
        for name in chosen:
            values = [_AXES[name].read(row) for row in self.diagnosis]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                return _AXES[name], known
        raise DiagnosisError(
            f"{quantity!r} needs {_AXES[chosen[-1]].needs}, which this diagnosis was made without; choose 'agreement'."
        )
