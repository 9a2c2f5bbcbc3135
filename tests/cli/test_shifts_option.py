"""`secondlook calibrate --shifts`: what it prints, writes and refuses."""

from collections.abc import Callable
from typing import Any

import secondlook as sl

Here = Callable[..., Any]
LINE = ("calibrate", "--run", "run", "--coverage", "0.7")


def evaluate(here: Here) -> None:
    line = ("--data", "folder:val/", "--views", "identity shift:1,0", "--out", "run", "--resamples", "5", "--quiet")
    done = here("evaluate", "--model", "onnx:model.onnx", *line)
    assert done.code == 0, done.err


def test_shifts_are_learned_printed_and_stored(here: Here) -> None:
    evaluate(here)
    done = here(*LINE, "--shifts", "--shift-images", "60", "--out", "policy.json")
    assert done.code == 0, done.err
    assert "60 images" in done.err, "the cost comes first"
    assert f"{60 * (1 + 30 * 2):,} looks" in done.err
    assert "zoom out" in done.out
    assert "not a guarantee" in done.out
    learned = sl.load_policy("policy.json")
    assert learned.shifts is not None
    assert learned.shifts.images == 60
    plain = here(*LINE, "--out", "plain.json")
    assert plain.code == 0
    assert sl.load_policy("plain.json").shifts is None
    assert sl.load_policy("plain.json").threshold == learned.threshold
    content = here(*LINE, "--shifts", "--shift-images", "60", "--out", "policy2.json", "--json").json
    assert [one["kind"] for one in content["shifts"]["shifts"]][:2] == ["noise", "blur"]
    assert content["shifts"]["images"] == 60


def test_model_of_the_run_can_be_given(here: Here) -> None:
    evaluate(here)
    done = here(*LINE, "--shifts", "--shift-images", "60", "--model", "onnx:m.onnx", "--quiet")
    assert done.code == 0, done.err
    assert done.out == done.err == ""


def test_errors_name_the_options(here: Here) -> None:
    evaluate(here)
    done = here(*LINE, "--shift-images", "60")
    assert done.code == 2
    assert "--shifts" in done.err
    done = here(*LINE, "--shifts", "--shift-images", "20")
    assert done.code == 2
    assert "--shift-images" in done.err
    done = here(*LINE, "--shifts", "--model", "onnx:none.onnx")
    assert done.code == 2
    assert "none.onnx" in done.err
