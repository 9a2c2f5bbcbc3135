"""`secondlook score --audit` and `secondlook calibrate --reviewed` as users run them, on real digits."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Here

AGAIN = ("--reviewed", "labels.csv", "--policy", "policy.json", "--scores", "scores/*.parquet")


def score_and_review(here: Here, tmp_path: Path, *, wrong: int = 0) -> None:
    """Make a policy, score the labeled images with it, and review all that are due; `wrong` reviews disagree."""
    for command in (
        ("calibrate", "--run", "run", "--risk", "0.2", "--delta", "0.1", "--quiet"),
        ("score", "--policy", "policy.json", "--data", "folder:val/", "--out", "scores", "--audit", "1"),
    ):
        here.ok(*command)
    (part,) = (tmp_path / "scores").glob("*.parquet")
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        for place, row in enumerate(pq.read_table(part).to_pylist()):
            name = row["id"].split("/")[0]
            writer.writerow([row["id"], str((int(name) + 1) % 10) if place < wrong else name])


def test_fresh_policy_from_reviewed_images(here: Here, run: Path, tmp_path: Path) -> None:
    score_and_review(here, tmp_path)
    done = here.ok("calibrate", *AGAIN, "--out", "fresh.json")
    fresh, before = (json.loads((tmp_path / name).read_text()) for name in ("fresh.json", "policy.json"))
    assert fresh["guarantee"]["risk"] == before["guarantee"]["risk"] == 0.2
    assert fresh["calibration"]["reviewed"] == fresh["calibration"]["accepted"] > 0
    assert "What changed:" in done.out
    assert f"{before['threshold']:.6g} before" in done.out
    facts = here("info", "fresh.json", "--json").json
    assert "of them reviewed" in facts["summary"]
    assert "reference of 320 images" in facts["monitoring"]
    here.ok("score", "--policy", "fresh.json", "--data", "folder:new/", "--out", "new.parquet", "--json")
    stricter = here("calibrate", *AGAIN, "--risk", "0.3", "--delta", "0.2", "--out", "other.json", "--json")
    assert stricter.json["guarantee"]["delta"] == 0.2


def test_too_many_errors_say_what_would_be_needed(here: Here, run: Path, tmp_path: Path) -> None:
    score_and_review(here, tmp_path, wrong=300)
    here.refuse("calibrate", *AGAIN, "--out", "fresh.json", told="no threshold guarantees")
    assert not (tmp_path / "fresh.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--run"),
        (("--run", "run", *AGAIN), "--run"),
        (("--reviewed", "labels.csv", "--scores", "scores"), "--policy"),
        (("--reviewed", "labels.csv", "--policy", "policy.json"), "--scores"),
        (("--run", "run", "--risk", "0.2", "--policy", "policy.json"), "--reviewed"),
        ((*AGAIN, "--coverage", "0.5"), "--coverage"),
        ((*AGAIN, "--method", "mean"), "--method"),
        ((*AGAIN, "--adaptive"), "--adaptive"),
        ((*AGAIN, "--per-class"), "--per-class"),
        ((*AGAIN, "--top-k", "2"), "--top-k"),
    ],
)
def test_options_that_do_not_fit_are_named(here: Here, arguments: tuple[str, ...], said: str) -> None:
    here.refuse("calibrate", *arguments, told=said)


def test_missing_files_are_named(here: Here, run: Path, tmp_path: Path) -> None:
    score_and_review(here, tmp_path)
    assert "'none.csv'" in here("calibrate", "--reviewed", "none.csv", *AGAIN[2:]).err
    assert "'none/*.parquet'" in here("calibrate", *AGAIN[:4], "--scores", "none/*.parquet").err
    with (tmp_path / "labels.csv").open("a") as file:
        file.write("unknown.png,3\n")
    assert "'unknown.png'" in here("calibrate", *AGAIN).err
