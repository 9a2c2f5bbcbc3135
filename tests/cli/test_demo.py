"""The demo: its numbers are computed on images that its network was not trained on; the network can be retrained."""

import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from secondlook.arrays import Array
from secondlook.cli import demo
from secondlook.cli.demo import TRAINING_IMAGES, digit_images, split_digits
from secondlook.views import ViewSet, apply_view
from tests.cli.conftest import MODEL, Here

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_demo_classifier.py"


def run_network(images: Array) -> Array:
    """Run the embedded network without any of secondlook. uint8 [N, 16, 16, 1] -> probabilities [N, 10]"""
    import onnxruntime

    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    inputs = (images.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    logits = session.run(None, {"images": inputs})[0].astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demo ran once; out.txt has what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    with (folder / "out.txt").open("w") as file:
        program = Path(sys.executable).with_name("secondlook")
        path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        subprocess.run([program, "demo"], cwd=folder, stdout=file, check=True, env={**os.environ, "PATH": path})
    return folder


def test_demo_runs_twice_and_replaces_that_of_an_earlier_version(here: Here, shown: Path) -> None:
    printed = (shown / "out.txt").read_text(encoding="utf-8")
    shutil.copytree(shown / "demo", "demo")
    assert printed.count("$ secondlook") == 4
    for line in demo.CLOSING.format(command="secondlook").strip().splitlines():
        assert line in printed
    made = {path.name for path in Path("demo").iterdir()}
    assert made == {"labeled.npz", "new.npz", "run", "policy.json", "scores.csv", "rejected"}
    assert Path("demo/run/report.html").stat().st_size > 100_000
    again = here("demo", "--quiet")
    assert (again.code, again.out) == (0, "")
    policy, scores = "demo/policy.json", Path("demo/scores.csv")
    intended = scores.read_bytes()
    here.ok("calibrate", "--run", "demo/run", "--coverage", "0.5", "--method", "mean", "--out", policy, "--force")
    scores.write_text("id,accept\n")
    here.ok("demo", "--quiet")
    assert scores.read_bytes() == intended


def test_demo_does_not_touch_a_folder_that_is_not_its_own(here: Here) -> None:
    Path("mine/rejected").mkdir(parents=True)
    Path("mine/rejected/thesis.txt").write_text("years of work")
    here.refuse("demo", "--out", "mine", told="'mine/rejected'")
    assert [path.name for path in Path("mine").rglob("*")] == ["rejected", "thesis.txt"]


def test_numbers_of_the_demo_are_correct(shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown)
    images, labels = digit_images()
    unseen = split_digits()[1]
    half = unseen[: len(unseen) // 2]
    record = json.loads(Path("demo/run/run.json").read_text())
    assert len(record["tuning"]) == len(half) // 4
    judged = np.delete(half, [int(id_) for id_ in record["tuning"]])
    assert not any("hflip" in view for view in record["views"]), "a mirrored digit is no digit"
    probabilities = np.stack(
        [run_network(apply_view(images[judged], view)) for view in ViewSet(record["views"])], axis=1
    )
    predicted = probabilities[:, 0].argmax(axis=1)
    correct = predicted == labels[judged]
    mean = probabilities.mean(axis=1)[np.arange(len(judged)), predicted]
    rows = json.loads(Path("demo/run/evaluation.json").read_text())["rows"]
    rows_by = {(row["method"], row["metric"]): row for row in rows}
    assert rows_by["msr", "auroc"]["errors"] == int((~correct).sum())
    assert rows_by["msr", "auroc"]["value"] == pytest.approx(roc_auc_score(correct, probabilities[:, 0].max(axis=1)))
    assert rows_by["mean", "auroc"]["value"] == pytest.approx(roc_auc_score(correct, mean))
    with Path("demo/scores.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    threshold = json.loads(Path("demo/policy.json").read_text())["threshold"]
    assert len(scores) == len(unseen) - len(half)
    assert all((float(row["confidence"]) >= threshold) == (row["accept"].lower() == "true") for row in scores)


def test_network_can_be_retrained_without_the_images_it_is_judged_on() -> None:
    spec = importlib.util.spec_from_file_location("train_demo_classifier", SCRIPT)
    assert spec
    assert spec.loader
    training = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(training)
    images, labels = digit_images()
    seen, unseen = split_digits()
    assert len(seen) == TRAINING_IMAGES
    assert sorted([*seen, *unseen]) == list(range(1797))
    again = training.compute_accuracy(training.train(images[seen], labels[seen]), images[unseen], labels[unseen])
    embedded = float((run_network(images[unseen]).argmax(axis=1) == labels[unseen]).mean())
    assert abs(again - embedded) < 0.02
    assert 0.9 < embedded < 0.98, "it should err often enough to be of interest"


def test_closing_names_a_command_that_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / ".venv" / "bin" / "secondlook"
    installed.parent.mkdir(parents=True)
    installed.touch(0o755)
    monkeypatch.setattr("sys.argv", [".venv/bin/secondlook", "demo"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert demo.find_command() == ".venv/bin/secondlook"
    monkeypatch.setenv("PATH", str(installed.parent))
    assert demo.find_command() == "secondlook"
