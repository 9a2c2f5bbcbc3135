"""The architecture: exported names, the cost of imports, and the allowed imports between rooms."""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import secondlook as sl
from secondlook import errors, extension

PACKAGE = Path(sl.__file__).parent
ROOMS = (
    *("sources", "views", "classifiers", "predictions", "estimators", "metrics", "diagnosis", "evaluation", "policies"),
    *("decisions", "monitoring", "report", "onnx_export", "cluster", "serving", "cli"),
)
EXTENSION = {name for name in vars(extension) if not name.startswith("__")}
CLIENTS = ("onnx_export", "cluster", "serving")
"""Rooms around the core, which know nothing of the inside of it."""
HEAVY = (
    *("torch", "numba", "cv2", "onnxruntime", "pyarrow", "pandas", "sklearn", "ray", "transformers", "scipy"),
    "matplotlib",
)
EXPORTED = (
    *(
        "Classifier",
        "Decision",
        "Evaluation",
        "Execution",
        "LabelingPlan",
        "Monitor",
        "Policy",
        "Predictions",
        "Review",
        "Run",
    ),
    *("SecondLookError", "SelectiveClassifier", "Source", "ViewSet", "__version__", "metrics"),
    *("apply_views", "certify", "check_setup", "choose_views", "collect", "compare", "confidence"),
    *("confidence_interval", "create_run", "evaluate", "export_onnx", "load_classifier", "load_policy", "open_run"),
    *("open_source", "score", "write_report"),
)
MOST_FILES_BELOW_FACADES = 68
"""Test files that may import a module of a room, for laws that no public name can show."""
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    """Parse a file once. CPython before 3.11.8 rarely fails at it where a garbage collection comes in between."""
    text = path.read_text(encoding="utf-8")
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)


def imports_of(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return every import of a file, also inside functions: the module, and the names taken from it."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            found.append((node.module or "", tuple(alias.name for alias in node.names)))
    return found


def room_of(path: Path) -> str | None:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return first if first in ROOMS else None


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports, with any form of import."""
    modules = [module.split(".") for module, _ in imports_of(path)]
    named = [["secondlook", name] for module, names in imports_of(path) if module == "secondlook" for name in names]
    return {parts[1] for parts in [*modules, *named] if parts[0] == "secondlook" and parts[1:2] and parts[1] in ROOMS}


def test_rooms_import_only_rooms_to_their_left() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ROOMS)
    for path in MODULES:
        if path in (PACKAGE / "__init__.py", PACKAGE / "extension.py"):
            continue
        room = room_of(path)
        assert room or not imported_rooms(path), f"{path} is outside the rooms, so it must not import one"
        for imported in imported_rooms(path):
            assert ROOMS.index(imported) <= ROOMS.index(str(room)), f"{path} must not import {imported}"


def test_rooms_are_imported_through_their_init() -> None:
    for path, (module, names) in [(file, one) for file in MODULES for one in imports_of(file)]:
        parts = module.split(".")
        if parts[0] != "secondlook" or len(parts) < 2 or parts[1] not in ROOMS or parts[1] == room_of(path):
            continue
        assert len(parts) == 2, f"{path}: import {module} through secondlook.{parts[1]}"
        facade = __import__(module, fromlist=["__all__"])
        assert set(names) <= set(facade.__all__), f"{path}: {module} does not export all of {names}"


def test_few_tests_import_below_a_facade() -> None:
    below: set[str] = set()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for parts in [module.split(".") for module, _ in imports_of(path)]:
            if parts[0] == "secondlook" and len(parts) > 2 and parts[1] in ROOMS[:-1]:
                below.add(path.relative_to(Path(__file__).parent).as_posix())
    told = f"{len(below)} files of tests import below a room's façade; import through it (secondlook.ROOM)"
    assert len(below) <= MOST_FILES_BELOW_FACADES, f"{told}: {sorted(below)}"


@pytest.mark.parametrize("room", CLIENTS)
def test_clients_import_only_the_top_level_and_the_extension_module(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        for module, names in imports_of(path):
            if module == "secondlook":
                assert set(names) <= set(sl.__all__), f"{path}: {names}"
            elif module == "secondlook.extension":
                assert set(names) <= EXTENSION, f"{path}: {names}"
            elif module.startswith("secondlook."):
                assert module.split(".")[1] == room, f"{path} imports {module}"


def test_extension_module_has_exactly_the_names_used_by_clients() -> None:
    imports = [one for room in CLIENTS for path in (PACKAGE / room).rglob("*.py") for one in imports_of(path)]
    assert {name for module, names in imports if module.endswith("extension") for name in names} == EXTENSION


def test_facades_export_existing_names_once_and_few_of_them() -> None:
    facades = {room: __import__(f"secondlook.{room}", fromlist=["__all__"]) for room in ROOMS[:-1]}
    assert sum(len(facade.__all__) for facade in facades.values()) <= 200
    for room, facade in facades.items():
        assert sorted(facade.__all__) == sorted(set(facade.__all__))
        for name in facade.__all__:
            assert not inspect.ismodule(getattr(facade, name)), f"{room}.{name} is a module that shadows the name"


def test_public_class_and_function_names_are_defined_once() -> None:
    defined: dict[str, list[str]] = {}
    for path in MODULES:
        if room_of(path) == "cli":  # commands are named like the functions that they call
            continue
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in defined.items() if len(set(places)) > 1} == {}


@pytest.mark.parametrize("module", ["secondlook", "secondlook.extension", *(f"secondlook.{room}" for room in ROOMS)])
def test_importing_a_room_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_exported_names_are_listed_and_can_be_imported() -> None:
    assert sorted(sl.__all__) == sorted(EXPORTED)
    assert sorted(dir(sl)) == sorted(EXPORTED)
    assert all(getattr(sl, name) is not None for name in EXPORTED)
    with pytest.raises(AttributeError, match="'nothing'"):
        sl.nothing  # noqa: B018


def test_no_room_shares_its_name_with_a_function() -> None:
    for room in set(ROOMS) & set(sl.__all__):
        assert inspect.ismodule(getattr(sl, room)), f"{room} is both a room and something else"


def test_every_error_is_a_secondlook_error_and_a_missing_extra_names_its_command() -> None:
    leaves = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
    ]
    assert len(leaves) > 5
    assert all(issubclass(leaf, sl.SecondLookError) for leaf in leaves)
    assert "pip install 'secondlook[ray]'" in str(errors.MissingExtraError("Ray scale-out", "ray", "ray"))


def test_library_messages_name_no_command_line_options() -> None:
    for path in MODULES:
        if room_of(path) == "cli":
            continue
        raised = [part for node in ast.walk(parse(path)) if isinstance(node, ast.Raise) for part in ast.walk(node)]
        texts = [part.value for part in raised if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        assert not [text for text in texts if re.search(r"(?<!\w)--[a-z]", text)], path
