"""`secondlook search`: choose the views that suit a classifier and its data, from kept predictions."""

import json
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.cli.config import Config


def search(
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="A run of the whole pool of views, with labels.")],
    budget: Annotated[int, typer.Option(help="How many views to choose, beside the image itself.")] = 12,
    objective: Annotated[
        str, typer.Option(metavar="METRIC", help="What shall get better: auroc, aurc, nll, ...")
    ] = "auroc",
    strategy: Annotated[str, typer.Option(metavar="NAME", help="greedy, greedy-replace, swap or weights.")] = "greedy",
    preset: Annotated[
        str | None, typer.Option(metavar="SET", help="Views to compare with; all must be in the pool.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.txt", help="Where the chosen views go.")] = None,
    curve: Annotated[
        Path | None, typer.Option("--curve", metavar="FILE.png", help="Draw gain over views there.")
    ] = None,
    seed: options.Seed = 0,
    config: Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Choose views from the predictions of a run.

    Example: secondlook search --run run/ --budget 12 --out views.txt
    """
    from secondlook.diagnosis import search_views
    from secondlook.runs import Run

    result = search_views(
        Run.open(run).predictions,
        budget,
        objective,
        strategy,
        preset=preset,
        seed=seed,
        progress=not (quiet or no_progress),
    )
    drawn = curve or (out.with_suffix(".png") if out else None)
    written = [write(path) for write, path in ((result.write, out), (result.plot, drawn)) if path is not None]
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(str(result))
        for path in written:
            typer.echo(f"Written: {path}")
