"""Messages of the library in the language of the command line: arguments become options of the current command."""

import inspect
from collections.abc import Mapping
from functools import cache
from shlex import quote

from secondlook.classifiers import MODELS
from secondlook.errors import ANY, Message, NameArgument, name_in_python
from secondlook.sources import SOURCES, open_source

PARAMETER_OF_ARGUMENT = {
    "classifier": "model",
    "methods": "method",
    "metrics": "metric",
    "n": "number",
    "n_images": "images",
    "store": "out",
}
"""Arguments of the library that have another name among the parameters of commands."""

WITHOUT_OPTION = {
    "labels": "labeled images",
    "tuning": "tuning images",
}
"""Arguments that no command has, and what takes their place."""


def word(message: object, flags: Mapping[str, str]) -> str:
    """Return a message with its arguments named as options of a command.

    `flags` are the options of the command by the names of its parameters, as `find_flags` returns them.
    """
    return message.word(make_name_argument(flags)) if isinstance(message, Message) else str(message)


def make_name_argument(flags: Mapping[str, str]) -> NameArgument:
    """Return how a command with these options writes an argument.

    Other options of models and sources become part of their specs, `?name=value`, or `--model-option name=value` where
    the command has it.
    """

    def name_argument(name: str, value: object) -> str:
        if name == "groups" and "per_class" in flags:
            return "--per-class"
        if name == "risk" and "class_risk" in flags and (value is ANY or isinstance(value, Mapping)):
            return "--class-risk"
        # What the command line calls a model is a classifier in the library, where `model=` is an option of a model.
        flag = flags.get(PARAMETER_OF_ARGUMENT.get(name, name)) if name != "model" else None
        if flag is not None:
            return _write_option(flag, value)
        if name in model_options() | source_options():
            start = "--model-option " if name in model_options() and "model_options" in flags else "?"
            return f"{start}{name}={'VALUE' if value is ANY else _write_value(value)}"
        if name in WITHOUT_OPTION:
            return WITHOUT_OPTION[name]
        other = flags_of_all_commands().get(name)  # such as --audit of score, in a message of calibrate
        return name_in_python(name, value) if other is None else _write_option(other, value)

    return name_argument


def _write_option(flag: str, value: object) -> str:
    if value is ANY or value is True:
        return flag
    return f"no {flag}" if value is False or value is None else f"{flag} {quote(_write_value(value))}"


def _write_value(value: object) -> str:
    """Return a value as it is typed: a tuple with commas, True as true."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def flags_of_all_commands() -> dict[str, str]:
    """Return the long options of all commands by the names of their parameters."""
    from secondlook.cli.app import COMMANDS, find_flags

    return {name: flag for command in COMMANDS for name, flag in find_flags([command]).items()}


@cache
def model_options() -> frozenset[str]:
    """Return the names of all options of models."""
    return frozenset(name for scheme in MODELS.values() for name in scheme.known_options)


@cache
def source_options() -> frozenset[str]:
    """Return the names of all options of sources."""
    common = inspect.signature(open_source).parameters.keys()
    # In messages, these are arguments for images in memory; in specs, they name columns and arrays.
    of_memory = {"spec", "labels", "class_names", "image", "images"}
    return frozenset((common | {name for scheme in SOURCES.values() for name in scheme.options}) - of_memory)
