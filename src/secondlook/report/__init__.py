"""A self-contained HTML report about labeled predictions, with its tables as CSV and its plots as PNG and SVG."""

from secondlook.report.galleries import ImageReader
from secondlook.report.writer import write_report

__all__ = [
    "ImageReader",
    "write_report",
]
