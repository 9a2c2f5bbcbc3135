"""Self-contained HTML pages: about labeled predictions, with tables and plots beside it, and about a monitor."""

from secondlook.report.galleries import ImageReader
from secondlook.report.monitor_page import describe_plots, describe_timeline, write_monitor_page
from secondlook.report.writer import write_report

__all__ = [
    "ImageReader",
    "describe_plots",
    "describe_timeline",
    "write_monitor_page",
    "write_report",
]
