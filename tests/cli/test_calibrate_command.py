"""What `secondlook calibrate` writes, refuses to replace, and prints as the next command."""

import json
import pickle
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from tests.cli.conftest import Here

DATA = "folder:val/?limit=60"

FUNCTION = """
import numpy as np

def predict(batch):
    bright = batch.mean(axis=(1, 2, 3))[:, None] / 255
    weights = np.exp(-(bright - np.linspace(0, 1, 10)) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)
"""


def write_estimator(path: Path) -> None:
    """Write an estimator that was trained on pixels from 0 to 16, which its options must tell."""
    from sklearn.linear_model import LogisticRegression

    source = sl.open_source("folder:val/")
    pixels = np.stack([source.read(index) for index in range(len(source))]).reshape(len(source), -1) / 255 * 16
    path.write_bytes(pickle.dumps(LogisticRegression(max_iter=20).fit(pixels, source.labels)))


def evaluate(here: Here, *models: str) -> None:
    given = [word for model in models for word in ("--model", model)]
    line = ("--data", DATA, "--views", "identity shift:1,0", "--out", "run", "--resamples", "5", "--quiet")
    here.ok("evaluate", *given, *line)


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
@pytest.mark.parametrize(
    "models",
    [
        ["onnx:model.onnx"],
        ["onnx:model.onnx?mean=0.1&std=0.5", "onnx:m.onnx"],
        ["sklearn:my model.pkl?trust_pickle=true&scale=0.0627451"],
        ["function:my_function:predict?name=v1"],
        ["onnx:model.onnx", "function:my_function:predict?name=v1&channels=3"],
    ],
)
def test_next_command_works_as_printed(here: Here, models: list[str]) -> None:
    Path("my_function.py").write_text(FUNCTION)
    if models[0].startswith("sklearn:"):
        write_estimator(Path("my model.pkl"))
    evaluate(here, *models)
    done = here.ok("calibrate", "--run", "run", "--coverage", "0.5", "--out", "my policy.json")
    command = shlex.split(done.out.partition("Next: ")[2])
    assert command[:2] == ["secondlook", "score"]
    assert ("--model" in command) == any(not model.startswith("onnx:") for model in models)
    scored = here.ok(*command[1:])
    assert scored.out.startswith("40 images: ")


def test_classifier_made_in_python_is_scored_in_python(here: Here) -> None:
    module: dict[str, Any] = {}
    exec(FUNCTION, module)
    model = sl.load_classifier(module["predict"], name="my function")
    sl.create_run(model, DATA, out="run", views="identity", resamples=5, execution=sl.Execution(progress=False))
    done = here.ok("calibrate", "--run", "run", "--coverage", "0.5")
    assert "secondlook.score('policy.json'" in done.out
    assert "Next: secondlook" not in done.out


def test_another_policy_is_replaced_only_by_force(here: Here, run: Path) -> None:
    calibrate = ("calibrate", "--run", "run", "--coverage")
    here.ok(*calibrate, "0.5")
    first = Path("policy.json").read_bytes()
    made = json.loads(first)["made"]
    refused = here.fail(*calibrate, "0.9")
    for value in ("'policy.json'", "another policy", made, "--force", "another name"):
        assert value in refused.err
    assert "overwrite" not in refused.err
    assert Path("policy.json").read_bytes() == first
    assert here(*calibrate, "0.5").code == 0, "the same policy may be written again"
    here.ok(*calibrate, "0.9", "--force")
    assert sl.load_policy("policy.json").threshold < json.loads(first)["threshold"]


def test_repeated_calibration_may_be_written_again(here: Here, run: Path) -> None:
    """Another one in between changes the joint failure probability, but not the policy."""
    calibrate = ("calibrate", "--run", "run", "--risk", "0.3", "--delta", "0.1", "--method")
    here.ok(*calibrate, "mean")
    here.ok(*calibrate, "msr", "--out", "other.json")
    here.ok(*calibrate, "mean")
    assert sl.load_policy("policy.json").calibration.joint_delta == pytest.approx(0.2)  # type: ignore[union-attr]


def test_file_that_is_no_policy_is_replaced_only_by_force(here: Here, run: Path) -> None:
    Path("notes.json").write_text("{}")
    Path("empty.json").touch()
    line = ("calibrate", "--run", "run", "--coverage", "0.5", "--out")
    here.fail(*line, "notes.json", told="'notes.json'")
    assert Path("notes.json").read_text() == "{}"
    here.ok(*line, "notes.json", "--force")
    here.ok(*line, "empty.json")


def test_suggestion_is_not_a_calibration(here: Here, run: Path) -> None:
    here.fail("calibrate", "--run", "run", "--risk", "0.01", told="roughly")
    ledger = json.loads(Path("run/calibrations.json").read_text())
    assert [(one["risk"], one["delta"]) for one in ledger["calibrations"]] == [(0.01, 0.001)]
