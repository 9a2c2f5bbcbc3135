"""The edge of the command line: Ctrl-C at any time, too little memory, long messages, other encodings."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from secondlook.cli import info
from secondlook.cli.app import COMMANDS, load_command
from tests.cli.conftest import MODEL, Command, Here

# Interrupts the import of a module, as Ctrl-C does; {swallow} is what the code around the import catches.
INTERRUPTED_IMPORT = """
import os, signal, sys, time
from secondlook.cli import main

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
            except {swallow}:
                pass

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["list", "metrics"]
main()
"""


@pytest.mark.posix
@pytest.mark.parametrize("swallow", ["ZeroDivisionError", "BaseException"])
@pytest.mark.parametrize("module", ["typer", "secondlook.cli.info", "secondlook.metrics"])
def test_ctrl_c_during_an_import(module: str, swallow: str) -> None:
    code = INTERRUPTED_IMPORT.format(module=module, swallow=swallow)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "resume" in done.stderr


@pytest.mark.posix
def test_ctrl_c_twice_exits_at_once() -> None:
    code = """
import os, signal, sys, time
from secondlook.cli import info, main
class InterruptedTwice(dict):
  def __getitem__(self, key):
    for _ in range(2):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        except BaseException:
            pass
    return {}
info.REGISTRIES = InterruptedTwice()
sys.argv[1:] = ["list", "metrics"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")


def test_too_little_memory_and_long_messages_are_one_sentence(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = here.refuse("info", f"first{'x' * 5000}last", told=("first", "last"))
    assert len(ended.err) < 1100
    monkeypatch.setattr(info, "REGISTRIES", MagicMock(**{"__getitem__.side_effect": MemoryError}))
    here.refuse("list", "metrics", told="memory")


def test_terminal_of_another_encoding(secondlook: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(MODEL, tmp_path / "modèle.onnx")
    monkeypatch.setitem(os.environ, "PYTHONIOENCODING", "ascii")
    plain = secondlook("info", "modèle.onnx")
    assert plain.returncode == 0, plain.stderr
    done = secondlook("info", "modèle.onnx", "--json")
    assert json.loads(done.stdout)["classifier"] == "onnx:modèle.onnx"


def test_a_folder_as_output_file_is_one_sentence(here: Here, run: Path) -> None:
    for command in ("calibrate --run run --coverage 0.9", "search --run run --budget 1"):
        for place in ("", "."):
            here.refuse(*command.split(), "--out", place)


HELP = """
import sys
from secondlook.cli import app
sys.argv[1:] = ["--help"]
try:
    app.main()
finally:
    print(*sorted(name for name in sys.modules if name == "numpy" or name.startswith("secondlook.")), file=sys.stderr)
"""


def test_help_imports_no_command_and_no_room() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    allowed = ("cli", "cli.app", "errors", "imports")
    assert done.stderr.split() == [f"secondlook.{name}" for name in allowed]
    for name, first_line in COMMANDS.items():
        assert load_command(name).help.splitlines()[0] == first_line
