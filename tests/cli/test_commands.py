"""The commands from a model to a policy, as users run them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import secondlook as sl
from secondlook.progress import HUGGING_FACE_SWITCHES
from tests.cli.conftest import Here

LINE = "evaluate --model onnx:model.onnx --data folder:val/ --views digits --out run --resamples 40"
EVALUATE = LINE.split()


@pytest.fixture
def evaluated(here: Here) -> Path:
    """A finished run."""
    done = here(*EVALUATE, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    return Path("run")


def test_evaluate_prints_the_numbers_of_the_library(here: Here) -> None:
    done = here.ok(*EVALUATE, "--json")
    values = {(row["method"], row["metric"]): row["value"] for row in done.json["rows"]}
    preds = sl.collect(sl.load_classifier("onnx:model.onnx"), "folder:val/", "digits")
    for method in ("msr", "mean"):
        expected = sl.metrics.auroc(preds.correct(), sl.confidence(preds, method))
        assert values[method, "auroc"] == pytest.approx(expected, abs=1e-12)
    assert json.loads(Path("run/evaluation.json").read_text()) == done.json
    done = here(*EVALUATE, "--metric", "auroc", "--method", "msr", "--method", "mean")
    assert done.out.startswith("Confidence: ")
    assert "400 images" in done.out
    assert "95 % interval  " not in done.out
    assert "auroc ↑\n msr" in here(*EVALUATE, "--metric", "auroc", "--verbose").out
    assert "bootstrap" not in done.out
    assert "secondlook calibrate --run run" in done.out


def test_written_settings_repeat_the_run_with_the_same_bytes(here: Here, evaluated: Path) -> None:
    first = {path: path.read_bytes() for path in evaluated.rglob("*") if path.is_file()}
    Path("run/run.toml").rename("run.toml")
    shutil.rmtree(evaluated)
    evaluated.mkdir()
    Path("run.toml").rename("run/run.toml")
    here.ok("evaluate", "--config", "run/run.toml", "--quiet")
    assert {path: path.read_bytes() for path in evaluated.rglob("*") if path.is_file()} == first
    Path("run/report.html").write_text("...")
    assert "report.html" not in here(*EVALUATE).out, "the same run"
    assert "Removed run/report.html" in here(*EVALUATE, "--seed", "1").out
    assert not Path("run/report.html").exists()


def test_options_override_the_settings_file(here: Here) -> None:
    Path("settings.toml").write_text('[evaluate]\nmodel = ["onnx:model.onnx"]\nviews = "identity"\nresamples = 5\n')
    given = ("--data", "folder:val/", "--out", "run", "--seed", "3", "--json")
    for line, expected in ((("evaluate", *given), (1, 5, 3)), ((*EVALUATE, *given), (15, 40, 3))):
        done = here(*line, "--config", "settings.toml")
        assert (done.json["views"], done.json["resamples"], done.json["seed"]) == expected


def test_bad_settings_file_is_rejected(here: Here) -> None:
    unknown, other = "[evaluate]\nmodle = 'x'\n", "[score]\nout = 'x'\n"
    for text, value in ((unknown, "'modle'"), (other, "[evaluate]"), ("[evaluate", "settings.toml")):
        Path("settings.toml").write_text(text)
        here.refuse("evaluate", "--config", "settings.toml", told=value)


def test_calibrate_writes_a_policy_that_info_describes(here: Here, evaluated: Path) -> None:
    done = here.ok("calibrate", "--run", "run", "--risk", "0.05", "--delta", "0.05")
    policy = sl.load_policy("policy.json")
    preds = sl.collect(sl.load_classifier("onnx:model.onnx"), "folder:val/", "digits")
    assert policy.threshold == sl.certify(preds, risk=0.05, delta=0.05).threshold
    told = here("info", "policy.json", "--json").json
    assert (told["what"], told["classifier digest"]) == ("policy", policy.known_classifier.digest)
    for out in (done.out, here("info", "policy.json").out):
        assert "5 % errors" in out


def test_search_chooses_from_a_pool(here: Here) -> None:
    here.ok("views", "candidates", "digits", "--image-size", "16", "-n", "14", "-o", "pool.txt")
    pool = [word if word != "digits" else "pool.txt" for word in EVALUATE]
    here.ok(*pool, "--quiet")
    done = here.ok("search", "--run", "run", "--budget", "4", "--out", "views.txt", "--no-progress")
    assert 1 < len(sl.ViewSet("views.txt")) <= 1 + 4
    assert done.out.splitlines()[-1] == "Written: views.txt"
    told = here("search", "--run", "run", "--budget", "1", "--out", "a.txt", "--json").json
    assert (told["files"], len(told["views"])) == (["a.txt"], 2)
    assert here("search", "--run", "run", "--budget", "1", "--out", "views.csv").code == 2
    assert here("search", "--run", "run", "--budget", "0").code == 2


@pytest.mark.parametrize("option", ["--quiet", "--no-progress"])
def test_hidden_bars_include_those_of_hugging_face(here: Here, option: str) -> None:
    assert here("report", "missing").code == 2
    assert not set(HUGGING_FACE_SWITCHES) & os.environ.keys()
    assert here("report", "missing", option).code == 2
    assert {os.environ[name] for name in HUGGING_FACE_SWITCHES} == {"1"}


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("onnx:http://user:secret@host.invalid/m.onnx", "http://***@host.invalid/m.onnx"),
        ("hf:https://user:secret@host.invalid/m", "https://***@host.invalid/m"),
        ("onnx:absent.onnx?token=secret", "?token=***"),
        ("onnx:absent.onnx?size=3&Password=secret", "&Password=***"),
    ],
)
def test_credentials_are_not_printed(here: Here, model: str, shown: str) -> None:
    done = here.fail("evaluate", "--model", model, "--data", "folder:val", "--out", "x", told=shown)
    assert "secret" not in done.out + done.err


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("evaluate --model onnx:absent.onnx --data folder:val/ --out x", "'absent.onnx'"),
        ("evaluate --model model.onnx --data folder:val/ --out x", "Did you mean 'onnx:model.onnx'?"),
        ("evaluate --model onnx:photo.jpg --data folder:val/ --out x", "photo.jpg"),
        ("evaluate --model onnx:model.onnx --data folder:absent --out x", "'absent'"),
        ("evaluate --model onnx:model.onnx --data fodler:val/ --out x", "Did you mean 'folder'?"),
        ("evaluate --model onnx:model.onnx --data folder:new/ --out x", "labels"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --views digitz", "Did you mean 'digits'?"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --predict-from z --views identity", "'z'"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --metric aurok --views identity", "'auroc'?"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --method meen --views identity", "'mean'?"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --on-error maybe", "'maybe'"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --level 95 --views identity", "--level 95.0"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --top-k 11 --views identity", "--top-k 11"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out x --model-option threads", "'threads'"),
        ("evaluate --model onnx:model.onnx --data folder:val/ --out photo.jpg/x", "photo.jpg/x"),
        ("calibrate --run absent --risk 0.1", "'absent'"),
        ("calibrate --run empty --risk 0.1", "run.json"),
        ("calibrate --run damaged --risk 0.1", "damaged/run.json"),
        ("report absent", "'absent'"),
        ("compare absent", "'absent'"),
        ("info absent.json", "'absent.json'"),
        ("info damaged/run.json", "damaged/run.json"),
        ("search --run absent", "'absent'"),
        ("list everything", "'everything'"),
        ("views candidates nature", "Did you mean 'natural'?"),
    ],
)
def test_bad_input_is_named_and_exits_with_code_2(here: Here, line: str, value: str) -> None:
    Path("empty").mkdir()
    Path("damaged").mkdir()
    Path("damaged/run.json").write_text('{"format": "secondlook run", "version": 7}')
    here.fail(*line.split(), told=value)


def test_damaged_chunk_of_a_run_is_named(here: Here, run: Path) -> None:
    chunk = next(run.rglob("part-*.parquet"))
    chunk.write_bytes(chunk.read_bytes()[:-40])
    here.refuse("calibrate", "--run", "run", "--risk", "0.05", told=str(chunk))


@pytest.mark.posix
def test_ctrl_c_says_how_to_resume(digits: Path, tmp_path: Path) -> None:
    code = (
        "import time, numpy\ndef classify(images):\n    time.sleep(0.05)\n    return numpy.full((len(images), 10), 0.1)"
    )
    (tmp_path / "slow.py").write_text(code)
    program = Path(sys.executable).with_name("secondlook")
    line = [str(program), "evaluate", "--model", "function:slow:classify?name=slow", "--data", f"folder:{digits}/val"]
    line += ["--out", "run", "--batch-size", "4", "--views", "digits", "--resamples", "10"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as started:
        while not list(tmp_path.rglob("part-*.parquet")) and started.poll() is None:
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=300)
    assert started.returncode == 130
    assert "resume" in err
    assert "Traceback" not in err


def test_every_command_has_an_example_and_is_completed(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here("--version").out == f"secondlook {sl.__version__}\n"
    listed = here("--help").out
    commands = ("demo", "evaluate", "calibrate", "score", "export", "verify", "monitor", "report", "compare", "info")
    for command in (*commands, "search", "list", "views show", "views candidates"):
        assert command.split()[0] in listed
        assert f"Example: secondlook {command}" in here(*command.split(), "--help").out
    monkeypatch.setenv("_SECONDLOOK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "secondlook ev")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "evaluate" in here().out
