"""`secondlook search`: choose the views that suit a classifier and its data, from stored predictions."""

import json
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.metrics import METRICS

OBJECTIVES = ", ".join(metric.form for metric in METRICS.values() if metric.name != "accuracy")
"""All metrics but the one that does not depend on the views."""


def search(
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="Run folder with all candidate views and labels.")],
    budget: Annotated[int, typer.Option(help="Number of views to choose, in addition to the image itself.")] = 12,
    objective: Annotated[str, typer.Option(metavar="METRIC", help=f"Metric to improve: {OBJECTIVES}.")] = "auroc",
    preset: Annotated[
        str | None,
        typer.Option(metavar="SET", help=f"Views to compare with, all of them in the run. {options.VIEWS_HELP}"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.txt", help="Text file for the chosen views, with a plot beside it."),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            "--curve",
            metavar="FILE.png",
            help="Plot of the gain over the number of views.",
            show_default="FILE.png of --out",
        ),
    ] = None,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Choose views from the stored predictions of a run, judged on images they were not chosen on.

    Example: secondlook search --run run/ --budget 12 --out views.txt
    """
    from secondlook.diagnosis import search_views
    from secondlook.predictions import Execution
    from secondlook.report import open_run

    opened = open_run(run)
    result = search_views(
        opened.predictions,
        budget,
        objective,
        preset=preset,
        top_k=opened.top_k,
        seed=seed,
        execution=Execution(progress=not (quiet or no_progress)),
    )
    if not (quiet or as_json):
        typer.echo(str(result))
    plot = curve or (out.with_suffix(".png") if out and out.name else None)
    files = []
    for write, path in ((result.write, out), (result.plot, plot)):
        if path is not None:
            files.append(str(write(path)))
            if not (quiet or as_json):
                typer.echo(f"Written: {path}")
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), "files": files}, ensure_ascii=False))
