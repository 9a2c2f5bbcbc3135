"""`secondlook report`: one HTML page of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secondlook.cli import options
from secondlook.cli.config import Config
from secondlook.errors import SecondLookError
from secondlook.naming import short_name

if TYPE_CHECKING:
    from secondlook.cli.run_folder import RunFolder


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page; RUN/report.html unless said.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Of the promises that the page tells.")] = 0.001,
    galleries: Annotated[bool, typer.Option(help="Show pictures, if the images are still there.")] = True,
    config: Config = None,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write a page that can be shown to a colleague: self-contained, works offline.

    Example: secondlook report run/
    """
    from secondlook.cli.run_folder import REPORT, RunFolder

    target = out or run / REPORT
    progress = not (quiet or no_progress)
    notes = write_page(RunFolder.open(run), target, delta=delta, galleries=galleries, progress=progress)
    if not quiet:
        for note in notes:
            typer.echo(note)
        typer.echo(f"The report is in {target}")


def write_page(run: "RunFolder", target: Path, *, delta: float, galleries: bool, progress: bool) -> list[str]:
    """Write the report of a run; returns what the reader should be told about it."""
    from secondlook.report import write_report
    from secondlook.sources import Skipped

    settings = run.record.settings
    notes: list[str] = []
    image = None
    if galleries:
        try:
            run.fitted_image(0)
            image = run.fitted_image
        except SecondLookError as error:
            notes.append(f"No pictures in the report: {error}")
    write_report(
        run.predictions,
        target,
        title=f"{short_name(run.record.classifier.name)} on {short_name(run.record.data.spec)}",
        methods=settings.get("method"),
        by=settings.get("by", "x"),
        k=settings.get("top_k", 1),
        delta=delta,
        seed=settings.get("seed", 0),
        image=image,
        facts=facts_of(run),
        notes=[*run.record.warnings, *notes],
        skipped=[Skipped(name, reason) for name, reason in run.predictions.skipped],
        command=f"secondlook evaluate --config {run.path / 'run.toml'}",
        progress=progress,
    )
    return notes


def facts_of(run: "RunFolder") -> dict[str, str]:
    """Return how a run came about, as the report tells it."""
    record = run.record
    return {
        "classifier": record.classifier.name,
        "classifier digest": record.classifier.digest,
        "answers": record.classifier.output,
        "preprocessing": ", ".join(f"{name} {value}" for name, value in record.classifier.preprocessing.items()),
        "images": record.data.spec,
        "images digest": record.data.digest,
        "views": " ".join(record.views),
        "seed": str(record.settings.get("seed", 0)),
        "secondlook": record.secondlook,
    }
