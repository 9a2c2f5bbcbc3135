"""Fixtures and markers for all tests."""

import copy
import hashlib
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Preprocessing
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


@pytest.fixture
def cpu_as_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as two GPUs, so that torch models make their views on their device."""
    torch = pytest.importorskip("torch")
    from secondlook.classifiers import device, torch_placement

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "list_gpus", lambda _: ["cuda:0", "cuda:1"])
    monkeypatch.setattr(torch_placement, "list_gpus", lambda _: ["cpu", "cpu"])
    monkeypatch.setattr(torch_placement, "is_on_gpu", lambda _: True)


@pytest.fixture
def cuda_1_only() -> Classifier:
    """A classifier of dark and bright images that can be put on any device, and fails on each but 'cuda:1'."""
    return _MovableClassifier(
        name="dark or bright",
        digest="dark or bright",
        output="probabilities",
        preprocessing=Preprocessing(input_dtype="uint8"),
        n_classes=2,
    )


class _MovableClassifier(Classifier):
    device = "auto"

    def on_device(self, device: str) -> Classifier:
        moved = copy.copy(self)
        moved.device = self.device if device == "auto" else device
        return moved

    def forward(self, images: Array) -> Array:
        assert self.device == "cuda:1"
        bright = images.reshape(len(images), -1).mean(axis=1) / 255
        return np.stack([1 - bright, bright], axis=1)
