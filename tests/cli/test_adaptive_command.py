"""`secondlook calibrate --adaptive`: the schedule that it fits, prints and stores, and what it rejects."""

import json
from pathlib import Path
from typing import Any

import pytest

import secondlook as sl
from secondlook.cli.options import refuse
from secondlook.errors import DecisionError
from secondlook.policies import Schedule
from tests.cli.conftest import VIEWS, Here

RISK = ("--risk", "0.03", "--delta", "0.1")
SETTINGS: dict[str, Any] = {"resamples": 5, "check_setup": False, "execution": sl.Execution(progress=False)}


@pytest.mark.parametrize("goal", [RISK, ("--coverage", "0.8")], ids=["risk", "coverage"])
def test_policy_has_the_schedule_of_the_library(here: Here, run: Path, goal: tuple[str, ...]) -> None:
    done = here.calibrate(*goal, "--adaptive", "--json")
    opened = sl.open_run("run")
    options: dict[str, Any] = {"adaptive": True, "progress": False}
    expected = (
        opened.certify(risk=0.03, delta=0.1, **options)
        if goal is RISK
        else opened.threshold_for(coverage=0.8, **options)
    )
    policy = sl.load_policy("policy.json")
    assert json.loads(policy.model_dump_json()) == done.json
    assert policy.schedule is not None
    assert policy.schedule == expected.schedule
    assert policy.threshold == expected.threshold
    assert policy.views == policy.schedule.views
    assert policy.certified == (goal is RISK)
    assert policy.schedule.tolerance == Schedule.DEFAULT_TOLERANCE
    assert policy.calibration is not None
    assert policy.calibration.mean_looks is not None
    assert 1 <= policy.calibration.mean_looks < 5


def test_info_tells_the_schedule(here: Here, run: Path) -> None:
    here.calibrate(*RISK, "--adaptive", "--max-looks", "4")
    policy = sl.load_policy("policy.json")
    assert policy.schedule is not None
    assert policy.calibration is not None
    told = here("info", "policy.json").out
    facts = here("info", "policy.json", "--json").json
    assert f"tolerance of {100 * Schedule.DEFAULT_TOLERANCE:g} %" in facts["schedule"]
    assert f"fitted to {policy.schedule.images} images" in facts["schedule"]
    assert facts["summary"] == str(policy)
    assert str(policy.schedule.make_table(policy.threshold)) in told
    assert f"{policy.calibration.mean_looks:.2f} on average, at most 4:" in told
    assert f"{policy.calibration.differing} of {policy.calibration.images} " in told
    assert f"{100 * policy.calibration.differing_bound:.2g} %" in told  # type: ignore[operator]
    here.calibrate(*RISK, "--out", "all.json")
    assert sl.load_policy("all.json").views == tuple(VIEWS.split())
    facts = here("info", "all.json", "--json").json
    assert facts["schedule"] == "all views of every image"
    assert "looks: " not in facts["summary"]


def test_settings_file_takes_the_options(here: Here, run: Path) -> None:
    Path("settings.toml").write_text(
        '[calibrate]\nrun = "run"\ncoverage = 0.8\nadaptive = true\ntolerance = 0.05\nmax-looks = 3\n'
    )
    done = here("calibrate", "--config", "settings.toml", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    schedule = sl.load_policy("policy.json").schedule
    assert schedule is not None
    assert (schedule.tolerance, schedule.max_looks, schedule.full_looks) == (0.05, 3, 5)
    here.ok("calibrate", "--config", "settings.toml", "--max-looks", "4", "--out", "other.json")
    assert sl.load_policy("other.json").schedule.max_looks == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--risk 0.1 --tolerance 0.05", "--tolerance has no effect without --adaptive"),
        ("--coverage 0.8 --max-looks 3", "--max-looks has no effect without --adaptive"),
        ("--risk 0.1 --adaptive --tolerance 0", "--tolerance 0.0 "),
        ("--coverage 0.8 --adaptive --tolerance 1.5", "--tolerance 1.5 "),
        ("--risk 0.1 --adaptive --max-looks 1", "--max-looks 1 "),
        ("--risk 0.1 --adaptive --method msr", "'msr' is not a mean over views"),
        ("--coverage 0.8 --adaptive --method bootstrap-lower", "'mean', 'blend', 'learned'"),
    ],
)
def test_invalid_option_is_one_sentence(here: Here, run: Path, line: str, told: str) -> None:
    done = here.refuse("calibrate", "--run", "run", *line.split(), told=told)
    assert "=" not in done.err, "no arguments of Python"
    assert not Path("policy.json").exists()


@pytest.mark.parametrize(
    ("data", "views", "told"),
    [
        ("folder:val/?limit=200", VIEWS, ("at least 100 images", "50")),
        ("folder:val/", "identity", ("two views", "secondlook evaluate --views")),
    ],
    ids=["too few images", "one view"],
)
@pytest.mark.parametrize("goal", ["--risk 0.1", "--coverage 0.8"])
def test_run_that_cannot_be_adaptive_is_one_sentence(
    here: Here, data: str, views: str, told: tuple[str, ...], goal: str
) -> None:
    sl.create_run("onnx:model.onnx", data, out="run", views=views, **SETTINGS)
    done = here.refuse("calibrate", "--run", "run", "--adaptive", *goal.split())
    assert all(text in done.err for text in told), done.err
    assert "=" not in done.err


@pytest.mark.parametrize("value", [0, 0.0, "", "text", 3, True])
def test_option_that_was_given_needs_its_partner(value: object) -> None:
    refuse({"--a": None, "--c": False, "--d": []}, "without --b")
    with pytest.raises(DecisionError, match="--a has no effect without --b"):
        refuse({"--a": value}, "without --b")


def test_report_of_an_adaptive_calibration(here: Here, run: Path) -> None:
    """The page takes its risk and delta, but the operating points are those of all looks."""
    here.calibrate(*RISK, "--adaptive")
    told = here("report", "run", "--json").json
    assert told["guarantees"] == "risk 0.03 and delta 0.1 of the latest calibration of the run, for blend, adaptive"
    assert any("with all looks" in note for note in told["notes"])
    page = Path("run/report.html").read_text(encoding="utf-8")
    sentence = page.partition('id="adaptive-sentence">')[2].partition("</p>")[0]
    policy = sl.load_policy("policy.json")
    assert policy.calibration is not None
    assert sentence.startswith(f"{policy.calibration.mean_looks:.1f} looks on average instead of 5 certify")
    assert f"{100 * policy.coverage:.1f}" in sentence
    assert "--risk 0.03 --delta 0.1 --method blend --adaptive" in page
    assert '"calibrated":[],' in page
    here.calibrate(*RISK, "--out", "all.json")
    told = here("report", "run", "--json").json
    assert told["guarantees"] == "risk 0.03 and delta 0.1 of the latest calibration of the run, for blend"
    assert '"calibrated":["blend"],' in Path("run/report.html").read_text(encoding="utf-8")
    assert not any("with all looks" in note for note in told["notes"])
