"""Options are checked before anything is computed, and later commands use the settings of the run."""

import json
import shutil
from pathlib import Path

import numpy as np

import secondlook as sl
from tests.cli.conftest import VIEWS, Here

LINE = "evaluate --model onnx:model.onnx --data folder:val/ --resamples 5"


def test_calibrate_uses_the_settings_of_the_run(here: Here) -> None:
    assert (
        here(
            *LINE.split(), "--views", "digits", "--out", "run", "--predict-from", "views", "--top-k", "2", "--quiet"
        ).code
        == 0
    )
    done = here.ok("calibrate", "--run", "run", "--risk", "0.05", "--delta", "0.05")
    assert "top-2" in done.out
    policy = sl.load_policy("policy.json")
    preds = sl.Predictions.open("run/predictions")
    assert (policy.predict_from, policy.top_k) == ("views", 2)
    assert policy.threshold == sl.certify(preds, risk=0.05, delta=0.05, predict_from="views", top_k=2).threshold
    done = here("calibrate", "--run", "run", "--coverage", "0.5", "--predict-from", "image", "--top-k", "1", "--force")
    policy = sl.load_policy("policy.json")
    assert (policy.predict_from, policy.top_k) == ("image", 1)
    assert "predicted from the image" in done.out


def test_report_notes_out_of_distribution_images(here: Here) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    np.savez("noise.npz", images=noise)
    line = [*LINE.split(), "--views", "identity", "--out", "run", "--quiet"]
    here.ok(*line, "--ood", "npz:noise.npz")
    told = here("report", "run", "--json").json
    assert told["report"] == "run/report.html"
    assert any("npz:noise.npz" in note for note in told["notes"])
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


def test_unreadable_record_is_not_reported_as_missing(here: Here) -> None:
    Path("run/run.json").mkdir(parents=True)
    here.refuse("report", "run", told="Is a directory")


def test_next_commands_are_quoted_for_the_shell(here: Here) -> None:
    done = here(*LINE.split(), "--views", "identity", "--out", "my run", "--metric", "accuracy")
    assert "secondlook report 'my run', or secondlook calibrate --run 'my run' --risk 0.01" in done.out
    done = here("calibrate", "--run", "my run", "--coverage", "0.5", "--out", "my policy.json", "--method", "msr")
    assert "secondlook score --policy 'my policy.json' --data" in done.out
    assert here("info", "my run", "--json").json["command"] == "secondlook evaluate --config 'my run/run.toml'"


CALIBRATE = "calibrate --run run --risk 0.1 --delta 0.1 --force"


def test_second_calibration_on_the_same_images_is_told(here: Here, run: Path) -> None:
    assert "warning" not in here(*CALIBRATE.split()).err
    assert "warning" not in here(*CALIBRATE.split()).err
    done = here.ok(*CALIBRATE.split(), "--method", "msr")
    assert "20 %" in done.err
    assert "--method" in done.err
    assert "20 %" in done.out
    done = here(*CALIBRATE.split(), "--json")
    assert done.json["calibration"]["joint_delta"] == 0.2
    quiet = here(*CALIBRATE.split(), "--quiet")
    assert (quiet.out, quiet.err) == ("", "")
    assert "20 %" in str(sl.load_policy("policy.json"))
    here.ok(*LINE.split(), "--views", VIEWS, "--out", "run", "--quiet")
    assert "30 %" in here(*CALIBRATE.split(), "--method", "entropy").err


def test_several_methods_share_delta(here: Here, run: Path) -> None:
    done = here.ok(*CALIBRATE.split(), "--method", "msr, view:shift:1,0,mean")
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
