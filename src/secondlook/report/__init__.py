"""Self-contained HTML pages: about labeled predictions, with tables and plots beside it, and about a monitor."""

from secondlook.report.galleries import ImageReader
from secondlook.report.monitor_page import write_monitor_page
from secondlook.report.writer import write_report

__all__ = [
    "ImageReader",
    "write_monitor_page",
    "write_report",
]
