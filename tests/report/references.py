"""What tests of reports share: pages with the texts that a run adds, and the slider of coverage in Python."""

from pathlib import Path
from typing import Any

import numpy as np

from secondlook.metrics import Ranking
from secondlook.predictions import Predictions
from secondlook.report.operating_points import OperatingPoint
from secondlook.report.study import build_study
from secondlook.report.writer import write_study

PAGE = (
    "title",
    "risk",
    "delta",
    "image",
    "unknown_image",
    "facts",
    "warnings",
    "notes",
    "command",
    "baseline",
    "artifacts",
)
RUN_ONLY = {"policy", "duplicates", "warnings", "notes", "command", "baseline"}
"""Options of a report that only a run has."""


def write_run_report(preds: Predictions, path: Path, **options: Any) -> Path:
    """Write a report with arguments of `build_study` and of `write_study`, as `Run.report` does."""
    page = {name: options.pop(name) for name in PAGE if name in options}
    write_study(build_study(preds, **options), path, **page)
    return path


def point_at_coverage(ranking: Ranking, coverage: float) -> OperatingPoint:
    """Return the highest threshold that accepts at least this fraction; equal confidences are accepted together."""
    block = int(np.searchsorted(ranking.accepted, ranking.count_for_coverage(coverage)))
    return OperatingPoint(float(ranking.confidences[block]), int(ranking.accepted[block]), int(ranking.errors[block]))
