"""Options from TOML files (`--config`), and settings of a run that later commands use."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from tests.cli.conftest import Here

NATURAL = """
[evaluate]
model = "onnx:model.onnx"
data = "folder:val/"
mean = [0.0, 0.125, 0.25]
std = 0.5
views = ["identity", "shift:1,0", "hflip"]
method = "msr"
metric = ["auroc", "aurc"]
resamples = 5
out = "run"
"""


@pytest.mark.parametrize("more", ['model-option = "threads=1"', 'model_options = ["threads=1"]'])
def test_lists_and_single_values_are_accepted_under_the_names_that_help_shows(here: Here, more: str) -> None:
    Path("settings.toml").write_text(f"{NATURAL}{more}\nbatch-size = 64\non_error = 'skip'\njson = true\n")
    done = here.ok("evaluate", "--config", "settings.toml")
    assert {(row["method"], row["metric"]) for row in done.json["rows"]} == {("msr", "auroc"), ("msr", "aurc")}
    record = json.loads(Path("run/run.json").read_text())
    assert record["views"] == ["identity", "shift:1,0", "hflip"]
    assert record["classifier"]["name"] == "onnx:model.onnx?mean=0.0,0.125,0.25&std=0.5&threads=1"
    assert (record["settings"]["batch_size"], record["settings"]["on_error"]) == (64, "skip")
    Path("settings.toml").write_text(f"{NATURAL}{more}\nquiet = true\n")
    done = here("evaluate", "--config", "settings.toml", "--out", "other")
    assert (done.code, done.out, done.err) == (0, "", "")
    Path("settings.toml").write_text('[report]\nrun = "run"\njson = true\ngalleries = false\n')
    told = here("report", "--config", "settings.toml").json
    assert (told["report"], told["notes"]) == ("run/report.html", [])


def test_unknown_options_and_invalid_values_are_named(here: Here) -> None:
    line = ("evaluate", "--config", "settings.toml")
    Path("settings.toml").write_text("[evaluate]\nmodel-opton = 'threads=1'\n")
    done = here.refuse(*line, told=("model-option, no-check, no-progress", "Did you mean 'model-option'?"))
    assert "config" not in done.err.partition("known: ")[2]
    for value in ("[1, 2]", "'many'"):
        Path("settings.toml").write_text(f"[evaluate]\nmodel = 'm'\ndata = 'd'\nout = 'o'\nseed = {value}\n")
        here.fail(*line, told="--seed")
    Path("run/run.json").mkdir(parents=True)
    here.refuse("report", "run", told="Is a directory")


LINE = "evaluate --model onnx:model.onnx --data folder:val/ --resamples 5"


def test_calibrate_uses_the_settings_of_the_run(here: Here) -> None:
    settings = ("--predict-from", "views", "--top-k", "2", "--quiet")
    assert here(*LINE.split(), "--views", "digits", "--out", "run", *settings).code == 0
    done = here.ok("calibrate", "--run", "run", "--risk", "0.05", "--delta", "0.05")
    assert "top-2" in done.out
    policy, preds = sl.load_policy("policy.json"), sl.Predictions.open("run/predictions")
    assert (policy.predict_from, policy.top_k) == ("views", 2)
    assert policy.threshold == sl.certify(preds, risk=0.05, delta=0.05, predict_from="views", top_k=2).threshold
    done = here("calibrate", "--run", "run", "--coverage", "0.5", "--predict-from", "image", "--top-k", "1", "--force")
    policy = sl.load_policy("policy.json")
    assert (policy.predict_from, policy.top_k) == ("image", 1)
    assert "predicted from the image" in done.out


def test_unknown_images_are_evaluated_counted_by_calibrations_and_reported(here: Here) -> None:
    np.savez("noise.npz", images=np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8))
    done = here.ok(*LINE.split(), "--views", "identity", "--out", "run", "--unknown", "npz:noise.npz")
    assert "unknown detection" in done.out
    run = sl.open_run("run")
    assert run.accepted_unknowns is not None
    assert run.accepted_unknowns in done.out
    done = here.ok("calibrate", "--run", "run", "--risk", "0.05", "--delta", "0.05")
    assert str(run.count_accepted_unknowns(sl.load_policy("policy.json"))) in done.out
    here.ok("report", "run")
    assert "npz:noise.npz" in Path("run/report.html").read_text(encoding="utf-8")


def test_json_lists_skipped_images_and_warnings(here: Here) -> None:
    shutil.copytree("val", "some")
    Path("some/1/broken.png").write_bytes(b"no picture")
    line = "evaluate --model onnx:model.onnx --data folder:some --on-error skip --out run --metric accuracy"
    done = here.ok(*line.split(), "--resamples", "5", "--views", "identity hflip shift:1,0", "--json")
    assert [one["id"] for one in done.json["skipped"]] == ["1/broken.png"]
    assert done.json["skipped"][0]["reason"]
    assert "hflip" in done.json["warnings"][0]
    assert done.json["warnings"] == here("info", "run", "--json").json["warnings"]
    assert json.loads(Path("run/evaluation.json").read_text()) == done.json


def test_next_commands_are_quoted_for_the_shell(here: Here) -> None:
    done = here(*LINE.split(), "--views", "identity", "--out", "my run", "--metric", "accuracy")
    assert "secondlook report 'my run', or secondlook calibrate --run 'my run' --risk 0.01" in done.out
    done = here("calibrate", "--run", "my run", "--coverage", "0.5", "--out", "my policy.json", "--method", "msr")
    assert "secondlook score --policy 'my policy.json' --data" in done.out
    assert here("info", "my run", "--json").json["command"] == "secondlook evaluate --config 'my run/run.toml'"
