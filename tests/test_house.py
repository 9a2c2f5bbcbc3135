"""The house itself: what is exported, what is imported when, and who may know whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import secondlook as sl

PACKAGE = Path(sl.__file__).parent
ROOMS = (
    "sources",
    "views",
    "classifiers",
    "predictions",
    "estimators",
    "metrics",
    "diagnosis",
    "evaluation",
    "selective",
    "scoring",
    "report",
    "runs",
    "cli",
)
HEAVY = (
    "torch",
    "numba",
    "cv2",
    "onnxruntime",
    "pyarrow",
    "sklearn",
    "plotly",
    "ray",
    "transformers",
    "scipy",
    "matplotlib",
)


def imported_modules(path: Path) -> set[str]:
    """Return every module that a file imports anywhere in it, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def room_of(path: Path) -> str | None:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return first if first in ROOMS else None


def test_a_room_knows_only_the_rooms_to_its_left() -> None:
    for path in PACKAGE.rglob("*.py"):
        room = room_of(path)
        for module in imported_modules(path):
            parts = module.split(".")
            if path.parent == PACKAGE and path.name == "__init__.py":
                continue
            if parts[0] == "secondlook" and len(parts) > 1 and parts[1] in ROOMS:
                assert room, f"{path.name} is in no room but imports {module}"
                assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{path} must not import {module}"


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(ROOMS)


@pytest.mark.parametrize(
    "module",
    ["secondlook", *sorted(f"secondlook.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))],
)
def test_importing_a_room_is_light(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_exported_names_are_exactly_these() -> None:
    assert len(set(sl.__all__)) == len(sl.__all__)
    for name in sl.__all__:
        assert getattr(sl, name) is not None, name
    assert set(dir(sl)) == set(sl.__all__)
    with pytest.raises(AttributeError, match="module 'secondlook' has no attribute 'nothing'"):
        sl.nothing  # noqa: B018


def test_no_room_shares_its_name_with_a_function() -> None:
    for room in set(ROOMS) & set(sl.__all__):
        assert isinstance(getattr(sl, room), type(sl)), f"{room} is both a room and something else"


def test_every_error_is_of_the_family() -> None:
    from secondlook import errors

    leaves = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert all(issubclass(leaf, sl.SecondLookError) for leaf in leaves)


def test_a_missing_extra_names_the_repair() -> None:
    from secondlook.errors import MissingExtraError

    sentence = str(MissingExtraError("Ray scale-out", "ray", "ray"))
    assert sentence == "Ray scale-out needs 'ray'. Install it with: pip install 'secondlook[ray]'"
