"""`secondlook calibrate --shifts`: what it prints, writes and refuses."""

from pathlib import Path

import secondlook as sl
from tests.cli.conftest import Here

LINE = ("calibrate", "--run", "run", "--coverage", "0.7")


def test_shifts_are_learned_printed_and_stored(here: Here, run: Path) -> None:
    done = here.ok(*LINE, "--shifts", "--shift-images", "60", "--out", "policy.json")
    assert "60 images" in done.err, "the cost comes first"
    assert f"{60 * (1 + 30 * 5):,} looks" in done.err
    assert "zoom out" in done.out
    assert "not a guarantee" in done.out
    learned = sl.load_policy("policy.json")
    assert learned.shifts is not None
    assert learned.shifts.images == 60
    here.ok(*LINE, "--out", "plain.json")
    assert sl.load_policy("plain.json").shifts is None
    assert sl.load_policy("plain.json").threshold == learned.threshold
    content = here(*LINE, "--shifts", "--shift-images", "60", "--out", "policy2.json", "--json").json
    assert [one["kind"] for one in content["shifts"]["shifts"]][:2] == ["noise", "blur"]
    assert content["shifts"]["images"] == 60


def test_model_of_the_run_can_be_given(here: Here, run: Path) -> None:
    done = here.ok(*LINE, "--shifts", "--shift-images", "60", "--model", "onnx:m.onnx", "--quiet")
    assert done.out == done.err == ""


def test_errors_name_the_options(here: Here, run: Path) -> None:
    here.refuse(*LINE, "--shift-images", "60", told="--shifts")
    here.fail(*LINE, "--shifts", "--shift-images", "20", told="--shift-images")
    here.fail(*LINE, "--shifts", "--model", "onnx:none.onnx", told="none.onnx")
