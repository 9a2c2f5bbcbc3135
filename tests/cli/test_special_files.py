"""Pipes and devices instead of files: reading them may never end."""

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Here

COMMANDS = (
    "info FILE.json",
    "info FILE.onnx",
    "score --policy FILE.json --data folder:val --out scores.csv",
    "monitor --policy FILE.json --scores scores.csv --out monitor",
    "export --policy FILE.json --out decide.onnx",
    "serve --policy FILE.json --data-dir service",
    "evaluate --model onnx:FILE.onnx --data folder:val --out run",
    "evaluate --model onnx:model.onnx --data folder:val --views FILE.txt --out run",
    "evaluate --config FILE.toml",
    "evaluate --model onnx:model.onnx --data csv:FILE.csv --out run",
    "evaluate --model onnx:model.onnx --data npz:FILE.npz --out run",
    "evaluate --model onnx:model.onnx --data parquet:FILE.parquet --out run",
    "report FILE",
)


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", COMMANDS)
def test_only_regular_files_are_read(here: Here, command: str, kind: str) -> None:
    fail_with(here, command, kind)


def fail_with(here: Here, command: str, kind: str) -> None:
    """Run a command that reads a special file."""
    words = command.split()
    name = next(word for word in words if "FILE" in word).rpartition(":")[2]
    if kind == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    here.fail(*words, told=name)
    Path(name).unlink()


@pytest.mark.posix
def test_only_regular_files_are_read_about_scores(here: Here) -> None:
    for command in (
        "evaluate --model onnx:model.onnx --data folder:val --views hflip --out run --quiet",
        "calibrate --run run --risk 0.4 --delta 0.2 --method mean --quiet",
        "score --policy policy.json --data folder:new --audit 0.5 --out scores.parquet --quiet",
    ):
        here.ok(*command.split())
    monitor = "monitor --policy policy.json --burn-in 10 --out monitor --quiet --scores"
    for kind in ("pipe", "device"):
        fail_with(here, f"{monitor} FILE.parquet", kind)
        fail_with(here, f"{monitor} scores.parquet --reviewed FILE.csv", kind)
        fail_with(
            here, "calibrate --policy policy.json --scores scores.parquet --reviewed FILE.csv --out next.json", kind
        )
        fail_with(here, "calibrate --run run --risk 0.4 --class-thresholds --class-groups FILE.json --force", kind)
