"""What the displays share: axes, colors, and runs as they read them."""

from typing import TYPE_CHECKING, Protocol

from secondlook.predictions import PredictFrom, Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORRECT, WRONG, REFERENCE = "#6c88a8", "#c8553d", "#888888"
RISK_AXIS_FACTOR = 1.5
MAX_LOOKS_STEPS = 6


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


def find_tuning(run: RunLike) -> object:
    """Return the positions of the images that a run has set apart, or None if there are none. int64 [n]"""
    positions = getattr(run, "tuning_positions", ())
    return positions if len(positions) else None


def risk_axis_end(error_rate: float) -> float:
    """Return the end of a risk axis: a few errors among the first images must not squash the rest of the plot."""
    return min(1.0, max(RISK_AXIS_FACTOR * error_rate, 0.01))


def looks_ticks(full_looks: int) -> list[int]:
    """Return the ticks of an axis of looks: one look, all looks, and some between them."""
    steps = max(1, min(full_looks - 1, MAX_LOOKS_STEPS))
    return [round(1 + (full_looks - 1) * step / steps) for step in range(steps + 1)]


def find_axes(ax: "Axes | None", height: float = 4.8) -> "Axes":
    """Return the given axes, or those of a new figure of pyplot (`height` in inches), which notebooks show."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.4, height), layout="constrained")[1]
