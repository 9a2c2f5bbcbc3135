"""`secondlook verify`: exit codes, tables and JSON of the comparison of an exported file with the library."""

import inspect
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import secondlook as sl
from secondlook.onnx_export import verify_export
from tests.cli.conftest import Here

VERIFY = ("verify", "decide.onnx", "--policy", "policy.json", "--data", "folder:val", "--no-progress")


@pytest.fixture
def exported(here: Here, run: Path) -> Here:
    """A folder with a policy, and the file that it was exported to."""
    here.calibrate("--coverage", "0.7", "--quiet")
    here.ok("export", "--policy", "policy.json", "--out", "decide.onnx", "--quiet")
    return here


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
    export = ("export", "--policy", "policy.json", "--out", "decide.onnx", "--force")
    exported.ok(*export, "--model", "onnx:changed.onnx", "--allow-mismatch")
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
def test_errors_are_one_sentence(exported: Here, words: tuple[str, ...], told: str) -> None:
    write_changed_model()
    exported.calibrate("--coverage", "0.6", "--out", "other.json", "--quiet")
    exported.refuse(*VERIFY, *words, told=told)


def test_the_model_may_be_elsewhere(exported: Here) -> None:
    Path("model.onnx").rename("moved.onnx")
    exported.refuse(*VERIFY, told=("model.onnx", "--model"))
    exported.ok(*VERIFY, "--model", "onnx:moved.onnx", "--limit", "20", "--batch-size", "4", "--device", "cpu")
