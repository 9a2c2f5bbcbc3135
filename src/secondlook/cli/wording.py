"""Translate messages of the library: arguments become options of the current command."""

import inspect
from collections.abc import Mapping
from functools import cache, partial
from shlex import quote

from secondlook.classifiers import MODELS
from secondlook.cli.app import COMMANDS, find_flags
from secondlook.errors import ANY, Message, name_in_python
from secondlook.sources import SOURCES, open_source

PARAMETER_OF_ARGUMENT = {
    "classifier": "model",
    "methods": "method",
    "metrics": "metric",
    "n": "number",
    "n_images": "limit",
    "store": "out",
}
"""Arguments of the library with a different parameter name in commands."""
WITHOUT_OPTION = {"labels": "labeled images", "tuning": "tuning images"}
"""Arguments without an option, and their replacements."""


def word(message: Message, flags: Mapping[str, str]) -> str:
    """Return a message with arguments as options of a command; `flags` come from `find_flags`."""
    return message.word(partial(name_option, flags))


def name_option(flags: Mapping[str, str], name: str, value: object) -> str:
    """Return an argument as an option of the command with these flags, or else of the first command with this option.

    Other options of models and sources become part of their specs, `?name=value`, or `--model-option name=value` if
    the command has that.
    """
    command, _, name = name.rpartition(".")
    if command and "(" not in command:
        return f"secondlook {command} {name_option(find_flags([command]), name, value)}"
    if name == "groups" and "class_thresholds" in flags:
        return "--class-thresholds"
    if name == "risk" and "class_risk" in flags and (value is ANY or isinstance(value, Mapping)):
        return "--class-risk"
    # A model of the command line is a classifier in the library, where `model=` is an option of a model.
    flag = flags.get(PARAMETER_OF_ARGUMENT.get(name, name)) if name != "model" else None
    if flag is not None:
        return _write_option(flag, value)
    if name in model_options() | source_options():
        start = "--model-option " if name in model_options() and "model_options" in flags else "?"
        return f"{start}{name}={'VALUE' if value is ANY else _write_value(value)}"
    if name in WITHOUT_OPTION:
        return WITHOUT_OPTION[name]
    other = _list_commands().get(name)
    return name_in_python(name, value) if other is None else name_option(flags, f"{other}.{name}", value)


@cache
def _list_commands() -> dict[str, str]:
    """Return the first command with each parameter."""
    return {name: command for command in reversed(COMMANDS) for name in find_flags([command])}


def _write_option(flag: str, value: object) -> str:
    if value is ANY or value is True:
        return flag
    return f"no {flag}" if value is False or value is None else f"{flag} {quote(_write_value(value))}"


def _write_value(value: object) -> str:
    """Return a value as typed on the command line: a tuple with commas, True as true."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def model_options() -> frozenset[str]:
    """Return the names of all options of models."""
    return frozenset(name for scheme in MODELS.values() for name in scheme.known_options)


@cache
def source_options() -> frozenset[str]:
    """Return the names of all options of sources."""
    common = inspect.signature(open_source).parameters.keys()
    # In messages, these are arguments for images in memory; in specs, names of columns and arrays.
    of_memory = {"spec", "labels", "class_names", "image", "images"}
    return frozenset((common | {name for scheme in SOURCES.values() for name in scheme.options}) - of_memory)
