"""Damaged model files: each still works or is a `ClassifierError`, never another exception."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError

N_FILES = 150
"""Of each kind; the stress tests damage more."""


def damage(content: bytes, number: int) -> bytes:
    """Truncate a file, flip some bits, or replace some bytes by other ones."""
    rng = np.random.default_rng((13, number))
    damaged = bytearray(content)
    place = int(rng.integers(len(content)))
    if number % 5 == 0:
        del damaged[place:]
    elif number % 5 == 1:
        damaged[place : place + int(rng.integers(40))] = rng.bytes(int(rng.integers(40)))
    else:
        for each in rng.integers(0, len(content), number % 5 * 2):
            damaged[each] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def check_damaged(file: Path, run: Callable[[], object]) -> None:
    """Damage a file in many ways; `run` must work or raise a `ClassifierError` each time."""
    content, messages = file.read_bytes(), []
    for number in range(N_FILES):
        file.write_bytes(damage(content, number))
        try:
            run()
        except ClassifierError as error:
            messages.append(str(error))
    assert len(messages) > N_FILES / 4
    assert max(map(len, messages)) < 1000


@pytest.mark.parametrize("kind", ["m.onnx", "m.pt", "weights.pt", "weights.safetensors"])
def test_damaged_model_files(
    kind: str, make_onnx: Any, torch_module: Any, images: Array, tmp_path: Path, set_threads: Any
) -> None:
    torch = pytest.importorskip("torch")
    set_threads(1)  # which would wait for those of other processes, at each of the many models
    file, options = tmp_path / kind, dict[str, Any]()
    model: object = f"torch:{file}"
    if kind == "m.onnx":
        file.write_bytes(make_onnx().read_bytes())
        model = f"onnx:{file}"
    elif kind == "m.pt":
        with pytest.warns(DeprecationWarning, match="torch.jit"):
            torch.jit.trace(torch_module, torch.zeros(1, 3, 8, 8)).save(file)
    else:
        save = torch.save if kind == "weights.pt" else pytest.importorskip("safetensors.torch").save_file
        save(torch_module.state_dict(), file)
        model, options = torch_module, {"weights": str(file)}
    check_damaged(file, lambda: load_classifier(model, output="logits", **options)(images))
