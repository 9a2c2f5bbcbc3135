"""`secondlook monitor` as a cron job: exit codes, files, reviewed labels, and errors in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.cli.demo import digit_images, split_digits

Here = Callable[..., Any]
MONITOR = ("monitor", "--policy", "policy.json", "--scores", "scores/*.parquet", "--out", "monitor", "--no-progress")
VIEWS = ("--views", "identity shift:1,0 shift:0,1 rotate:5")


@pytest.fixture
def scored(here: Here) -> Here:
    """Calibrate on labeled digits, and score others, in random order."""
    here("evaluate", "--model", "onnx:model.onnx", "--data", "folder:val", "--quiet", *VIEWS, "--out", "run")
    assert here("calibrate", "--run", "run", "--coverage", "0.8", "--method", "mean", "--quiet").code == 0
    Path("scores").mkdir()
    score_digits(here, "day0", slice(440, 700))
    return here


def score_digits(here: Here, name: str, places: slice, noise: float = 0.0) -> None:
    """Score unseen digits; their ids end in the class."""
    digits, labels = digit_images()
    chosen = split_digits()[1][places]
    pixels = digits[chosen].astype(float) + np.random.default_rng(0).normal(0, noise, digits[chosen].shape)
    images = np.repeat(np.clip(pixels, 0, 255).astype(np.uint8), 3, axis=3)
    np.savez(f"{name}.npz", images=images, ids=np.array([f"{place}-{labels[place]}" for place in chosen]))
    scores = ("--out", f"scores/{name}.parquet", "--audit", "0.3", "--quiet")
    done = here("score", "--policy", "policy.json", "--data", f"npz:{name}.npz", *scores)
    assert done.code == 0, done.err


def test_a_cron_job_is_quiet_until_images_change(scored: Here) -> None:
    done = scored(*MONITOR)
    assert done.code == 0, done.err
    assert "No sign of a change" in done.out
    assert "estimate, not guarantee" in done.out
    assert "New score files: 1" in done.out
    assert "<title>" in Path("monitor/monitor.html").read_text("utf-8")
    assert scored(*MONITOR, "--quiet").out == ""
    score_digits(scored, "day1", slice(700, 900), noise=60)
    done = scored(*MONITOR, "--data", "npz:day1.npz")
    assert done.code == 3
    assert "have changed" in done.out
    assert "secondlook calibrate --reviewed labels.csv --policy policy.json" in done.out
    assert "data:image/webp" in Path("monitor/monitor.html").read_text("utf-8")
    told = scored(*MONITOR, "--json")
    assert told.code == 3
    assert told.json["alarm"] is True
    assert told.json["new_files"] == 0
    written = json.loads(Path("monitor/monitor.json").read_text("utf-8"))
    assert written["shift"]["raised_at"] == told.json["shift"]["raised_at"]


def test_reviewed_labels_are_read(scored: Here) -> None:
    scored(*MONITOR)
    ids = Path("monitor/to_review.csv").read_text().split()[1:]
    assert len(ids) > 5
    labels = [f"{line}{line[-2]}" for line in ids]
    Path("labels.csv").write_text("\n".join(["id,label", *labels]))
    done = scored(*MONITOR, "--reviewed", "labels.csv", "--json")
    assert done.code == 0, done.err
    assert (done.json["new_labels"], done.json["ignored_labels"]) == (len(ids), 0)
    assert Path("monitor/to_review.csv").read_text() == "id,label\n"


def test_bad_input_is_one_sentence_with_options(scored: Here) -> None:
    for option, value, told in (
        ("--burn-in", "5000", "--burn-in 5000"),
        ("--reviewed", "none.csv", "none.csv"),
        ("--scores", "elsewhere", "elsewhere"),
        ("--alpha", "2", "--alpha"),
        ("--data", "folder:nowhere", "nowhere"),
    ):
        done = scored(*MONITOR, option, value)
        assert done.code == 2
        assert told in done.err
        assert len(done.err.strip().splitlines()) == 1


def test_other_options_and_changed_files_name_the_repair(scored: Here) -> None:
    assert scored(*MONITOR, "--window", "100").code == 0
    done = scored(*MONITOR, "--window", "50")
    assert done.code == 2
    assert "--window 100" in done.err
    Path("scores/day0.parquet").rename("scores/other.parquet")
    assert scored(*MONITOR).code == 0, "a file is known by its content"
    score_digits(scored, "day1", slice(700, 720))
    assert scored(*MONITOR, "-q").code == 0
    Path("scores/day1.parquet").unlink()
    assert scored(*MONITOR).code == 0, "what was read is not needed any more"
    score_digits(scored, "day1", slice(720, 740))
    done = scored(*MONITOR)
    assert done.code == 2
    assert "day1.parquet" in done.err
    assert "--out" in done.err


def test_scores_of_another_policy_are_an_error(scored: Here) -> None:
    scored("calibrate", "--run", "run", "--coverage", "0.5", "--method", "mean", "--quiet", "--force")
    done = scored(*MONITOR)
    assert done.code == 2
    assert "another policy" in done.err
