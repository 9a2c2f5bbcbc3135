"""`secondlook report`: the HTML page of a run."""

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.policies import DEFAULT_DELTA


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that secondlook evaluate wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="HTML file to write.", show_default="RUN/report.html"),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Failure probability of the guarantees, shared by all methods.",
            show_default=f"that of the latest calibration of the run, otherwise {DEFAULT_DELTA:g}",
        ),
    ] = None,
    galleries: Annotated[bool, typer.Option(help="Show images, where they are still available.")] = True,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write a self-contained HTML page that works offline and can be sent to a colleague.

    Example: secondlook report run/
    """
    from secondlook.report import open_run
    from secondlook.views import ViewWarning

    opened = open_run(run)
    written = opened.report(out, delta=delta, galleries=galleries, progress=not (quiet or no_progress))
    for message in () if quiet else opened.record.warnings:
        warnings.warn(message, ViewWarning, stacklevel=1)
    if as_json:
        content = {
            "report": str(written.path),
            "guarantees": written.terms,
            "notes": written.notes,
            "warnings": opened.record.warnings,
        }
        typer.echo(json.dumps(content, ensure_ascii=False))
    elif not quiet:
        for note in written.notes:
            typer.echo(note)
        typer.echo(f"Guarantees with {written.terms}.")
        typer.echo(f"Report written to {written.path}")
