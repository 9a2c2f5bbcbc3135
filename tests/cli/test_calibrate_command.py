"""`secondlook calibrate`: what it writes, prints, refuses to replace and rejects, with each of its options."""

import json
import math
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import secondlook as sl
from secondlook.policies import Schedule, threshold_for
from tests.cli.conftest import VIEWS, Here

DATA = "folder:val/?limit=60"

FUNCTION = """
import numpy as np

def predict(batch):
    bright = batch.mean(axis=(1, 2, 3))[:, None] / 255
    weights = np.exp(-(bright - np.linspace(0, 1, 10)) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)
"""


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
    if models[0].startswith("sklearn:"):  # trained on pixels from 0 to 16, which its options must tell
        source = sl.open_source("folder:val/")
        pixels = np.stack([source.read(index) for index in range(len(source))]).reshape(len(source), -1) / 255 * 16
        Path("my model.pkl").write_bytes(pickle.dumps(LogisticRegression(max_iter=20).fit(pixels, source.labels)))
    given = [word for model in models for word in ("--model", model)]
    here.ok(
        "evaluate", *given, "--data", DATA, "--views", "identity shift:1,0", "--out", "run", "--resamples", "5", "-q"
    )
    done = here.ok("calibrate", "--run", "run", "--coverage", "0.5", "--out", "my policy.json")
    command = shlex.split(done.out.partition("Next: ")[2])
    assert command[:2] == ["secondlook", "score"]
    assert ("--model" in command) == any(not model.startswith("onnx:") for model in models)
    assert here.ok(*command[1:]).out.startswith("40 images: ")


def test_classifier_made_in_python_is_scored_in_python(here: Here) -> None:
    module: dict[str, Any] = {}
    exec(FUNCTION, module)
    model = sl.load_classifier(module["predict"], name="my function")
    sl.create_run(model, DATA, out="run", views="identity", **SETTINGS)
    done = here.ok("calibrate", "--run", "run", "--coverage", "0.5")
    assert "secondlook.score('policy.json'" in done.out
    assert "Next: secondlook" not in done.out


def test_another_policy_or_file_is_replaced_only_by_force(here: Here, run: Path) -> None:
    calibrate = ("calibrate", "--run", "run", "--coverage")
    here.ok(*calibrate, "0.5")
    first = Path("policy.json").read_bytes()
    told = ("'policy.json'", "another policy", json.loads(first)["made"], "--force", "another name")
    assert "overwrite" not in here.fail(*calibrate, "0.9", told=told).err
    assert Path("policy.json").read_bytes() == first
    assert here(*calibrate, "0.5").code == 0, "the same policy may be written again"
    here.ok(*calibrate, "0.9", "--force")
    assert sl.load_policy("policy.json").threshold < json.loads(first)["threshold"]
    Path("notes.json").write_text("{}")
    Path("empty.json").touch()
    here.fail(*calibrate, "0.5", "--out", "notes.json", told="'notes.json'")
    assert Path("notes.json").read_text() == "{}"
    here.ok(*calibrate, "0.5", "--out", "notes.json", "--force")
    here.ok(*calibrate, "0.5", "--out", "empty.json")


CALIBRATE = "calibrate --run run --risk 0.1 --delta 0.1 --force"


def test_second_calibration_on_the_same_images_is_told(here: Here, run: Path) -> None:
    for _ in range(2):
        assert "warning" not in here(*CALIBRATE.split()).err
    done = here.ok(*CALIBRATE.split(), "--method", "msr", "--out", "other.json")
    assert "20 %" in done.err
    assert "--method" in done.err
    assert "20 %" in done.out
    done = here.ok(*CALIBRATE.removesuffix(" --force").split(), "--json")
    assert done.json["calibration"]["joint_delta"] == 0.2, "which does not make it another policy"
    quiet = here(*CALIBRATE.split(), "--quiet")
    assert (quiet.out, quiet.err) == ("", "")
    assert "20 %" in str(sl.load_policy("policy.json"))
    sl.create_run("onnx:model.onnx", "folder:val/", out="run", views=VIEWS, **SETTINGS)
    assert "30 %" in here(*CALIBRATE.split(), "--method", "zero").err
    before = json.loads(Path("run/calibrations.json").read_text())["calibrations"]
    here.fail("calibrate", "--run", "run", "--risk", "0.01", told="roughly")
    *others, last = json.loads(Path("run/calibrations.json").read_text())["calibrations"]
    assert others == before, "a suggestion is not a calibration"
    assert (last["risk"], last["delta"]) == (0.01, 0.001)


def test_several_methods_share_delta(here: Here, run: Path) -> None:
    done = here.ok(*CALIBRATE.split(), *(f"--method={name}" for name in ("msr", "view:shift:1,0", "mean")))
    assert "warning" not in done.err
    methods = ["msr", "view:shift:1,0", "mean"]
    rule = sl.certify(sl.Predictions.open("run/predictions"), methods, risk=0.1, delta=0.1)
    policy = sl.load_policy("policy.json")
    assert (policy.method, policy.threshold) == (rule.method, rule.threshold)
    assert policy.guarantee is not None
    assert policy.guarantee.delta == 0.1
    Path("settings.toml").write_text('[calibrate]\nmethod = ["msr", "view:shift:1,0", "mean"]\n')
    done = here.ok(*CALIBRATE.split(), "--config", "settings.toml")
    assert "warning" not in done.err, "the same calibration again"


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
    Path("settings.toml").write_text(
        '[calibrate]\nrun = "run"\nrisk = 0.2\ndelta = 0.1\nclass-thresholds = true\nclass-risk = ["3=0.4"]\n'
    )
    here.ok("calibrate", "--config", "settings.toml", "--force")
    assert sl.load_policy("policy.json").groups[3].risk == 0.4


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


def test_report_of_an_adaptive_calibration(here: Here, run: Path) -> None:
    """The page shows the decisions of the adaptive policy, and its looks."""
    here.calibrate(*RISK, "--adaptive")
    told = here("report", "run", "--json").json
    assert "of the latest calibration of the run, for blend: at most 3 % errors" in told["guarantees"]
    assert told["notes"] == []
    page = Path("run/report.html").read_text(encoding="utf-8")
    sentence = page.partition('id="adaptive-sentence">')[2].partition("</p>")[0]
    policy = sl.load_policy("policy.json")
    assert policy.calibration is not None
    assert sentence.startswith(f"{policy.calibration.mean_looks:.1f} looks on average instead of 5 certify")
    assert f"{100 * policy.coverage:.1f}" in sentence
    assert "--risk 0.03 --delta 0.1 --method blend --adaptive" in page
    assert f"{policy.calibration.mean_looks:.2f} looks on average instead of 5" in page
    here.calibrate(*RISK, "--out", "all.json")
    told = here("report", "run", "--json").json
    assert "looks on average instead of 5." not in Path("run/report.html").read_text(encoding="utf-8")


CLASS_RISK = ("--risk", "0.2", "--delta", "0.1", "--method", "mean")


def test_policy_per_class_has_the_thresholds_of_the_library(here: Here, run: Path) -> None:
    words = (*CLASS_RISK, "--class-thresholds", "--class-risk", "3=0.4", "--class-risk", "8=0.001")
    done = here.calibrate(*words, "--json")
    rule = sl.certify(
        sl.open_run("run").predictions, "mean", risk={"*": 0.2, "3": 0.4, "8": 0.001}, delta=0.1, groups="class"
    )
    policy = sl.load_policy("policy.json")
    assert json.loads(policy.model_dump_json()) == done.json
    assert policy.groups == rule.groups
    assert policy.groups[8].threshold == math.inf
    assert policy.certified
    assert [group["risk"] for group in done.json["groups"]] == [0.2, 0.2, 0.2, 0.4, 0.2, 0.2, 0.2, 0.2, 0.001, 0.2]
    told, shown = here.calibrate(*words).out, here("info", "policy.json").out
    assert "jointly with 90 % confidence" in told
    assert str(policy.list_tables()[0]) in told
    eight = next(line for line in told.splitlines() if line.startswith("8 "))
    assert f"needs {policy.groups[8].additional_images:,} more" in eight
    assert str(policy.list_tables()[0]) in shown
    assert f"accept where {policy.method} >= the threshold of the predicted class" in shown
    assert here("info", "policy.json", "--json").json["summary"] == str(sl.load_policy("policy.json"))
    here.ok("score", "--policy", "policy.json", "--data", "folder:new/", "--out", "scores.jsonl", "--quiet")
    rows = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["accept"] == (row["confidence"] >= policy.groups[row["label"]].threshold)
    assert not any(row["accept"] for row in rows if row["label"] == 8)
    report = here("report", "run", "--json").json
    assert report["guarantees"].endswith(f"for mean: {policy.guarantee}")
    told = here.calibrate(
        "--risk", "0.2", "--delta", "0.1", "--method", "msr", "--method", "mean", "--class-thresholds", "--force"
    ).out
    policy = sl.load_policy("policy.json")
    assert len(policy.compared) == 2
    assert "best of 2" in told
    for text in (told, here("info", "policy.json").out):
        assert str(policy.list_tables()[1]) in text


def test_classes_of_a_group_share_a_threshold(here: Here, run: Path) -> None:
    Path("groups.json").write_text('{"round": ["0", "6", "8", 9]}')
    words = (*CLASS_RISK, "--class-thresholds", "--class-groups", "groups.json", "--class-risk", "round=0.1")
    told = here.calibrate(*words).out
    groups: dict[str, list[str | int]] = {"round": [0, 6, 8, 9]}
    risk = {"round": 0.1, "*": 0.2}
    rule = sl.certify(sl.open_run("run").predictions, "mean", risk=risk, delta=0.1, groups=groups)
    policy = sl.load_policy("policy.json")
    assert policy.groups == rule.groups
    assert policy.shared_classes == groups
    assert "every group of predicted classes" in told
    here.ok("score", "--policy", "policy.json", "--data", "folder:new/", "--out", "scores.jsonl", "--quiet")
    rows = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    assert all(row["accept"] == (row["confidence"] >= policy.groups[row["label"]].threshold) for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--risk 0.1 --class-groups run/run.json", "--class-groups has no effect without --class-thresholds"),
        ("--risk 0.1 --class-thresholds --class-groups run/run.json", "--class-groups 'run/run.json'"),
        ("--risk 0.1 --class-thresholds --class-groups absent.json", "--class-groups 'absent.json'"),
        ("--risk 0.1 --coverage 0.5", "--coverage"),
        ("", "--coverage"),
        ("--risk 7", "7.0"),
        ("--risk 0.0001", "0.01 %"),
        ("--risk 0.1 --method bootstrap", "'bootstrap'"),
        ("--risk 0.1 --out absent/policy.json", "'absent/policy.json'"),
        ("--risk 0.1 --method mean --method mean", "'mean'"),
        ("--risk 0.1 --method mean --method meen", "Did you mean 'mean'?"),
        ("--coverage 0.5 --method mean --method msr", "--method"),
        ("--risk 0.1 --delta inf", "--delta inf"),
        ("--risk 0.1 --tolerance 0.05", "--tolerance has no effect without --adaptive"),
        ("--coverage 0.8 --max-looks 3", "--max-looks has no effect without --adaptive"),
        ("--risk 0.1 --tolerance 0", "--tolerance has no effect without --adaptive"),
        ("--risk 0.1 --max-looks 0", "--max-looks has no effect without --adaptive"),
        ("--risk 0.1 --adaptive --tolerance 0", "--tolerance 0.0 "),
        ("--coverage 0.8 --adaptive --tolerance 1.5", "--tolerance 1.5 "),
        ("--risk 0.1 --adaptive --max-looks 1", "--max-looks 1 "),
        ("--risk 0.1 --adaptive --method msr", "'msr' is not a mean over views"),
        ("--coverage 0.8 --adaptive --method zero", "'mean', 'blend', 'learned'"),
        ("--risk 0.2 --class-risk 3=0.1", "--class-risk has no effect without --class-thresholds"),
        ("--coverage 0.8 --class-thresholds", "--class-thresholds has no effect without --risk"),
        ("--risk 0.2 --class-thresholds --adaptive", "--adaptive"),
        ("--risk 0.2 --class-thresholds --class-risk 3", "--class-risk '3'"),
        ("--risk 0.2 --class-thresholds --class-risk 3=x", "--class-risk '3=x'"),
        ("--risk 0.2 --class-thresholds --class-risk 3=0", "--class-risk '3=0'"),
        ("--risk 0.2 --class-thresholds --class-risk 3=0.1 --class-risk 3=0.2", "'3' a risk twice"),
        ("--risk 0.2 --class-thresholds --class-risk 33=0.1", "--class-risk names '33'"),
        ("--risk 2 --class-thresholds", "--risk 2.0 "),
        ("--risk 0.001 --class-thresholds", "more labeled images of"),
        ("--coverage 0.7 --shift-images 60", "--shifts"),
        ("--coverage 0.7 --unknown-budget 0.02", "--unknown-budget has no effect without --risk"),
        ("--coverage 0.7 --unknown folder:val", "--unknown has no effect without --risk"),
        ("--risk 0.2 --unknown-budget 2", "--unknown-budget 2.0 "),
        ("--risk 0.2 --unknown folder:none", "'none'"),
        ("--risk 0.2 --unknown folder:val/?limit=19", "--unknown has 19 images"),
        ("--risk 0.2 --model onnx:m.onnx", "--model has no effect without --shifts or --unknown"),
    ],
)
def test_invalid_options_are_one_sentence(here: Here, run: Path, words: str, told: str) -> None:
    done = here.refuse("calibrate", "--run", "run", *words.split(), told=told)
    assert not re.search(r"\b[a-z_]+=", re.sub(r"'[^']*'", "", done.err)), "no arguments of Python"
    assert not Path("policy.json").exists()


def test_shifts_are_learned_printed_and_stored(here: Here, run: Path) -> None:
    line = ("calibrate", "--run", "run", "--coverage", "0.7")
    shifts = (*line, "--shifts", "--shift-images", "60")
    done = here.ok(*shifts)
    assert "60 images" in done.err, "the cost comes first"
    assert f"{60 * (1 + 30 * 5):,} looks" in done.err
    assert "zoom out" in done.out
    assert "not a guarantee" in done.out
    learned = sl.load_policy("policy.json")
    assert learned.shifts is not None
    assert learned.shifts.images == 60
    here.ok(*line, "--out", "plain.json")
    assert sl.load_policy("plain.json").shifts is None
    assert sl.load_policy("plain.json").threshold == learned.threshold
    content = here(*shifts, "--out", "policy2.json", "--json").json
    assert [one["kind"] for one in content["shifts"]["shifts"]][:2] == ["noise", "blur"]
    assert content["shifts"]["images"] == 60
    done = here.ok(*shifts, "--model", "onnx:m.onnx", "--force", "--quiet")
    assert done.out == done.err == ""
    here.fail(*line, "--shifts", "--shift-images", "20", told="--shift-images")
    here.fail(*line, "--shifts", "--model", "onnx:none.onnx", told="none.onnx")


def test_examples_of_unknown_images_limit_the_familiarity(here: Here, run: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez("noise.npz", images=rng.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8))
    terms = ("--risk", "0.1", "--delta", "0.05")
    done = here.calibrate(*terms, "--unknown", "npz:noise.npz", "--unknown-budget", "0.03")
    policy, opened = sl.load_policy("policy.json"), sl.open_run("run")
    examples = opened.collect_unknown("npz:noise.npz")
    tuning = opened.tuning_positions if len(opened.tuning_positions) else None
    made = sl.certify(opened.predictions, risk=0.1, delta=0.05, tuning=tuning, unknown=examples, unknown_budget=0.03)
    assert (policy.threshold, policy.familiarity, policy.unknown) == (made.threshold, made.familiarity, made.unknown)
    assert policy.unknown is not None
    assert policy.unknown.data == "npz:noise.npz"
    for text in (str(policy.familiarity), str(policy.unknown)):
        assert text in done.out
    here.ok("score", "--policy", "policy.json", "--data", "npz:noise.npz", "--out", "scores.csv", "--quiet")
    rows = Path("scores.csv").read_text().splitlines()
    assert sum(",unfamiliar," in row for row in rows) > 0
    here.calibrate(*terms, "--unknown-budget", "0.05", "--force")
    alone = sl.load_policy("policy.json")
    assert alone.unknown is None
    assert alone.familiarity is not None
    assert (alone.familiarity.weights, alone.familiarity.budget) == ((), 0.05)


def test_costs_choose_the_threshold_with_the_least_cost(here: Here, run: Path) -> None:
    """Other costs on the same images need no other guarantee; a risk does."""
    costs = ("--cost-error", "50", "--cost-review", "1", "--method", "mean", "--delta", "0.1")
    done = here.calibrate(*costs, "--json")
    made = done.json
    preds = sl.Predictions.open("run/predictions")
    expected = threshold_for(preds, "mean", cost_error=50, cost_review=1, delta=0.1)
    assert made["threshold"] == expected.threshold
    assert made["costs"]["per_image"] < made["costs"]["review"]
    assert expected.guarantee is not None
    assert made["guarantee"]["risk"] == expected.guarantee.risk
    told = here.calibrate(*costs, "--force")
    assert "less than reviewing all" in told.out
    assert "warning" not in told.err
    assert "warning" not in here.calibrate(*costs, "--cost-error", "20", "--force").err
    assert "2 different calibrations" in here.calibrate("--risk", "0.2", "--delta", "0.1", "--force").err
    assert "at most 20 % errors" in here.ok("report", "run", "--no-galleries").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--cost-error 50", "--cost-review"),
        ("--cost-error 0 --cost-review 1", "--cost-error 0"),
        ("--cost-error inf --cost-review 1", "--cost-error inf"),
        ("--cost-error 50 --cost-review 1 --risk 0.1", "--cost-error"),
        ("--cost-error 50 --cost-review 1 --class-thresholds", "--class-thresholds"),
        ("--cost-error 50 --cost-review 1 --unknown-budget 0.1", "--unknown-budget"),
    ],
)
def test_invalid_costs_name_the_option(here: Here, run: Path, words: str, told: str) -> None:
    here.refuse("calibrate", "--run", "run", *words.split(), told=told)


def test_an_interrupted_evaluation_is_to_be_resumed(here: Here, run: Path) -> None:
    (run / "run.json").unlink()
    for words in (("calibrate", "--run", "run", "--risk", "0.1"), ("report", "run"), ("info", "run")):
        done = here.refuse(*words, told=("'run'", "interrupted", "resume"))
        assert "not a" not in done.err
