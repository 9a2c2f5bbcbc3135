"""Generate the pages of docs/reference about commands and Python names; a hook of MkDocs."""

import importlib
import re
from typing import Any

from secondlook.cli.app import COMMANDS, load_command

COMMANDS_MARKER = "<!-- every command -->"
NAMES_MARKER = re.compile(r"<!-- names of (?P<module>[\w.]+)(?:: (?P<names>[\w ]+))? -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of a page."""
    if COMMANDS_MARKER in markdown:
        sections = [describe_command(name, command) for name, command in list_commands().items()]
        markdown = markdown.replace(COMMANDS_MARKER, "\n\n".join(sections))
    return NAMES_MARKER.sub(describe_names, markdown)


def list_commands() -> dict[str, Any]:
    """Return every command by its words, such as `views show`."""
    listed: dict[str, Any] = {}
    for name in COMMANDS:
        command = load_command(name)
        group = getattr(command, "commands", {})
        listed |= {f"{name} {sub}": one for sub, one in group.items()} or {name: command}
    return listed


def describe_command(name: str, command: Any) -> str:
    """Return the section of a command: its help, its example and a table of its options."""
    text, _, example = command.help.partition("Example: ")
    context = command.context_class(command)
    records = [record for one in command.params if (record := one.get_help_record(context)) is not None]
    cells = [
        (first.replace("|", "\\|"), meaning.replace("|", "\\|").replace("<", "&lt;")) for first, meaning in records
    ]
    rows = "\n".join(f"| `{first}` | {meaning} |" for first, meaning in cells)
    return f"## {name}\n\n{text.strip()}\n\n```text\n{example.strip()}\n```\n\n| option | meaning |\n|---|---|\n{rows}"


def describe_names(found: re.Match[str]) -> str:
    """Return a block of mkdocstrings for each name of a marker, or for every public name of its module."""
    names = found["names"].split() if found["names"] else importlib.import_module(found["module"]).__all__
    return "\n\n".join(f"::: {found['module']}.{name}" for name in names)
