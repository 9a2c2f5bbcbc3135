"""The entry point: gathers the commands and turns what a user can repair into one sentence and exit code 2."""

import signal
import sys
import warnings
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.markup import escape

from secondlook import __version__
from secondlook.cli import calibrate, compare, demo, evaluate, info, report, score, search, views
from secondlook.errors import SecondLookError

app = typer.Typer(
    name="secondlook",
    help="Tells you when your image classifier is wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.demo)
app.add_typer(views.app, name="views")
app.command("evaluate")(evaluate.evaluate)
app.command("calibrate")(calibrate.calibrate)
app.command("score")(score.score)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("info")(info.info)
app.command("search")(search.search)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secondlook {__version__}")
        raise typer.Exit


@app.callback()
def secondlook(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Tells you when your image classifier is wrong."""


class Stopped(BaseException):
    """Ctrl-C. Not a `KeyboardInterrupt`, which the library behind the commands would answer with exit code 1."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGINT, _stop)
    try:
        app()
    except SecondLookError as error:
        _say("[bold red]error:[/]", str(error))
        sys.exit(2)
    except OSError as error:
        # A full disk, a folder without permission: the user can repair it, and the path says where.
        _say("[bold red]error:[/]", f"{error.strerror or error}{f' ({error.filename!r})' if error.filename else ''}.")
        sys.exit(2)
    except Stopped:
        _say("[bold yellow]stopped:[/]", "what is done is kept; give the same command again to go on from there.")
        sys.exit(130)


def _stop(_signal: int, _frame: object) -> None:
    raise Stopped


def _say(heading: str, sentence: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"{heading} {escape(sentence)}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as the sentence it is, without the place in the code."""
    _say("[bold yellow]warning:[/]", str(message))
