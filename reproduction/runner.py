"""The one runner: reads an experiment, whatever pieces it is made of, and returns what was found."""

from reproduction.bench import Bench
from reproduction.comparing import run_comparison
from reproduction.experiment import (
    Comparison,
    ContactSheets,
    Experiment,
    Intensity,
    MetricExplained,
    Piece,
    ResamplingStudy,
    RiskCoverage,
)
from reproduction.findings import Findings
from reproduction.intensity import run_intensity
from reproduction.looks import run_contact_sheets
from reproduction.needed import Missing
from reproduction.resampling_figures import run_resampling_study
from reproduction.risk_figures import run_metric_explained, run_risk_coverage
from secondlook.errors import SecondLookError


def run_experiment(experiment: Experiment, bench: Bench) -> tuple[Findings, ...]:
    """Return the findings of every piece; a piece that fails says why, and the others still run."""
    return tuple(_run_or_say_why(piece, bench) for piece in experiment.pieces)


def _run_or_say_why(piece: Piece, bench: Bench) -> Findings:
    try:
        return _run(piece, bench)
    except SecondLookError as error:
        return Findings(piece.title, missing=(Missing(piece.title, str(error)),))


def _run(piece: Piece, bench: Bench) -> Findings:
    match piece:
        case Comparison():
            return run_comparison(piece, bench)
        case Intensity():
            return run_intensity(piece, bench)
        case RiskCoverage():
            return run_risk_coverage(piece, bench)
        case MetricExplained():
            return run_metric_explained(piece, bench)
        case ContactSheets():
            return run_contact_sheets(piece, bench)
        case ResamplingStudy():
            return run_resampling_study(piece, bench)
