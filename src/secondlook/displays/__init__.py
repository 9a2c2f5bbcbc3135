"""Displays: plots of results on matplotlib axes, in the manner of scikit-learn."""

from secondlook.displays.axes import CORRECT, REFERENCE, WRONG, looks_ticks, risk_axis_end
from secondlook.displays.confidence import ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay
from secondlook.displays.schedule import ScheduleDisplay
from secondlook.displays.views import ViewsDisplay

__all__ = [
    "CORRECT",
    "REFERENCE",
    "WRONG",
    "ConfidenceHistogramDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "ScheduleDisplay",
    "ViewsDisplay",
    "looks_ticks",
    "risk_axis_end",
]
