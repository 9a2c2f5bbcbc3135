"""Fixtures and markers for all tests."""

import hashlib
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from secondlook.files import exclusive_lock

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip on Windows what needs signals, resource limits or symbolic links of a POSIX system."""
    if os.name == "nt":
        for item in items:
            if item.get_closest_marker("posix"):
                item.add_marker(pytest.mark.skip(reason="needs a POSIX system"))


@pytest.fixture(scope="session")
def python_with() -> Callable[..., Path]:
    """Return the Python of an environment .venv-NAME with a file's requirements; it is made once."""

    def made(name: str, requirements: Path, *options: str) -> Path:
        folder = ROOT / f".venv-{name}" / "environment"
        stamp = folder / f"ready-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
        python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        folder.parent.mkdir(exist_ok=True)
        # Two test workers may come here at once; the second waits until the first has made the environment.
        with exclusive_lock(folder.parent / "lock"):
            if not stamp.exists():
                shutil.rmtree(folder, ignore_errors=True)
                venv.create(folder, with_pip=True)
                quiet = ["--quiet", "--disable-pip-version-check", *options]
                subprocess.run([python, "-m", "pip", "install", *quiet, "--requirement", requirements], check=True)
                stamp.touch()
        return python

    return made
