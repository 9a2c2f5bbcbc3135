"""`secondlook export`, `secondlook verify`, and other commands with an exported file."""

import csv
import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
from onnx import numpy_helper

import secondlook as sl
from secondlook.classifiers import OnnxFile
from secondlook.onnx_export import verify_export
from tests.cli.conftest import Here

EXPORT = ("export", "--policy", "policy.json", "--out", "decide.onnx")
AGAIN = (*EXPORT, "--force")
SCORE = ("score", "--policy", "decide.onnx", "--data", "folder:new", "--no-progress")


@pytest.fixture
def exported(here: Here, run: Path) -> Here:
    """A folder with a policy and the file that it was exported to."""
    here.calibrate("--risk", "0.1", "--delta", "0.1", "--quiet")
    done = here(*EXPORT, "--quiet")
    assert (done.code, done.out) == (0, ""), done.err
    return here


def test_export_tells_what_it_wrote(exported: Here) -> None:
    other = ("export", "--policy", "policy.json", "--out", "other.onnx")
    assert "other.onnx" in exported.ok(*other).out
    facts = exported(*other, "--force", "--json").json
    assert (facts["path"], facts["size"]) == ("other.onnx", Path("other.onnx").stat().st_size)
    assert (facts["image_shape"], facts["pixels"]) == ([16, 16, 3], "uint8")
    assert Path("other.onnx").read_bytes() == Path("decide.onnx").read_bytes()
    onnx.checker.check_model("decide.onnx", full_check=True)
    Path("settings.toml").write_text('[export]\npolicy = "policy.json"\nout = "settings.onnx"\npixels = "float32"\n')
    for words in ((*other[:-1], "real.onnx", "--pixels", "float32"), ("export", "--config", "settings.toml")):
        assert exported(*words, "--json").json["pixels"] == "float32"


VERIFY = ("verify", "decide.onnx", "--policy", "policy.json", "--data", "folder:val", "--no-progress")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (EXPORT, "--force"),
        ((*EXPORT, "--out", "decide.json"), "decide.json"),
        ((*EXPORT, "--out", "absent/decide.onnx"), "absent"),
        ((*AGAIN, "--image-shape", "16,16"), "--image-shape 16,16 "),
        ((*AGAIN, "--image-shape", "16,16,x"), "--image-shape 16,16,x "),
        ((*AGAIN, "--image-shape", "17,17,3"), "--image-shape 17,17,3"),
        ((*AGAIN, "--policy", "absent.json"), "absent.json"),
        ((*AGAIN, "--out", "model.onnx"), "model.onnx"),
        ((*AGAIN, "--policy", "decide.onnx"), "decide.onnx"),
        ((*AGAIN, "--model", "onnx:changed.onnx"), "--allow-mismatch"),
        (("info", "damaged.onnx"), ("damaged.onnx", "checksum")),
        ((*SCORE, "--policy", "damaged.onnx", "--out", "s.csv"), ("damaged.onnx", "checksum")),
        (("verify", "damaged.onnx", *VERIFY[2:]), ("damaged.onnx", "checksum")),
        ((*VERIFY, "--policy", "absent.json"), "absent.json"),
        ((*VERIFY, "--policy", "other.json"), "checksum"),
        ((*VERIFY, "--data", "folder:absent"), "absent"),
        ((*VERIFY, "--model", "onnx:changed.onnx"), "changed.onnx"),
    ],
)
def test_errors_are_one_sentence(exported: Here, words: tuple[str, ...], told: str | tuple[str, ...]) -> None:
    write_changed_model()
    if "other.json" in words:
        exported.calibrate("--coverage", "0.6", "--out", "other.json", "--quiet")
    content = bytearray(Path("decide.onnx").read_bytes())
    before = bytes(content)
    content[len(content) // 2] ^= 4
    Path("damaged.onnx").write_bytes(content)
    exported.refuse(*words, told=told)
    assert Path("decide.onnx").read_bytes() == before


def write_changed_model() -> None:
    """Write the model with slightly other weights."""
    model = onnx.load("model.onnx")
    for one in model.graph.initializer:
        if numpy_helper.to_array(one).ndim >= 2:
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) * np.float32(1.1), one.name))
    onnx.save(model, "changed.onnx")


def test_another_classifier_loses_the_guarantee(exported: Here) -> None:
    write_changed_model()
    words = (*AGAIN, "--model", "onnx:changed.onnx", "--allow-mismatch", "--json")
    assert exported(*words).json["guarantee_text"].startswith("none, since")
    assert exported("info", "decide.onnx", "--json").json["guarantee"].startswith("none, since")
    assert exported(*SCORE, "--out", "scores.csv", "--json").json["guarantee"] is None


def test_info_tells_all_about_the_file(exported: Here) -> None:
    policy, file = (exported("info", name, "--json").json for name in ("policy.json", "decide.onnx"))
    assert file["what"] == "exported file: a classifier, its views and the decision in one ONNX file"
    assert {**policy, "what": ""} == {**{name: file[name] for name in policy}, "what": ""}
    assert "uint8 [batch, 16, 16, 3]" in file["input"]
    assert file["outputs"] == "label, confidence, accept, probabilities, looks, view_outputs"
    assert file["opset"] >= 18
    assert file["size"] == f"{Path('decide.onnx').stat().st_size:,} bytes"
    assert "all views" in file["computes"]
    assert "10 % errors" in exported("info", "decide.onnx").out
    assert exported("info", "model.onnx", "--json").json["what"] == "classifier"
    model = onnx.load("decide.onnx")
    (entry,) = (one for one in model.metadata_props if one.key == "secondlook.policy")
    entry.value = json.dumps({**json.loads(entry.value), "made": "never"})
    Path("changed.onnx").write_bytes(OnnxFile.seal(model.SerializeToString()))
    done = exported("info", "changed.onnx", "--json")
    assert done.err.count("warning:") == 1
    assert "changed after it was written" in done.json["file"]
    assert done.json["guarantee"].startswith("none")


def test_info_about_an_adaptive_file(here: Here, run: Path) -> None:
    here.calibrate("--coverage", "0.8", "--adaptive", "--quiet")
    here.ok(*EXPORT, "--quiet")
    told = here("info", "decide.onnx", "--json").json
    assert "until the decision is clear" in told["computes"]
    assert told["schedule"] == here("info", "policy.json", "--json").json["schedule"]
    scored = here(*SCORE, "--out", "scores.parquet", "--json").json
    assert 1 < scored["mean_looks"] < scored["views"]
    assert "forward passes" in here(*SCORE, "--out", "other.parquet").out


def test_score_is_that_of_the_policy(exported: Here) -> None:
    shared = ("--data", "folder:new", "--per-view", "--audit", "0.2", "--seed", "3", "--no-progress", "--json")
    mine = exported("score", "--policy", "policy.json", *shared, "--out", "mine.parquet", "--rejected", "a")
    Path("elsewhere").mkdir()
    shutil.copy("decide.onnx", "elsewhere")
    Path("model.onnx").unlink()  # which is not needed any more
    words = ("--policy", "elsewhere/decide.onnx", "--out", "theirs.parquet", "--rejected", "b")
    theirs = exported.ok("score", *words, *shared)
    own = ("out", "rejected_folder")
    assert {**theirs.json, **dict.fromkeys(own)} == {**mine.json, **dict.fromkeys(own)}
    assert theirs.json["images"] == 40
    tables = [pq.read_table(f"{name}.parquet").to_pylist() for name in ("mine", "theirs")]
    for expected, row in zip(*tables, strict=True):
        for name in ("id", "label", "accept", "looks"):
            assert row[name] == expected[name]
        assert row["confidence"] == pytest.approx(expected["confidence"], abs=1e-5)
    assert sorted(path.name for path in Path("a").rglob("*")) == sorted(path.name for path in Path("b").rglob("*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("score", "--data", "folder:new"), "--policy"),
        ((*SCORE, "--model", "onnx:model.onnx"), "--model"),
        ((*SCORE, "--allow-mismatch"), "--allow-mismatch"),
        ((*SCORE, "--engine", "ray"), "--engine"),
        (("score", "--policy", "model.onnx", "--data", "folder:new"), "export a policy"),
        (("score", "--policy", "absent.onnx", "--data", "folder:new"), "absent.onnx"),
        (
            ("score", "--policy", "decide.onnx", "--data", "npz:photo.npz"),
            "export the policy for them with secondlook export --image-shape",
        ),
    ],
)
def test_wrong_use_of_a_file_is_one_sentence(exported: Here, words: tuple[str, ...], told: str) -> None:
    np.savez("photo.npz", images=np.zeros((2, 40, 60, 3), dtype=np.uint8))
    done = exported.fail(*words, "--out", "s.csv", told=told)
    assert "=" not in done.err.replace("'", "").split("[")[0], done.err
    assert not Path("s.csv").exists()


def test_scores_are_monitored_and_recalibrated_with_the_file_as_policy(exported: Here) -> None:
    Path("scores").mkdir()
    out = ("--data", "folder:val", "--out", "scores/day.parquet", "--audit", "1", "--no-progress")
    exported.ok("score", "--policy", "decide.onnx", *out)
    rows = pq.read_table("scores/day.parquet").to_pylist()
    with Path("labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "label"], *([row["id"], row["id"].split("/")[0]] for row in rows)])
    words = ("--scores", "scores/*.parquet", "--reviewed", "labels.csv")
    for policy in ("decide.onnx", "policy.json"):
        exported.ok("monitor", "--policy", policy, *words, "--out", f"monitor-{policy}", "--shuffle", "--json")
        assert "<title>" in Path(f"monitor-{policy}/monitor.html").read_text("utf-8")
    first, second = (Path(f"monitor-{name}/monitor.json").read_text() for name in ("decide.onnx", "policy.json"))
    assert json.loads(first) == json.loads(second)
    exported.ok("calibrate", "--policy", "decide.onnx", *words, "--out", "fresh.json", "--risk", "0.2")
    assert sl.load_policy("fresh.json").certified


def test_the_file_passes(exported: Here) -> None:
    done = exported.ok(*VERIFY)
    assert "400 images compared" in done.out
    assert "passed" in done.out
    told = exported(*VERIFY, "--limit", "50", "--max-difference", "1e-5", "--json").json
    assert (told["images"], told["passed"], told["differing"]) == (50, True, [])
    options: dict[str, Any] = {"limit": 50, "max_difference": 1e-5, "execution": sl.Execution(progress=False)}
    expected = verify_export("decide.onnx", "policy.json", "folder:val", **options)
    assert told == json.loads(json.dumps(expected.to_dict()))
    assert exported(*VERIFY, "--quiet").out == ""
    default = inspect.signature(verify_export).parameters["max_difference"].default
    assert f"[default: {default:g}]" in " ".join(exported("verify", "--help").out.replace("│", " ").split())
    Path("model.onnx").rename("moved.onnx")
    exported.refuse(*VERIFY, told=("model.onnx", "--model"))
    exported.ok(*VERIFY, "--model", "onnx:moved.onnx", "--limit", "20", "--batch-size", "4", "--device", "cpu")


def test_a_file_that_decides_otherwise_fails(exported: Here) -> None:
    write_changed_model()
    exported.calibrate("--coverage", "0.7", "--force", "--quiet")
    exported.ok(*AGAIN, "--model", "onnx:changed.onnx", "--allow-mismatch")
    done, told = exported(*VERIFY), exported(*VERIFY, "--json")
    assert done.code == told.code == 3
    assert "failed" in done.out
    assert told.json["passed"] is False
    assert told.json["differing_decisions"] > 0
    assert told.json["differing"][0]["id"] in done.out
    exported.ok(*VERIFY, "--max-difference", "1")
