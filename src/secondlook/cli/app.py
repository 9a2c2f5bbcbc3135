"""The entry point: collects the commands, and prints errors that users can repair as one sentence with exit code 2."""

import codecs
import io
import json
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape

from secondlook import __version__
from secondlook.cli import (
    INTERRUPTED,
    Interrupted,
    calibrate,
    check,
    compare,
    demo,
    evaluate,
    exit_at_once,
    export,
    info,
    interrupt,
    listing,
    monitor,
    report,
    score,
    search,
    serve,
    token,
    verify,
    views,
)
from secondlook.cli.messages import list_flags, name_options
from secondlook.errors import SecondLookError

app = typer.Typer(
    name="secondlook",
    help="Know when your image classifier is wrong: confidence from several views, decisions with a guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.demo)
app.command("check")(check.check)
app.command("evaluate")(evaluate.evaluate)
app.command("calibrate")(calibrate.calibrate)
app.command("score")(score.score)
app.command("export")(export.export)
app.command("verify")(verify.verify)
app.command("monitor")(monitor.monitor)
app.command("serve")(serve.serve)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("search")(search.search)
app.command("info")(info.info)
app.command("list")(listing.list_kind)
app.add_typer(views.app, name="views")
app.add_typer(token.app, name="token")

LONGEST_MESSAGE = 1000
"""Characters of an error or warning that are printed at most; the beginning and the end are kept."""
OMISSION = " ... "


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secondlook {__version__}")
        raise typer.Exit


@app.callback()
def secondlook(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Know when your image classifier is wrong: confidence from several views, decisions with a guarantee."""


def main() -> None:
    """Run the command line and exit the process with its exit code."""
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGINT, interrupt)
    _escape_unprintable(sys.stdout)
    try:
        app()
    except SecondLookError as error:
        _exit_with_error(name_options(str(error), find_flags(sys.argv[1:])))
    except OSError as error:
        # A full disk or missing permissions: the user can repair it, and the path says where.
        place = f" ({error.filename!r})" if error.filename else ""
        _exit_with_error(f"{error.strerror or error}{place}.")
    except MemoryError:
        _exit_with_error("not enough memory; use smaller batches, fewer views or smaller images, or a larger machine.")
    except Interrupted:
        _print_message("[bold yellow]interrupted:[/]", INTERRUPTED)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, exit_at_once)


def find_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options of the command that a command line names, by the names of its parameters."""
    command: Any = typer.main.get_command(app)
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return list_flags(command)


def shorten(message: str) -> str:
    """Return a message with its middle left out where it is longer than a terminal shows well."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    half = (LONGEST_MESSAGE - len(OMISSION)) // 2
    return f"{message[:half]}{OMISSION}{message[-half:]}"


def _escape_unprintable(stream: TextIO) -> None:
    """Let a stream escape characters that its encoding lacks, as JSON does."""
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("secondlook.escape", _escape)
        stream.reconfigure(errors="secondlook.escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _exit_with_error(message: str) -> None:
    _print_message("[bold red]error:[/]", message)
    sys.exit(2)


def _print_message(heading: str, message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"{heading} {escape(shorten(message))}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print the message of a warning without its place in the code."""
    _print_message("[bold yellow]warning:[/]", name_options(str(message), find_flags(sys.argv[1:])))
