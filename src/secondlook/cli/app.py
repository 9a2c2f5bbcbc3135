"""The commands, each imported on use. Errors that users can repair are one sentence with exit code 2."""

import importlib
import io
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from secondlook import __version__
from secondlook.cli import INTERRUPTED, Interrupted, exit_at_once, interrupt
from secondlook.errors import Message, SecondLookError

COMMANDS = {
    "demo": "Run all steps on handwritten digits; no data and no model needed.",
    "check": "Check the preprocessing, the order of channels and the order of classes on a few hundred images.",
    "evaluate": "Evaluate confidence methods on labeled images and write a run folder.",
    "calibrate": "Choose the threshold above which predictions are accepted, and write a policy file.",
    "label": "Ask for the labels that a guarantee needs, the most confident image first, and write a policy file.",
    "score": "Accept or reject the prediction for every new image. An interrupted job resumes when run again.",
    "export": "Write the classifier, the views, the confidence and the threshold as one ONNX file.",
    "verify": "Compare an exported file with the library, image by image.",
    "monitor": "Check whether new images still look like the calibration images, and the guarantee still holds.",
    "serve": "Serve decisions over HTTP, with a page to review rejected images and a dashboard.",
    "report": "Write the report of a run: one HTML page that works offline.",
    "compare": "Compare runs on the same images. Differences are to the first row.",
    "search": "Choose views from the stored predictions of a run, and leave out harmful ones.",
    "info": "Describe a run, a policy, an exported file or a model.",
    "list": "List the available methods, metrics, views, models, sources or exports.",
    "views": "Draw views of an image, or propose candidate views.",
    "token": "Add, list or remove the access tokens of a service.",
}
"""All commands with the first line of their help."""
MODULES = {
    **dict.fromkeys(("check", "compare", "report", "search"), "evaluate"),
    "verify": "export",
    "monitor": "score",
    **dict.fromkeys(("list", "views"), "info"),
    "token": "serve",
}
"""Modules that contain several commands."""
LONGEST_MESSAGE = 1000
"""Maximum number of printed characters of an error or warning; the middle is cut out."""


class LazyGroup(TyperGroup):
    """Loads a command only when it is used; names and first lines of help are in `COMMANDS`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the chosen command and its arguments."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load_command(name), rest


app = typer.Typer(
    name="secondlook", cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secondlook {__version__}")
        raise typer.Exit


@app.callback()
def secondlook(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Know when your image classifier is wrong: confidence from several views, decisions with a guarantee."""


def load_command(name: str) -> Any:
    """Import a command, or a group of commands like `views`."""
    from secondlook.registry import load_plugins

    load_plugins()  # before the options, whose help lists the plugins
    from secondlook.cli.options import expand_groups

    module = importlib.import_module(f"secondlook.cli.{MODULES.get(name, name)}")
    found = getattr(module, "list_kind" if name == "list" else name)
    if not isinstance(found, typer.Typer):
        command, found = found, typer.Typer(add_completion=False, rich_markup_mode="rich")
        found.command(name)(expand_groups(command))
    return typer.main.get_command(found)


def find_flags(words: Sequence[str]) -> dict[str, str]:
    """Return the long options of the command of a command line, for example {"on_error": "--on-error"}."""
    command = load_command(words[0]) if words and words[0] in COMMANDS else typer.main.get_command(app)
    command = getattr(command, "commands", {}).get("".join(words[1:2]), command)
    return {one.name: flag for one in command.params for flag in one.opts if flag.startswith("--")}


def main() -> None:
    """Run the command line and exit the process with its exit code."""
    # Print warnings without their place in the code.
    warnings.showwarning = lambda message, *_, **__: _print_message("[bold yellow]warning:[/]", message)
    signal.signal(signal.SIGINT, interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    try:
        app()
    except SecondLookError as error:
        _exit_with_error(error)
    except OSError as error:
        # The user can repair a full disk or missing permissions; the path shows where.
        place = f" ({error.filename!r})" if error.filename else ""
        _exit_with_error(f"{error.strerror or error}{place}.")
    except MemoryError:
        _exit_with_error("not enough memory; use smaller batches, fewer views or smaller images, or a larger machine.")
    except Interrupted:
        _print_message("[bold yellow]interrupted:[/]", INTERRUPTED)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, exit_at_once)


def _exit_with_error(message: object) -> None:
    _print_message("[bold red]error:[/]", message)
    sys.exit(2)


def _print_message(heading: str, message: object) -> None:
    """Print a message in the language of the command line, without its middle if it is very long."""
    from rich.console import Console
    from rich.markup import escape

    from secondlook.tables import escape_controls, hide_credentials

    if isinstance(message, Message):
        from secondlook.cli.wording import word

        message = word(message, find_flags(sys.argv[1:]))
    text = escape_controls(hide_credentials(str(message)))
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[: LONGEST_MESSAGE // 2]} ... {text[-LONGEST_MESSAGE // 2 :]}"
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"{heading} {escape(text)}")
