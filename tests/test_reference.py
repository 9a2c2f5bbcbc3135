"""The generated reference has every command, every option and every public name that users need."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import secondlook as sl
from scripts.reference_hook import list_commands, on_page_markdown
from secondlook.cli.app import COMMANDS
from tests.test_architecture import ROOMS

ROOT = Path(__file__).resolve().parents[1]
FACADES = {f"secondlook.{room}": importlib.import_module(f"secondlook.{room}") for room in ROOMS[:-1]}
COMPLETE = ("secondlook.metrics", "secondlook.cluster", "secondlook.onnx_export", "secondlook.serving")
"""Packages with names for users only; other packages also export names for the packages to their right."""


def render(page: str) -> str:
    return on_page_markdown((ROOT / "docs" / "reference" / page).read_text(encoding="utf-8"))


def declared_names() -> list[str]:
    """Return the last parts of all names in the reference."""
    return [path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", render("python.md"), re.MULTILINE)]


def signatures(value: Any) -> Iterator[str]:
    """Yield the annotations of a function, or of a class with its public methods and properties."""
    members = [value]
    if inspect.isclass(value):
        yield str(value.__annotations__ if "__annotations__" in vars(value) else "")
        members = [member for name, member in vars(value).items() if name == "__init__" or not name.startswith("_")]
    for member in members:
        plain = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if inspect.isfunction(plain):
            yield str(inspect.signature(plain))


def test_every_name_is_documented_once_and_can_be_imported() -> None:
    paths = re.findall(r"^::: (\S+)\.(\w+)$", render("python.md"), re.MULTILINE)
    for module, name in paths:
        assert name in importlib.import_module(module).__all__
    names = declared_names()
    assert sorted(set(names)) == sorted(names)


def test_top_level_and_packages_for_users_are_complete() -> None:
    names = {*declared_names()}
    assert {*sl.__all__} - names == {"__version__", "metrics"}
    for module in COMPLETE:
        assert {*FACADES[module].__all__} <= names, module


def test_types_in_public_signatures_are_documented() -> None:
    public = {name for facade in FACADES.values() for name in facade.__all__ if name[0].isupper()}
    for name in {*sl.__all__} - {"__version__", "metrics"}:
        mentioned = {*re.findall(r"\b[A-Z]\w+", " ".join(signatures(getattr(sl, name))))}
        assert mentioned & public <= {*declared_names()}, name


def test_documentation_imports_only_documented_names() -> None:
    imports = [
        (module, name)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for module, names in re.findall(r"^from (secondlook\.\w+) import (.+)$", page.read_text("utf-8"), re.MULTILINE)
        for name in names.partition("#")[0].replace(" ", "").split(",")
    ]
    assert len(imports) > 10
    assert {name for module, name in imports if name in getattr(FACADES.get(module), "__all__", ())} <= {
        *declared_names()
    }


@pytest.mark.parametrize("command", list_commands())
def test_every_option_of_a_command_is_documented(command: str) -> None:
    assert command.split()[0] in COMMANDS
    section = render("cli.md").partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    flags = {flag for one in list_commands()[command].params for flag in one.opts if flag.startswith("--")}
    assert flags - {*re.findall(r"--[\w-]+", section)} == set()
    assert f"secondlook {command}" in section
