"""Reports and runs: pages, plots and tables of results, and run folders of evaluated classifiers."""

from secondlook.report.monitor_page import describe_monitor_plots, write_monitor_page
from secondlook.report.run import Run, open_run
from secondlook.report.run_creation import create_run
from secondlook.report.writer import write_report

__all__ = [
    "Run",
    "create_run",
    "describe_monitor_plots",
    "open_run",
    "write_monitor_page",
    "write_report",
]
