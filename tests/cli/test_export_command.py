"""`secondlook export`, `secondlook verify`, and other commands with an exported file."""

import csv
import inspect
import json
import shutil
from pathlib import Path

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
SCORE = ("score", "--policy", "decide.onnx", "--data", "folder:new", "--no-progress")


@pytest.fixture
def exported(here: Here, run: Path) -> Here:
    """A folder with a policy and the file that it was exported to."""
    here.calibrate("--risk", "0.1", "--delta", "0.1", "--quiet")
    done = here(*EXPORT, "--quiet")
    assert (done.code, done.out) == (0, ""), done.err
    return here


def test_export_tells_what_it_wrote(exported: Here) -> None:
    told = exported.ok("export", "--policy", "policy.json", "--out", "other.onnx")
    assert "other.onnx" in told.out
    facts = exported("export", "--policy", "policy.json", "--out", "other.onnx", "--force", "--json").json
    assert facts["path"] == "other.onnx"
    assert facts["size"] == Path("other.onnx").stat().st_size
    assert facts["image_shape"] == [16, 16, 3]
    assert facts["pixels"] == "uint8"
    assert Path("other.onnx").read_bytes() == Path("decide.onnx").read_bytes()
    real = exported("export", "--policy", "policy.json", "--out", "real.onnx", "--pixels", "float32", "--json")
    assert real.json["pixels"] == "float32"
    onnx.checker.check_model("decide.onnx", full_check=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--force"),
        (("--out", "decide.json"), "decide.json"),
        (("--force", "--image-shape", "16,16"), "--image-shape 16,16 "),
        (("--force", "--image-shape", "16,16,x"), "--image-shape 16,16,x "),
        (("--force", "--image-shape", "17,17,3"), "--image-shape 17,17,3"),
        (("--force", "--policy", "absent.json"), "absent.json"),
        (("--force", "--out", "model.onnx"), "model.onnx"),
        (("--force", "--policy", "decide.onnx"), "decide.onnx"),
        (("--out", "absent/decide.onnx"), "absent"),
        (("--force", "--model", "onnx:other.onnx"), "--allow-mismatch"),
    ],
)
def test_errors_are_one_sentence(exported: Here, words: tuple[str, ...], told: str) -> None:
    model = onnx.load("model.onnx")
    model.doc_string = "another one"
    onnx.save(model, "other.onnx")
    before = Path("decide.onnx").read_bytes()
    exported.refuse(*EXPORT, *words, told=told)
    assert Path("decide.onnx").read_bytes() == before


def test_another_classifier_loses_the_guarantee(exported: Here) -> None:
    model = onnx.load("model.onnx")
    model.doc_string = "another one"
    onnx.save(model, "other.onnx")
    words = ("--force", "--model", "onnx:other.onnx", "--allow-mismatch", "--json")
    assert exported(*EXPORT, *words).json["guarantee_text"].startswith("none, since")
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
    theirs = exported.ok("score", "--policy", "decide.onnx", *shared, "--out", "theirs.parquet", "--rejected", "b")
    own = ("out", "rejected_folder")
    assert {**theirs.json, **dict.fromkeys(own)} == {**mine.json, **dict.fromkeys(own)}
    tables = [pq.read_table(f"{name}.parquet").to_pylist() for name in ("mine", "theirs")]
    for expected, row in zip(*tables, strict=True):
        assert [row[name] for name in ("id", "label", "accept", "looks")] == [
            expected[name] for name in ("id", "label", "accept", "looks")
        ]
        assert row["confidence"] == pytest.approx(expected["confidence"], abs=1e-5)
    assert sorted(path.name for path in Path("a").rglob("*")) == sorted(path.name for path in Path("b").rglob("*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("score", "--data", "folder:new", "--out", "s.csv"), "--policy"),
        ((*SCORE, "--model", "onnx:model.onnx", "--out", "s.csv"), "--model"),
        ((*SCORE, "--allow-mismatch", "--out", "s.csv"), "--allow-mismatch"),
        ((*SCORE, "--engine", "ray", "--out", "s.csv"), "--engine"),
        (("score", "--policy", "model.onnx", "--data", "folder:new", "--out", "s.csv"), "export a policy"),
        (("score", "--policy", "absent.onnx", "--data", "folder:new", "--out", "s.csv"), "absent.onnx"),
        (
            ("score", "--policy", "decide.onnx", "--data", "npz:photo.npz", "--out", "s.csv"),
            "export the policy for them with secondlook export --image-shape",
        ),
    ],
)
def test_wrong_use_of_a_file_is_one_sentence(exported: Here, words: tuple[str, ...], told: str) -> None:
    import numpy as np

    np.savez("photo.npz", images=np.zeros((2, 40, 60, 3), dtype=np.uint8))
    done = exported.fail(*words, told=told)
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
    first, second = (
        json.loads(Path(f"monitor-{name}/monitor.json").read_text()) for name in ("decide.onnx", "policy.json")
    )
    assert first == second
    exported.ok("calibrate", "--policy", "decide.onnx", *words, "--out", "fresh.json", "--risk", "0.2")
    assert sl.load_policy("fresh.json").certified


def test_a_changed_file_is_told_once(exported: Here) -> None:
    model = onnx.load("decide.onnx")
    (entry,) = (one for one in model.metadata_props if one.key == "secondlook.policy")
    content = json.loads(entry.value)
    entry.value = json.dumps({**content, "made": "never"})
    Path("changed.onnx").write_bytes(OnnxFile.seal(model.SerializeToString()))
    done = exported("info", "changed.onnx", "--json")
    assert done.err.count("warning:") == 1
    assert "changed after it was written" in done.json["file"]
    assert done.json["guarantee"].startswith("none")


def test_a_damaged_file_is_an_error_of_every_command(exported: Here) -> None:
    content = bytearray(Path("decide.onnx").read_bytes())
    content[len(content) // 2] ^= 4
    Path("damaged.onnx").write_bytes(content)
    data = ("--data", "folder:new")
    for words in (
        ("info", "damaged.onnx"),
        ("score", "--policy", "damaged.onnx", *data, "--out", "s.csv"),
        ("verify", "damaged.onnx", "--policy", "policy.json", *data),
    ):
        exported.refuse(*words, told=("damaged.onnx", "checksum"))


def test_settings_files_and_a_moved_model(exported: Here) -> None:
    Path("settings.toml").write_text('[export]\npolicy = "policy.json"\nout = "settings.onnx"\npixels = "float32"\n')
    assert exported("export", "--config", "settings.toml", "--json").json["pixels"] == "float32"
    Path("elsewhere").mkdir()
    shutil.copy("decide.onnx", "elsewhere")
    Path("model.onnx").unlink()
    done = exported("score", "--policy", "elsewhere/decide.onnx", "--data", "folder:new", "--out", "s.csv", "--json")
    assert done.json["images"] == 40


VERIFY = ("verify", "decide.onnx", "--policy", "policy.json", "--data", "folder:val", "--no-progress")


def write_changed_model() -> None:
    """Write the model with slightly other weights."""
    model = onnx.load("model.onnx")
    for one in model.graph.initializer:
        if numpy_helper.to_array(one).ndim >= 2:
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) * np.float32(1.1), one.name))
    onnx.save(model, "changed.onnx")


def test_the_file_passes(exported: Here) -> None:
    done = exported.ok(*VERIFY)
    assert "400 images compared" in done.out
    assert "passed" in done.out
    told = exported(*VERIFY, "--limit", "50", "--tolerance", "1e-5", "--json").json
    assert (told["images"], told["passed"], told["differing"]) == (50, True, [])
    expected = verify_export(
        "decide.onnx",
        "policy.json",
        "folder:val",
        limit=50,
        tolerance=1e-5,
        execution=sl.Execution(progress=False),
    )
    assert told == json.loads(json.dumps(expected.to_dict()))
    assert exported(*VERIFY, "--quiet").out == ""


def test_a_file_that_decides_otherwise_fails(exported: Here) -> None:
    write_changed_model()
    exported.calibrate("--coverage", "0.7", "--force", "--quiet")
    exported.ok(*EXPORT, "--force", "--model", "onnx:changed.onnx", "--allow-mismatch")
    done = exported(*VERIFY)
    assert done.code == 3
    assert "failed" in done.out
    told = exported(*VERIFY, "--json")
    assert told.code == 3
    assert told.json["passed"] is False
    assert told.json["differing_decisions"] > 0
    assert told.json["differing"][0]["id"] in done.out
    exported.ok(*VERIFY, "--tolerance", "1")


def test_help_tells_the_default_tolerance(here: Here) -> None:
    default = inspect.signature(verify_export).parameters["tolerance"].default
    assert f"[default: {default:g}]" in " ".join(here("verify", "--help").out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--policy", "absent.json"), "absent.json"),
        (("--policy", "other.json"), "checksum"),
        (("--data", "folder:absent"), "absent"),
        (("--model", "onnx:changed.onnx"), "changed.onnx"),
    ],
)
def test_errors_of_verify_are_one_sentence(exported: Here, words: tuple[str, ...], told: str) -> None:
    write_changed_model()
    exported.calibrate("--coverage", "0.6", "--out", "other.json", "--quiet")
    exported.refuse(*VERIFY, *words, told=told)


def test_the_model_may_be_elsewhere(exported: Here) -> None:
    Path("model.onnx").rename("moved.onnx")
    exported.refuse(*VERIFY, told=("model.onnx", "--model"))
    exported.ok(*VERIFY, "--model", "onnx:moved.onnx", "--limit", "20", "--batch-size", "4", "--device", "cpu")
