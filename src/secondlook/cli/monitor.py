"""`secondlook monitor`: whether the guarantee of a policy still holds on what was scored, with few labels or none."""

import json
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.sources import SOURCES

ALARM = 3
"""Exit code for cron jobs: something is wrong with the images or the guarantee."""
PAGE = "monitor.html"


def monitor(
    policy: Annotated[Path, typer.Option("--policy", metavar="FILE", help="Policy file that calibrate wrote.")],
    scores: Annotated[
        list[str],
        typer.Option(
            "--scores",
            metavar="PATTERN|DIR|URL",
            help="Score files in Parquet, such as 'scores/*.parquet', or a folder or URL of parts; may be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the page, the numbers and the state.")],
    reviewed: Annotated[
        Path | None,
        typer.Option("--reviewed", metavar="FILE.csv", help="Reviewed audits: a CSV file with the columns id,label."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="SPEC",
            help=f"The images that were scored, to show the worst of them. Schemes: {', '.join(SOURCES)}.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Probability of a false alarm, over a stream of any length, of either test.",
            show_default="0.05, or as before",
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Images per window of the timeline.", show_default="500, or as before")
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(
            "--burn-in", min=0, help="Images needed to say that all is well.", show_default="100, or as before"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed.", show_default="0, or as before")] = None,
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle", help="Read the images of each file in random order: for folders sorted by class, not by time."
        ),
    ] = False,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Tell whether new images still look like the calibration images, and whether the guarantee still holds.

    Only files that were not read before are read. The exit code is 0 if all is well and 3 on an alarm.

    Example: secondlook monitor --policy policy.json --scores 'scores/*.parquet' --out monitor/
    """
    from secondlook.monitoring import monitor_scores
    from secondlook.predictions import Execution
    from secondlook.report import write_monitor_page
    from secondlook.sources import open_source

    source = None if data is None else open_source(data)
    result = monitor_scores(
        policy,
        scores,
        out,
        reviewed=reviewed,
        alpha=alpha,
        window=window,
        burn_in=burn_in,
        seed=seed,
        shuffle=shuffle,
        execution=Execution(progress=not (quiet or no_progress)),
    )
    labels = "labels.csv" if reviewed is None else str(reviewed)
    patterns = "".join(f" --scores {quote(pattern)}" for pattern in scores)
    command = (
        f"secondlook calibrate --reviewed {quote(labels)} --policy {quote(str(policy))}{patterns} --out fresh.json"
    )
    page = write_monitor_page(result.monitor, out / PAGE, source=source, command=command)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(f"{result}\nPage: {page}")
        if result.status.alarm:
            typer.echo(f"Next: {command}")
    if result.status.alarm:
        raise typer.Exit(ALARM)
