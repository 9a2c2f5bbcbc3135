"""`secondlook reproduce`: the paper's tables and figures, on one's own copies of the data and the weights."""

import json
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli.config import Config, options
from secondlook.errors import ExperimentError


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="table1 to table5, supplement, figure-..., all, ...")],
    data_root: Annotated[Path, typer.Option("--data-root", metavar="DIR", help="Folder of the data sets' files.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the results go.")] = Path("reproduction"),
    classifiers: Annotated[
        Path | None, typer.Option("--classifiers", metavar="FILE.toml", help="Which classifier stands for each column.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Where predictions are kept; OUT/predictions unless said."),
    ] = None,
    indices: Annotated[
        Path | None, typer.Option("--indices", metavar="FILE|DIR", help="The experimental images, instead of the seed.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many images of each part.")] = None,
    seed: options.Seed = 0,
    config: Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Rerun an experiment and print it beside the published numbers.

    Example: secondlook reproduce table2 --data-root DIR
    """
    from reproduction import reproduce as run_experiments

    done = run_experiments(
        name,
        data_root,
        out,
        classifiers,
        store=store,
        seed=seed,
        indices=indices,
        limit=limit,
        progress=not (quiet or no_progress),
    )
    if not done.has_run:
        raise ExperimentError(str(done))
    if as_json:
        typer.echo(json.dumps(done.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(str(done))
