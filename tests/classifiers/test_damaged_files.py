"""Damaged model files: each still works or is a `ClassifierError`, never another exception."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError

N_FILES = 150
"""Of each kind; the stress tests damage more."""

Array = np.ndarray[Any, Any]


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


def test_damaged_onnx_files(make_onnx: Callable[..., Path], network: Any, images: Array, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    check_damaged(file, lambda: load_classifier(f"onnx:{file}", output="logits", threads=1)(images))


def test_damaged_torchscript_files(torch_module: Any, images: Array, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    file = tmp_path / "m.pt"
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.trace(torch_module, torch.zeros(1, 3, 8, 8)).save(file)
    check_damaged(file, lambda: load_classifier(f"torch:{file}", output="logits")(images))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_damaged_weights(suffix: str, torch_module: Any, images: Array, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    file, state = tmp_path / f"weights{suffix}", torch_module.state_dict()
    if suffix == ".pt":
        torch.save(state, file)
    else:
        pytest.importorskip("safetensors.torch").save_file(state, file)
    check_damaged(file, lambda: load_classifier(torch_module, output="logits", weights=str(file))(images))
