"""`secondlook monitor` as a cron job: exit codes, files, reviewed labels, and errors in one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from secondlook.cli.demo import digit_images, split_digits
from tests.cli.conftest import Here

MONITOR = ("monitor", "--policy", "policy.json", "--scores", "scores/*.parquet", "--out", "monitor", "--no-progress")
VIEWS = ("--views", "identity shift:1,0 shift:0,1 rotate:5")


@pytest.fixture
def scored(here: Here) -> Here:
    """Calibrate on labeled digits, and score others, in random order."""
    here("evaluate", "--model", "onnx:model.onnx", "--data", "folder:val", "--quiet", *VIEWS, "--out", "run")
    here.ok("calibrate", "--run", "run", "--coverage", "0.8", "--method", "mean", "--quiet")
    Path("scores").mkdir()
    score_digits(here, "day0", slice(440, 700))
    return here


def test_a_csv_file_of_scores_is_monitored(scored: Here) -> None:
    scored.ok("score", "--policy", "policy.json", "--data", "npz:day0.npz", "--out", "scores.csv", "--quiet")
    done = scored.ok("monitor", "--policy", "policy.json", "--scores", "scores.csv", "--out", "monitor", "--json")
    assert (done.json["new_files"], done.json["images"]) == (1, 260)


def test_escape_sequences_do_not_reach_the_terminal(scored: Here) -> None:
    hostile, policy = "\x1b[2J\x9b1m\r", Path("policy.json")
    words = (*MONITOR, "--out", f"out{hostile}")
    assert "out\\x1b[2J\\x9b1m\\x0d/monitor.html" in scored.ok(*words).out
    content = json.loads(policy.read_text())
    content["classifier"]["name"] = f"onnx:{hostile}.onnx"
    content["calibration"]["data"] = f"folder:{hostile}"
    policy.write_text(json.dumps(content))
    for done in (scored.ok("info", "policy.json"), scored.fail(*words)):
        assert "\\x1b[2J" in done.out + done.err
        assert not {"\x1b", "\x9b", "\r"} & set(done.out + done.err)


def score_digits(here: Here, name: str, places: slice, noise: float = 0.0) -> None:
    """Score unseen digits; their ids end in the class."""
    digits, labels = digit_images()
    chosen = split_digits()[1][places]
    pixels = digits[chosen].astype(float) + np.random.default_rng(0).normal(0, noise, digits[chosen].shape)
    images = np.repeat(np.clip(pixels, 0, 255).astype(np.uint8), 3, axis=3)
    np.savez(f"{name}.npz", images=images, ids=np.array([f"{place}-{labels[place]}" for place in chosen]))
    scores = ("--out", f"scores/{name}.parquet", "--audit", "0.3", "--quiet")
    here.ok("score", "--policy", "policy.json", "--data", f"npz:{name}.npz", *scores)


def test_a_cron_job_reads_reviewed_labels_and_is_quiet_until_images_change(scored: Here) -> None:
    done = scored.ok(*MONITOR)
    assert "No sign of a change" in done.out
    assert "estimate, not guarantee" in done.out
    assert "New score files: 1" in done.out
    assert "<title>" in Path("monitor/monitor.html").read_text("utf-8")
    assert scored(*MONITOR, "--quiet").out == ""
    ids = Path("monitor/to_review.csv").read_text().split()[1:]
    assert len(ids) > 5
    Path("labels.csv").write_text("\n".join(["id,label", *(f"{line}{line[-2]}" for line in ids)]))
    done = scored.ok(*MONITOR, "--reviewed", "labels.csv", "--json")
    assert (done.json["new_labels"], done.json["ignored_labels"]) == (len(ids), 0)
    assert Path("monitor/to_review.csv").read_text() == "id,label\n"
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


def test_bad_input_and_other_options_name_the_repair(scored: Here) -> None:
    for words, told in (
        ("--burn-in 5000", "--burn-in 5000"),
        ("--reviewed none.csv", "none.csv"),
        ("--scores elsewhere", "elsewhere"),
        ("--alpha 2", "--alpha"),
        ("--reviewer-error 0.5", "--reviewer-error 0.5"),
        ("--data folder:nowhere", "nowhere"),
    ):
        scored.refuse(*MONITOR, "--out", "bad", *words.split(), told=told)
    scored.ok(*MONITOR, "--window", "100", "--reviewer-error", "0.03")
    assert scored.ok(*MONITOR, "--json").json["options"]["reviewer_error"] == 0.03
    scored.refuse(*MONITOR, "--reviewer-error", "0", told="--reviewer-error 0.03")
    scored.refuse(*MONITOR, "--window", "50", told="--window 100")
    Path("scores/day0.parquet").rename("scores/other.parquet")
    scored.ok(*MONITOR)  # a file is known by its content
    score_digits(scored, "day1", slice(700, 720))
    scored.ok(*MONITOR, "-q")
    Path("scores/day1.parquet").unlink()
    scored.ok(*MONITOR)  # what was read is not needed any more
    score_digits(scored, "day1", slice(720, 740))
    scored.refuse(*MONITOR, told=("day1.parquet", "--out"))
    scored("calibrate", "--run", "run", "--coverage", "0.5", "--method", "mean", "--quiet", "--force")
    scored.refuse(*MONITOR, "--out", "other", told="another policy")
