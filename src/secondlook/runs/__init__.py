"""Runs: a classifier evaluated on labeled images, kept in one folder with predictions, evaluation and record."""

from secondlook.runs.creation import create_run
from secondlook.runs.ledger import CalibrationWarning
from secondlook.runs.run import EVALUATION, REPORT, SHIFTS, Run, RunRecord, RunReport, open_run

__all__ = [
    "EVALUATION",
    "REPORT",
    "SHIFTS",
    "CalibrationWarning",
    "Run",
    "RunRecord",
    "RunReport",
    "create_run",
    "open_run",
]
