"""Environments of their own for tests that need packages which must not meet ours."""

import fcntl
import hashlib
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def python_with() -> Callable[..., Path]:
    """Return the Python of an environment .venv-NAME with a file's requirements; it is made once."""

    def made(name: str, requirements: Path, *options: str) -> Path:
        folder = ROOT / f".venv-{name}" / "environment"
        stamp = folder / f"ready-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
        python = folder / "bin" / "python"
        folder.parent.mkdir(exist_ok=True)
        # Two test workers come here at once; the second waits until the first has made the environment.
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stamp.exists():
                shutil.rmtree(folder, ignore_errors=True)
                venv.create(folder, with_pip=True)
                quiet = ["--quiet", "--disable-pip-version-check", *options]
                subprocess.run([python, "-m", "pip", "install", *quiet, "--requirement", requirements], check=True)
                stamp.touch()
        return python

    return made
