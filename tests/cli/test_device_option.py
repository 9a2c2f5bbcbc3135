"""`--device`: where models run, checked before anything is computed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Here

DATA = ("--data", "folder:val/")
COMMANDS = [("evaluate", *DATA, "--out", "run"), ("check", *DATA)]
"""Commands that load a model with --model."""

MODELS = """
import numpy as np
import torch

def predict(batch):
    return np.full((len(batch), 10), 0.1)

def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 10))
"""


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neither torch nor ONNX Runtime see a GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])


@pytest.fixture
def policy(here: Here, run: Path) -> str:
    here.calibrate("--coverage", "0.5", "--quiet")
    run.rename("first")
    return "policy.json"


def check_sentence(done: Any, *parts: str) -> None:
    """Check that a command ended with one sentence that names options and no arguments of Python."""
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "device=" not in done.err
    for part in parts:
        assert part in done.err
    assert not Path("run").exists()


@pytest.mark.parametrize("command", [*COMMANDS, ("score", "--policy", "p", *DATA, "--out", "s.csv")])
@pytest.mark.parametrize("device", ["gpu", "CUDA", "cuda:x"])
def test_unknown_device(here: Here, command: tuple[str, ...], device: str) -> None:
    model = ("--model", "onnx:absent.onnx")
    done = here(*command, *model, "--device", device)
    check_sentence(done, f"--device {device} is unknown", "'auto', 'cpu', 'cuda' or 'cuda:N'", "Did you mean 'cuda'?")


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("onnx:model.onnx", ["install onnxruntime-gpu, or pass --device cpu"]),
        ("torch:models:network?output=logits", ["sees no CUDA device; pass --device cpu"]),
        ("function:models:predict", ["'function:models:predict' cannot be put on", "pass --device auto"]),
    ],
)
@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_missing_cuda(
    here: Here, command: tuple[str, ...], model: str, parts: list[str], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(".")
    check_sentence(here(*command, "--model", model, "--device", device), f"--device {device}", *parts)


@pytest.mark.usefixtures("without_cuda")
def test_score_on_a_device(here: Here, policy: str) -> None:
    line = ("score", "--policy", policy, "--data", "folder:new/", "--out", "scores.csv")
    check_sentence(here(*line, "--device", "cuda"), "--device cuda", "install onnxruntime-gpu, or pass --device cpu")
    assert not Path("scores.csv").exists()
    here.ok(*line, "--quiet")
    scores = Path("scores.csv").read_bytes()
    here.ok(*line, "--device", "cpu", "--force", "--quiet")
    assert Path("scores.csv").read_bytes() == scores


@pytest.mark.parametrize("given", ["--device", "--config"])
def test_run_records_the_device(here: Here, given: str) -> None:
    line = ["evaluate", "--model", "onnx:model.onnx", *DATA, "--views", "digits", "--out", "run", "--quiet"]
    Path("settings.toml").write_text('[evaluate]\ndevice = "cpu"\n')
    done = here(*line, given, "cpu" if given == "--device" else "settings.toml")
    assert (done.code, done.err) == (0, "")
    assert json.loads(Path("run/run.json").read_text())["settings"]["device"] == "cpu"
    evaluation = Path("run/evaluation.json").read_bytes()
    here.ok("evaluate", "--config", "run/run.toml", "--quiet")
    assert json.loads(Path("run/run.json").read_text())["settings"]["device"] == "cpu"
    assert Path("run/evaluation.json").read_bytes() == evaluation


def test_settings_file_is_checked(here: Here) -> None:
    Path("settings.toml").write_text('[check]\nmodel = "onnx:model.onnx"\ndata = "folder:val/"\ndevice = "gpu"\n')
    check_sentence(here("check", "--config", "settings.toml"), "--device gpu is unknown")
