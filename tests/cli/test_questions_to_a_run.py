"""What is asked is checked before the classifier is, and later commands ask as the run was made."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl

Here = Callable[..., Any]
LINE = "evaluate --model onnx:model.onnx --data folder:val/ --resamples 5"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("--method meen", "Did you mean 'mean'?"),
        ("--metric aurok", "Did you mean 'auroc'?"),
        ("--by z", "by is 'z'; expected 'x'"),
        ("--level 95", "level is 95.0, expected a share in (0, 1)"),
        ("--top-k 11", "top_k is 11; expected the number of leading classes, from 1 to 10"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_before_the_work(here: Here, asked: str, sentence: str) -> None:
    done = here(*LINE.split(), "--out", "run", *asked.split())
    assert done.code == 2
    assert sentence in done.err
    assert not Path("run").exists()


@pytest.mark.parametrize("command", [f"{LINE} --out run", "compare a b", "search --run a", "score --policy p"])
def test_a_seed_below_zero_is_refused(here: Here, command: str) -> None:
    done = here(*command.split(), "--seed", "-1")
    assert done.code == 2
    assert "Invalid value for '--seed'" in done.err


def test_calibrate_asks_as_the_run_was_made(here: Here) -> None:
    assert (
        here(
            *LINE.split(), "--views", "digits", "--out", "run", "--predict-from", "views", "--top-k", "2", "--quiet"
        ).code
        == 0
    )
    done = here("calibrate", "--run", "run", "--risk", "0.05", "--delta", "0.05")
    assert done.code == 0, done.err
    assert "\nabout the 2 leading classes by D\n" in done.out
    policy = sl.Policy.load("policy.json")
    preds = sl.Predictions.open("run/predictions")
    assert (policy.predict_from, policy.top_k) == ("views", 2)
    assert policy.threshold == sl.certify(preds, "mean", risk=0.05, delta=0.05, predict_from="views", top_k=2).threshold
    done = here("calibrate", "--run", "run", "--coverage", "0.5", "--predict-from", "image", "--top-k", "1")
    policy = sl.Policy.load("policy.json")
    assert (policy.predict_from, policy.top_k) == ("image", 1)
    assert "about the" not in done.out


def test_the_report_says_that_there_were_images_of_no_class(here: Here) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    np.savez("noise.npz", images=noise)
    line = [*LINE.split(), "--views", "identity", "--out", "run", "--quiet"]
    assert here(*line, "--ood", "npz:noise.npz").code == 0
    told = here("report", "run", "--json").json
    assert told["report"] == "run/report.html"
    assert [note for note in told["notes"] if note.startswith("This run also had --ood npz:noise.npz;")]
    assert "This run also had --ood npz:noise.npz" in Path("run/report.html").read_text(encoding="utf-8")


def test_evaluate_tells_machines_what_was_skipped_and_warned_of(here: Here) -> None:
    shutil.copytree("val", "some")
    Path("some/1/broken.png").write_bytes(b"no picture")
    line = "evaluate --model onnx:model.onnx --data folder:some --on-error skip --out run --metric accuracy"
    done = here(*line.split(), "--resamples", "5", "--views", "identity hflip shift:1,0", "--json")
    assert done.code == 0, done.err
    assert [one["id"] for one in done.json["skipped"]] == ["1/broken.png"]
    assert "its content is not" in done.json["skipped"][0]["reason"]
    assert "hflip" in done.json["warnings"][0]
    assert done.json["warnings"] == here("info", "run", "--json").json["warnings"]
    assert json.loads(Path("run/evaluation.json").read_text()) == done.json


def test_a_record_that_cannot_be_read_is_not_called_missing(here: Here) -> None:
    Path("run/run.json").mkdir(parents=True)
    done = here("report", "run")
    assert done.code == 2
    assert "the run 'run/run.json' cannot be read: Is a directory" in done.err


def test_the_next_commands_can_be_pasted(here: Here) -> None:
    done = here(*LINE.split(), "--views", "identity", "--out", "my run", "--metric", "accuracy")
    assert "secondlook report 'my run', or secondlook calibrate --run 'my run' --risk 0.01" in done.out
    done = here("calibrate", "--run", "my run", "--coverage", "0.5", "--out", "my policy.json", "--method", "msr")
    assert "secondlook score --policy 'my policy.json' --data" in done.out
    assert here("info", "my run", "--json").json["again"] == "secondlook evaluate --config 'my run/run.toml'"
