"""The demo: its numbers are computed on images that its network was not trained on; the network can be retrained."""

import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import secondlook as sl
from secondlook.arrays import Array
from secondlook.cli import demo
from secondlook.cli.demo import MODEL, TRAINING_IMAGES, digit_images, split_digits, split_unseen
from secondlook.views import ViewSet, apply_view
from tests.cli.conftest import Here

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
    assert re.findall(r"^\$ secondlook (\w+)", printed, re.MULTILINE) == ["evaluate", "calibrate", "score", "report"]
    assert printed.endswith(demo.CLOSING.format(command="secondlook", report="demo/run/report.html") + "\n")
    assert "auroc" not in printed, "tables are in the report"
    made = {path.name for path in Path("demo").iterdir()}
    assert made == {"digits.onnx", "labeled.npz", "new.npz", "run", "policy.json", "scores.csv", "rejected"}
    assert Path("demo/run/report.html").stat().st_size > 100_000
    again = here("demo", "--quiet")
    assert (again.code, again.out) == (0, "")
    policy, scores = "demo/policy.json", Path("demo/scores.csv")
    intended = scores.read_bytes()
    here.ok("calibrate", "--run", "demo/run", "--coverage", "0.5", "--method", "mean", "--out", policy, "--force")
    scores.write_text("id,accept\n")
    done = here.ok("demo", "--verbose")
    assert "warning" not in done.err, "the comparison is no calibration of the run"
    assert scores.read_bytes() == intended
    assert "auroc" in done.out, "with the output of each command"
    assert set(printed.split()) <= set(done.out.split())


def test_demo_does_not_touch_a_folder_that_is_not_its_own(here: Here) -> None:
    Path("mine/rejected").mkdir(parents=True)
    Path("mine/rejected/thesis.txt").write_text("years of work")
    here.refuse("demo", "--out", "mine", told="'mine/rejected'")
    assert [path.name for path in Path("mine").rglob("*")] == ["rejected", "thesis.txt"]


def test_files_among_its_rejected_images_are_kept(here: Here, shown: Path) -> None:
    shutil.copytree(shown / "demo", "demo")
    rejected = Path("demo/rejected")
    assert len(list(rejected.rglob("*.png"))) == len((rejected / "rejected.csv").read_text().splitlines()) - 1
    (rejected / "notes.txt").write_text("mine")
    here.refuse("demo", "--quiet", told="'demo/rejected'")
    assert list(rejected.iterdir()) == [rejected / "notes.txt"]


def test_numbers_of_the_demo_are_correct(shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown)
    images, labels = digit_images()
    half, new = split_unseen()
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
    assert len(scores) == len(new)
    assert all((float(row["confidence"]) >= threshold) == (row["accept"].lower() == "true") for row in scores)
    first_looks = sl.Predictions(probabilities=probabilities[:, :1], views="identity", labels=labels[judged])
    alone = sl.certify(first_looks, "msr", risk=0.02, delta=0.05)
    accept = np.array([row["accept"] == "true" for row in scores])
    probabilities = run_network(images[new])
    wrong = probabilities.argmax(axis=1) != labels[new]
    n_accepted, missed = accept.sum(), (accept & wrong).sum()
    outcome = re.findall(r"^\d\. (.*)", Path("out.txt").read_text(encoding="utf-8"), re.MULTILINE)
    told = [
        f"wrong on {(~correct).sum()} of {len(judged)} labeled",
        f"{len(record['views']) - 1} versions",
        "at most 2 %",
        f"Of {len(new)} new digits, {n_accepted} are accepted. {len(new) - n_accepted} go to a person, "
        f"with {wrong.sum() - missed} of the {wrong.sum()} errors",
        f"of {n_accepted} accepted new digits, {missed} were wrong "
        f"({100 * missed / n_accepted:.1f} %; guaranteed: at most 2 %",
        f"{(probabilities.max(axis=1) >= alone.threshold).sum()} could have been accepted",
    ]
    assert len(outcome) == len(told)
    for line, text in zip(outcome, told, strict=True):
        assert text in line


def test_halves_are_drawn_at_random_so_that_a_monitor_raises_no_alarm(here: Here, shown: Path) -> None:
    training, unseen = split_digits()
    assert sorted([*training, *np.concatenate(split_unseen())]) == list(range(1797))
    assert sorted(np.concatenate(split_unseen())) == unseen.tolist()
    shutil.copytree(shown / "demo", "demo")
    policy = ("--policy", "demo/policy.json")
    here.ok("score", *policy, "--data", "npz:demo/new.npz", "--out", "new.parquet", "--quiet")
    done = here("monitor", *policy, "--scores", "new.parquet", "--out", "watched", "--json")
    assert (done.code, done.json["alarm"], done.json["images"]) == (0, False, 799)


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
