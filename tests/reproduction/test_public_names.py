"""The reproduction is a client of the public interface of secondlook."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import secondlook

FOLDER = Path(__file__).resolve().parents[2] / "reproduction"
FILES = sorted(FOLDER.rglob("*.py"))
PACKAGE = Path(secondlook.__file__).parent
ROOMS = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")} - {"cli"}
SHARED_MODULES = {file.stem for file in PACKAGE.glob("[a-z]*.py")}
"""Modules beside the rooms, such as errors.py and arrays.py, which every client may use."""


def find_private_uses(source: str) -> list[str]:
    """Return what a module uses of secondlook beyond public names of the package, its rooms and shared modules."""
    tree = ast.parse(source)
    return [*_private_imports(tree), *_private_attributes(tree)]


def _private_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "secondlook"]
            yield from (name for name in names if name != "secondlook")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "secondlook":
            assert node.module is not None
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if not _is_public(node.module, alias.name)
            )


def _is_public(module: str, name: str) -> bool:
    _, _, inside = module.partition(".")
    if name.startswith("_") or (inside and inside not in ROOMS | SHARED_MODULES):
        return False
    if inside in SHARED_MODULES:
        return True
    return name in importlib.import_module(module).__all__


def _private_attributes(tree: ast.Module) -> Iterator[str]:
    """Yield `sl.name` outside `__all__`, and underscore attributes of anything but self and cls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            private = node.attr.startswith("_") and not node.attr.startswith("__") and owner not in ("self", "cls")
            if private or (owner in ("sl", "secondlook") and node.attr not in secondlook.__all__):
                yield ast.unparse(node)


def test_only_public_names_are_used() -> None:
    assert {"__main__.py", "runner.py", "workspace.py"} <= {file.name for file in FILES}
    uses = {file.name: find_private_uses(file.read_text(encoding="utf-8")) for file in FILES}
    assert {name: used for name, used in uses.items() if used} == {}


PRIVATE = [
    *("import secondlook.metrics", "from secondlook import _private", "from secondlook.metrics import _private"),
    *("from secondlook.metrics.curves import RiskCurve", "from secondlook.metrics import curves"),
    *("from secondlook.cli import app", "import secondlook as sl\nsl.cli.app", "preds._table"),
]
PUBLIC = [
    *("import secondlook as sl\nsl.collect", "from secondlook.metrics import aorc_joint"),
    *("from secondlook.errors import MetricError", "import numpy as np\nself._cache"),
]


@pytest.mark.parametrize("source", [*PRIVATE, *PUBLIC])
def test_private_names_are_detected(source: str) -> None:
    assert bool(find_private_uses(source)) == (source in PRIVATE)
