"""`secondlook calibrate --per-class`: a threshold for each predicted class; what is printed, stored and rejected."""

import json
import math
from pathlib import Path

import pytest

import secondlook as sl
from tests.cli.conftest import Here

RISK = ("--risk", "0.2", "--delta", "0.1", "--method", "mean")


def test_policy_has_the_thresholds_of_the_library(here: Here, run: Path) -> None:
    done = here.calibrate(*RISK, "--per-class", "--class-risk", "3=0.4", "--class-risk", "8=0.001", "--json")
    rule = sl.certify(
        sl.open_run("run").predictions, "mean", risk={"*": 0.2, "3": 0.4, "8": 0.001}, delta=0.1, groups="class"
    )
    policy = sl.load_policy("policy.json")
    assert json.loads(policy.model_dump_json()) == done.json
    assert policy.groups == rule.groups
    assert policy.groups[8].threshold == math.inf
    assert policy.certified
    assert [group["risk"] for group in done.json["groups"]] == [0.2, 0.2, 0.2, 0.4, 0.2, 0.2, 0.2, 0.2, 0.001, 0.2]


def test_table_of_classes_is_printed(here: Here, run: Path) -> None:
    told = here.calibrate(*RISK, "--per-class", "--class-risk", "8=0.001").out
    policy = sl.load_policy("policy.json")
    assert "jointly with 90 % confidence" in told
    assert str(policy.list_tables()[0]) in told
    eight = next(line for line in told.splitlines() if line.startswith("8 "))
    assert f"needs {policy.groups[8].additional_images:,} more" in eight
    told = here("info", "policy.json")
    assert str(policy.list_tables()[0]) in told.out
    assert f"accept where {policy.method} >= the threshold of the predicted class" in told.out
    assert here("info", "policy.json", "--json").json["summary"] == str(policy)


def test_compared_methods_are_printed(here: Here, run: Path) -> None:
    told = here.calibrate("--risk", "0.2", "--delta", "0.1", "--method", "msr,mean", "--per-class").out
    policy = sl.load_policy("policy.json")
    assert len(policy.compared) == 2
    assert str(policy.list_tables()[1]) in told
    assert "best of 2" in told
    assert str(policy.list_tables()[1]) in here("info", "policy.json").out


def test_new_images_are_scored_by_class(here: Here, run: Path) -> None:
    here.calibrate(*RISK, "--per-class", "--class-risk", "8=0.001")
    here.ok("score", "--policy", "policy.json", "--data", "folder:new/", "--out", "scores.jsonl", "--quiet")
    rows = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    groups = sl.load_policy("policy.json").groups
    for row in rows:
        assert row["accept"] == (row["confidence"] >= groups[row["label"]].threshold)
    assert not any(row["accept"] for row in rows if row["label"] == 8)


def test_report_of_a_calibration_per_class(here: Here, run: Path) -> None:
    here.calibrate(*RISK, "--per-class")
    told = here("report", "run", "--json").json
    assert told["guarantees"].endswith("for mean, with a threshold for each class")
    assert any("threshold for each predicted class" in note for note in told["notes"])
    assert '"calibrated":[],' in Path("run/report.html").read_text(encoding="utf-8")


def test_settings_file_can_have_risks_of_classes(here: Here, run: Path) -> None:
    Path("settings.toml").write_text(
        '[calibrate]\nrun = "run"\nrisk = 0.2\ndelta = 0.1\nper-class = true\nclass-risk = ["3=0.4"]\n'
    )
    here.ok("calibrate", "--config", "settings.toml")
    assert sl.load_policy("policy.json").groups[3].risk == 0.4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--risk 0.2 --class-risk 3=0.1", "--class-risk has no effect without --per-class"),
        ("--coverage 0.8 --per-class", "--per-class has no effect without --risk"),
        ("--risk 0.2 --per-class --adaptive", "--adaptive"),
        ("--risk 0.2 --per-class --class-risk 3", "--class-risk '3'"),
        ("--risk 0.2 --per-class --class-risk 3=x", "--class-risk '3=x'"),
        ("--risk 0.2 --per-class --class-risk 3=0", "--class-risk '3=0'"),
        ("--risk 0.2 --per-class --class-risk 3=0.1 --class-risk 3=0.2", "'3' a risk twice"),
        ("--risk 0.2 --per-class --class-risk 33=0.1", "--class-risk names '33'"),
        ("--risk 2 --per-class", "--risk 2.0 "),
        ("--risk 0.001 --per-class", "more labeled images of it"),
    ],
)
def test_invalid_options_are_one_sentence(here: Here, run: Path, words: str, told: str) -> None:
    done = here.refuse("calibrate", "--run", "run", *words.split(), told=told)
    assert "groups=" not in done.err
    assert not Path("policy.json").exists()
