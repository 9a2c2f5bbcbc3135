"""The display of a schedule: how many looks agree how often with all of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from secondlook.errors import DecisionError
from secondlook.policies import Policy, Schedule
from secondlook.report.display_axes import CORRECT, REFERENCE, WRONG, find_axes, looks_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D


class ScheduleDisplay:
    """Agreement with the decisions of all looks against the mean number of looks, on the tuning images of a schedule.

    Create it with `from_schedule` or `from_policy`. After `plot`, `line_` (every margin), `point_` (the margin of the
    schedule), `ax_` and `figure_` are the matplotlib objects.
    """

    ax_: "Axes"
    figure_: "Figure | SubFigure"
    line_: "Line2D"
    point_: "Line2D"

    def __init__(self, schedule: Schedule) -> None:
        if schedule.margin not in [point.margin for point in schedule.frontier]:
            raise DecisionError(
                f"the frontier of the schedule lacks its margin, {schedule.margin:g}; draw a schedule that "
                "fit_schedule returned."
            )
        self.schedule = schedule

    @classmethod
    def from_schedule(cls, schedule: Schedule, *, ax: "Axes | None" = None, **line_kw: Any) -> Self:
        """Draw a schedule; see `plot`."""
        return cls(schedule).plot(ax, **line_kw)

    @classmethod
    def from_policy(cls, policy: Policy | str | Path, *, ax: "Axes | None" = None, **line_kw: Any) -> Self:
        """Draw the schedule of a policy, or of a policy file; see `plot`."""
        loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
        if loaded.schedule is None:
            raise DecisionError("the policy has no schedule, since it looks at all views; certify with adaptive=True.")
        return cls.from_schedule(loaded.schedule, ax=ax, **line_kw)

    def plot(self, ax: "Axes | None" = None, **line_kw: Any) -> Self:
        """Draw the line of all margins, and a point for that of the schedule; `line_kw` goes to `Axes.plot`."""
        from matplotlib.ticker import PercentFormatter

        schedule = self.schedule
        axes = find_axes(ax)
        self.ax_, self.figure_ = axes, axes.figure
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
