"""`secondlook report`: one HTML page of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secondlook.cli import options
from secondlook.cli.config import Config
from secondlook.errors import SecondLookError
from secondlook.specs import short_name

if TYPE_CHECKING:
    from secondlook.runs import Run


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page; RUN/report.html unless said.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Of the guarantees that the page tells.")] = 0.001,
    galleries: Annotated[bool, typer.Option(help="Show pictures, if the images are still there.")] = True,
    config: Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write a page that can be shown to a colleague: self-contained, works offline.

    Example: secondlook report run/
    """
    from secondlook.runs import REPORT, Run

    target = out or run / REPORT
    progress = not (quiet or no_progress)
    notes = write_page(Run.open(run), target, delta=delta, galleries=galleries, progress=progress)
    if as_json:
        typer.echo(json.dumps({"report": str(target), "notes": notes}, ensure_ascii=False))
    elif not quiet:
        for note in notes:
            typer.echo(note)
        typer.echo(f"The report is in {target}")


def write_page(run: "Run", target: Path, *, delta: float, galleries: bool, progress: bool) -> list[str]:
    """Write the report of a run; returns what the reader should be told about it."""
    from secondlook.evaluation import DEFAULT_METRICS
    from secondlook.report import write_report
    from secondlook.sources import Skipped

    settings = run.record.settings
    notes = [_without_ood(settings["ood"])] if "ood" in settings else []
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
        metrics=settings.get("metric") or DEFAULT_METRICS,
        level=settings.get("level", 0.95),
        resamples=settings.get("resamples", 500),
        predict_from=run.predict_from,
        top_k=run.top_k,
        delta=delta,
        seed=settings.get("seed", 0),
        image=image,
        facts=facts_of(run),
        notes=[*run.record.warnings, *notes],
        skipped=[Skipped(name, reason) for name, reason in run.predictions.skipped],
        command=run.command,
        progress=progress,
    )
    return notes


def _without_ood(spec: str) -> str:
    return (
        f"This run also had --ood {spec}; the numbers with those images are in evaluation.json, as secondlook evaluate "
        "printed them, and not in this page."
    )


def facts_of(run: "Run") -> dict[str, str]:
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
