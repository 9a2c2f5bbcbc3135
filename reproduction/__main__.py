"""The command line: `python -m reproduction NAME --data-root DIR`, with one command for each experiment."""

import json
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import secondlook as sl
from reproduction.catalog import EXPERIMENTS, GROUPS
from reproduction.experiment import ReproductionError
from reproduction.paper import PAPER_EXPERIMENTS
from reproduction.runner import reproduce
from secondlook.tables import format_table

HELP = """Rerun the tables and figures of the paper on local copies of the data sets and weights.

Every experiment is a command: python -m reproduction table2 --data-root DIR
"""

app = typer.Typer(
    name="python -m reproduction",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Interrupted(BaseException):
    """Ctrl-C. Not a `KeyboardInterrupt`, which click turns into exit code 1."""


def main() -> None:
    """Run the command line and exit the process with its exit code."""
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app(prog_name="python -m reproduction")
    except sl.SecondLookError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        # The user can repair a full disk or a missing permission; the path shows where.
        typer.echo(f"error: {error.strerror or error}{f' ({error.filename!r})' if error.filename else ''}.", err=True)
        sys.exit(2)
    except Interrupted:
        typer.echo("interrupted: progress is saved; run the same command to resume.", err=True)
        sys.exit(130)


def _interrupt(*_: object) -> None:
    raise Interrupted


@app.command("list", rich_help_panel="Overview")
def list_experiments(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the experiments and groups."""
    records = [*EXPERIMENTS.values(), *GROUPS.values()]
    if as_json:
        typer.echo(json.dumps([{"name": one.name, "title": one.title} for one in records], ensure_ascii=False))
    else:
        typer.echo(format_table([(one.name, one.title) for one in records]))


def _make_command(name: str) -> Callable[..., None]:
    def run(
        data_root: Annotated[
            Path,
            typer.Option("--data-root", exists=True, metavar="DIR", help="Folder with the files of the data sets."),
        ],
        out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the results.")] = Path(
            "reproduction-results"
        ),
        classifiers: Annotated[
            Path | None,
            typer.Option(
                "--classifiers", exists=True, metavar="FILE.toml", help="Classifiers to use instead of the defaults."
            ),
        ] = None,
        store: Annotated[
            Path | None,
            typer.Option("--store", metavar="DIR", help="Folder of stored predictions (default: OUT/predictions)."),
        ] = None,
        indices: Annotated[
            Path | None,
            typer.Option(
                "--indices",
                exists=True,
                metavar="FILE|DIR",
                help="Indices of the experimental images (default: drawn with the random seed).",
            ),
        ] = None,
        limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of images in each subset.")] = None,
        seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
        no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")] = False,
    ) -> None:
        settings: dict[str, Any] = {"store": store, "seed": seed, "indices": indices, "limit": limit}
        done = reproduce(name, data_root, out, classifiers, **settings, progress=not (quiet or no_progress))
        if not done.has_run:
            raise ReproductionError(str(done))
        if as_json:
            typer.echo(json.dumps(done.to_dict(), ensure_ascii=False))
        elif not quiet:
            typer.echo(str(done))

    return run


for _experiment in EXPERIMENTS.values():
    _panel = "Paper" if _experiment in PAPER_EXPERIMENTS else "Public classifiers of CIFAR-10"
    app.command(_experiment.name, help=_experiment.title, rich_help_panel=_panel)(_make_command(_experiment.name))
for _group in GROUPS.values():
    app.command(_group.name, help=_group.title, rich_help_panel="Groups")(_make_command(_group.name))


if __name__ == "__main__":
    main()
