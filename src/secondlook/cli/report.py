"""`secondlook report`: the HTML page of a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.selective import DEFAULT_DELTA


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that secondlook evaluate wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="HTML file to write.", show_default="RUN/report.html"),
    ] = None,
    delta: options.Delta = DEFAULT_DELTA,
    galleries: Annotated[bool, typer.Option(help="Show images, where they are still available.")] = True,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write a self-contained HTML page that works offline and can be sent to a colleague.

    Example: secondlook report run/
    """
    from secondlook.runs import open_run

    written = open_run(run).report(out, delta=delta, galleries=galleries, progress=not (quiet or no_progress))
    if as_json:
        typer.echo(json.dumps({"report": str(written.path), "notes": written.notes}, ensure_ascii=False))
    elif not quiet:
        for note in written.notes:
            typer.echo(note)
        typer.echo(f"Report written to {written.path}")
