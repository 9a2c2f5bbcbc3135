"""Reports and runs: pages, plots and tables of results, and the folder of an evaluated classifier."""

from secondlook.report.confidence_displays import ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay
from secondlook.report.display_axes import CORRECT, REFERENCE, WRONG, looks_ticks, risk_axis_end
from secondlook.report.galleries import ImageReader
from secondlook.report.ledger import CalibrationWarning
from secondlook.report.monitor_page import describe_plots, describe_timeline, write_monitor_page
from secondlook.report.run import EVALUATION, REPORT, SHIFTS, Run, RunRecord, RunReport, open_run
from secondlook.report.run_creation import create_run
from secondlook.report.schedule_display import ScheduleDisplay
from secondlook.report.views_display import ViewsDisplay
from secondlook.report.writer import write_report

__all__ = [
    "CORRECT",
    "EVALUATION",
    "REFERENCE",
    "REPORT",
    "SHIFTS",
    "WRONG",
    "CalibrationWarning",
    "ConfidenceHistogramDisplay",
    "ImageReader",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "Run",
    "RunRecord",
    "RunReport",
    "ScheduleDisplay",
    "ViewsDisplay",
    "create_run",
    "describe_plots",
    "describe_timeline",
    "looks_ticks",
    "open_run",
    "risk_axis_end",
    "write_monitor_page",
    "write_report",
]
