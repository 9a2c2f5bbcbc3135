"""The demo: its numbers are computed just then, on images its network never saw, and the network can be made again."""

import csv
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from secondlook.arrays import Array
from secondlook.cli import demo
from secondlook.cli.demo_digits import TRAINING_IMAGES, digit_images, seen_and_unseen
from secondlook.views import ViewSet, apply_view

Here = Callable[..., Any]
MODEL = Path(demo.__file__).parent / "demo_data" / "digits.onnx"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_demo_classifier.py"


def answers(images: Array) -> Array:
    """Run the embedded network without any of secondlook. uint8 [N, 16, 16, 1] -> probabilities [N, 10]"""
    import onnxruntime

    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    inputs = (images.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    logits = session.run(None, {"images": inputs})[0].astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


@pytest.fixture
def training() -> ModuleType:
    """The script that makes the network."""
    spec = importlib.util.spec_from_file_location("train_demo_classifier", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_goes_all_the_way_twice(here: Here) -> None:
    first = here("demo")
    assert first.code == 0, first.err
    assert first.out.count("$ secondlook") == 4
    for line in demo.CLOSING.strip().splitlines():
        assert line in first.out
    made = {path.name for path in Path("demo").iterdir()}
    assert made == {"labeled.npz", "new.npz", "run", "policy.json", "scores.csv", "asked"}
    assert Path("demo/run/report.html").stat().st_size > 100_000
    again = here("demo", "--quiet")
    assert (again.code, again.out) == (0, "")


def test_the_demo_leaves_a_folder_of_others_alone(here: Here) -> None:
    Path("mine/asked").mkdir(parents=True)
    Path("mine/asked/thesis.txt").write_text("years of work")
    done = here("demo", "--out", "mine")
    assert done.code == 2
    assert "'mine/asked', but what is there is of no earlier demo: it has no rejected.csv" in done.err
    assert [path.name for path in Path("mine").rglob("*")] == ["asked", "thesis.txt"]


def test_the_numbers_of_the_demo_are_true(here: Here) -> None:
    assert here("demo", "--quiet").code == 0
    images, labels = digit_images()
    unseen = seen_and_unseen()[1]
    half = unseen[: len(unseen) // 2]
    probabilities = np.stack([answers(apply_view(images[half], view)) for view in ViewSet("digits")], axis=1)
    predicted = probabilities[:, 0].argmax(axis=1)
    correct = predicted == labels[half]
    mean = probabilities.mean(axis=1)[np.arange(len(half)), predicted]
    rows = json.loads(Path("demo/run/evaluation.json").read_text())["rows"]
    told = {(row["method"], row["metric"]): row for row in rows}
    assert told["msr", "auroc"]["errors"] == int((~correct).sum())
    assert told["msr", "auroc"]["value"] == pytest.approx(roc_auc_score(correct, probabilities[:, 0].max(axis=1)))
    assert told["mean", "auroc"]["value"] == pytest.approx(roc_auc_score(correct, mean))
    with Path("demo/scores.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    threshold = json.loads(Path("demo/policy.json").read_text())["threshold"]
    assert len(scores) == len(unseen) - len(half)
    assert all((float(row["confidence"]) >= threshold) == (row["accept"].lower() == "true") for row in scores)


def test_no_image_was_both_trained_on_and_evaluated() -> None:
    seen, unseen = seen_and_unseen()
    assert len(seen) == TRAINING_IMAGES
    assert sorted([*seen, *unseen]) == list(range(1797))


def test_the_network_can_be_made_again(training: ModuleType) -> None:
    images, labels = digit_images()
    seen, unseen = seen_and_unseen()
    again = training.accuracy(training.train(images[seen], labels[seen]), images[unseen], labels[unseen])
    embedded = float((answers(images[unseen]).argmax(axis=1) == labels[unseen]).mean())
    assert abs(again - embedded) < 0.02
    assert 0.9 < embedded < 0.98, "it should err often enough to be of interest"
