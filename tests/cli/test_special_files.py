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
    words = command.split()
    name = next(word for word in words if "FILE" in word).rpartition(":")[2]
    if kind == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    here.fail(*words, told=name)
