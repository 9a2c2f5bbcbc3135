"""Every command in README and the documentation runs as printed."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from secondlook.cli.app import app

Here = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CIFAR10 = ROOT.parent / "shared" / "cifar10"
LONG = "<!-- takes minutes -->\n"
"""Stands before a block about CIFAR-10 files, which a test runs on the first of their images where they are present."""
BLOCK = re.compile(rf"(?P<long>{re.escape(LONG)})?```[a-z]*\n(?P<text>.*?)```", re.DOTALL)
INLINE = re.compile(r"`(secondlook [^`\n]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.|…|[\[\]|]")
FIRST = [
    "secondlook evaluate --model onnx:model.onnx --data folder:val/ --views digits --out run/ --quiet",
    "secondlook calibrate --run run/ --risk 0.05 --delta 0.05 --out policy.json --quiet",
]


def commands_in(page: Path) -> list[str]:
    """Return the commands of a page in order: lines of blocks, then those in running text that are complete."""
    text = page.read_text(encoding="utf-8")
    blocks = [match["text"] for match in BLOCK.finditer(text) if not match["long"] or CIFAR10.is_dir()]
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    inline = INLINE.findall(BLOCK.sub("", text))
    found = [line.partition("  #")[0].strip() for line in lines if line.startswith("secondlook ")]
    # Two words, such as `secondlook search`, are the name of a command.
    complete = [line for line in inline if not PLACEHOLDER.search(line) and (len(line.split()) > 2 or "demo" in line)]
    return list(dict.fromkeys([*found, *complete]))


def test_commands_are_found() -> None:
    assert "secondlook report run/" in commands_in(ROOT / "README.md")
    assert "secondlook list views" in commands_in(ROOT / "docs" / "views.md")
    assert sum(len(commands_in(page)) for page in PAGES) > 15


def flags_of_commands() -> dict[str, set[str]]:
    """Return the long flags of each command, by its name as it is typed."""
    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"views {name}": command for name, command in commands.pop("views").commands.items()}
    return {name: {flag for one in command.params for flag in one.opts} for name, command in commands.items()}


def test_table_of_shared_options_is_correct() -> None:
    table = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("## Shared options\n\n")[2]
    heading, _, *rows = (line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines())
    shared = [cell.strip(" `") for cell in heading[1:]]
    told: dict[str, set[str]] = {}
    for commands, *cells in rows:
        has = {flag for flag, cell in zip(shared, cells, strict=True) if cell.strip() == "yes"}
        told |= dict.fromkeys(re.findall(r"`([^`]+)`", commands), has)
    true = {name: flags.intersection(shared) for name, flags in flags_of_commands().items()}
    assert told == {name: flags for name, flags in true.items() if flags}


@pytest.mark.parametrize("page", [page for page in PAGES if commands_in(page)], ids=lambda page: str(page.name))
def test_documented_commands_run_as_printed(here: Here, page: Path, request: pytest.FixtureRequest) -> None:
    first = FIRST
    if page.name == "tutorial.md":  # which is about photographs, and begins from nothing
        first = []
        for item in ("model.onnx", "val", "new"):
            Path(item).unlink()
            Path(item).symlink_to(request.getfixturevalue("photographs") / item)
    Path("data").mkdir()
    if CIFAR10.is_dir():
        Path("resnet56.onnx").symlink_to(CIFAR10 / "resnet56.onnx")
        archive = np.load(CIFAR10 / "test.npz")
        np.savez("test.npz", images=archive["images"][:100], labels=archive["labels"][:100])
    for line in [*first, *commands_in(page)]:
        if line not in FIRST and line.startswith("secondlook calibrate"):
            Path("policy.json").unlink(missing_ok=True)  # the page makes its own
        done = here(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
