"""`--device`: where models run, checked before anything is computed."""

import json
from collections.abc import Sequence
from pathlib import Path

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


def refuse(here: Here, *words: str, told: Sequence[str]) -> None:
    """Run a command whose only output must be one sentence that names options and no arguments of Python."""
    done = here.refuse(*words, told=told)
    assert done.out == ""
    assert "device=" not in done.err
    assert not Path("run").exists()


@pytest.mark.parametrize("command", [*COMMANDS, ("score", "--policy", "p", *DATA, "--out", "s.csv")])
def test_unknown_device(here: Here, command: tuple[str, ...]) -> None:
    told = ("'auto', 'cpu', 'cuda' or 'cuda:N'", "Did you mean 'cuda'?")
    for device in ("gpu", "CUDA", "cuda:x"):
        words = ("--model", "onnx:absent.onnx", "--device", device)
        refuse(here, *command, *words, told=(f"--device {device} is unknown", *told))
    Path("settings.toml").write_text('[check]\nmodel = "onnx:model.onnx"\ndata = "folder:val/"\ndevice = "gpu"\n')
    refuse(here, "check", "--config", "settings.toml", told=("--device gpu is unknown",))


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("onnx:model.onnx", ["install onnxruntime-gpu, or pass --device cpu"]),
        ("torch:models:network?output=logits", ["sees no CUDA device; pass --device cpu"]),
        ("function:models:predict", ["'function:models:predict'", "pass --device auto"]),
    ],
)
def test_missing_cuda(
    here: Here, command: tuple[str, ...], model: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(".")
    for device in ("cuda", "cuda:7"):
        refuse(here, *command, "--model", model, "--device", device, told=(f"--device {device}", *told))


@pytest.mark.usefixtures("without_cuda")
def test_score_on_a_device(here: Here, run: Path) -> None:
    here.calibrate("--coverage", "0.5", "--quiet")
    run.rename("first")
    line = ("score", "--policy", "policy.json", "--data", "folder:new/", "--out", "scores.csv")
    told = ("--device cuda", "install onnxruntime-gpu, or pass --device cpu")
    refuse(here, *line, "--device", "cuda", told=told)
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
