"""`--config`: options from a TOML file."""

import json
from pathlib import Path

import pytest

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
def test_lists_and_single_values_are_accepted(here: Here, more: str) -> None:
    Path("settings.toml").write_text(f"{NATURAL}{more}\n")
    done = here.ok("evaluate", "--config", "settings.toml", "--json")
    assert {(row["method"], row["metric"]) for row in done.json["rows"]} == {("msr", "auroc"), ("msr", "aurc")}
    record = json.loads(Path("run/run.json").read_text())
    assert record["views"] == ["identity", "shift:1,0", "hflip"]
    assert record["classifier"]["name"] == "onnx:model.onnx?mean=0.0,0.125,0.25&std=0.5&threads=1"


def test_options_have_the_names_that_help_shows(here: Here) -> None:
    Path("settings.toml").write_text(f"{NATURAL}quiet = true\nbatch-size = 64\non_error = 'skip'\n")
    done = here("evaluate", "--config", "settings.toml")
    assert (done.code, done.out, done.err) == (0, "", "")
    settings = json.loads(Path("run/run.json").read_text())["settings"]
    assert (settings["batch_size"], settings["on_error"]) == (64, "skip")
    Path("settings.toml").write_text('[report]\nrun = "run"\njson = true\ngalleries = false\n')
    told = here("report", "--config", "settings.toml").json
    assert (told["report"], told["notes"]) == ("run/report.html", [])


def test_unknown_option_lists_the_known_ones(here: Here) -> None:
    Path("settings.toml").write_text("[evaluate]\nmodel-opton = 'threads=1'\n")
    done = here.refuse(
        "evaluate",
        "--config",
        "settings.toml",
        told=("model-option, no-check, no-progress", "Did you mean 'model-option'?"),
    )
    assert "config" not in done.err.partition("known: ")[2]


@pytest.mark.parametrize("value", ["[1, 2]", "'many'"])
def test_invalid_number_is_named(here: Here, value: str) -> None:
    Path("settings.toml").write_text(f"[evaluate]\nmodel = 'm'\ndata = 'd'\nout = 'o'\nseed = {value}\n")
    here.fail("evaluate", "--config", "settings.toml", told="--seed")
