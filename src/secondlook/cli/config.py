"""Options from a TOML file: `--config FILE` gives the defaults of a command, and options on the line override them."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from secondlook.errors import SecondLookError
from secondlook.registry import did_you_mean

NOT_SETTINGS = ("config", "as_json", "quiet", "no_progress")
"""What changes how a command speaks, not what it does."""


def use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the command's table of the file as defaults of its options."""
    if path is None or context.resilient_parsing:
        return path
    command = context.command.name or ""
    table = _read(path)
    if not isinstance(table.get(command), dict):
        raise SecondLookError(
            f"{str(path)!r} has no table [{command}]; it has: {', '.join(table) or 'nothing'}. "
            f"Options of this command go under [{command}]."
        )
    taken = [one for one in context.command.params if one.name != "config"]
    by_flag = {flag.lstrip("-"): one for one in taken for flag in one.opts if not re.fullmatch("-.", flag)}
    # A run writes the names of the parameters, which are others where a flag can be given several times.
    by_any_name = {(one.name or "").replace("_", "-"): one for one in taken} | by_flag
    defaults: dict[str, Any] = {}
    for name, value in table[command].items():
        found = by_any_name.get(name.replace("_", "-"))
        if found is None:
            raise SecondLookError(
                f"{str(path)!r} sets {name!r} in [{command}], which is no option of it; known: "
                f"{', '.join(sorted(by_flag))}.{did_you_mean(name, by_flag)}"
            )
        defaults[found.name or ""] = _as_on_the_line(value, several=found.nargs == -1 or found.multiple)
    context.default_map = defaults
    return path


def _as_on_the_line(value: Any, *, several: bool) -> Any:
    """Return a value of the file as it is written on the line: numbers of one option with commas, texts with spaces."""
    if several:
        return value if isinstance(value, list) else [value]
    if not isinstance(value, list):
        return value
    between = " " if any(isinstance(one, str) for one in value) else ","
    return between.join(str(one) for one in value)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SecondLookError(f"the settings {str(path)!r} cannot be read: {error}.") from None


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=use_config,
        is_eager=True,
        metavar="FILE",
        help="Take options from this TOML file; those given here come first.",
    ),
]


def settings_of(context: typer.Context) -> dict[str, Any]:
    """Return every option that decides what a command does, as it was used, in the order of the command."""
    names = [parameter.name or "" for parameter in context.command.params if parameter.name not in NOT_SETTINGS]
    used = {name: _plain(context.params.get(name)) for name in names}
    return {name: value for name, value in used.items() if value is not None and value != []}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
