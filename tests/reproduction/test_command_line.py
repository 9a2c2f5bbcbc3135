"""`python -m reproduction`: output, errors and exit codes."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reproduction import EXPERIMENTS, GROUPS

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "reproduction"]

NETWORKS = """
import numpy as np

def classify_colors(images):
    logits = images.mean(axis=(1, 2)) @ np.random.default_rng(0).normal(size=(3, 10))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
"""


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=folder, env=environment(), check=False
    )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def test_json_output_equals_the_written_results_and_quiet_prints_nothing(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    table = 'spec = "function:nets:classify_colors"\noutput = "probabilities"\n'
    (tmp_path / "nets.toml").write_text(f'[cifar10-vgg8]\nname = "colors"\n{table}[svhn-vgg8]\n{table}')
    options = ("table2", "--data-root", str(data_root), "--classifiers", "nets.toml")
    quiet = run(tmp_path, *options, "--limit", "20", "--out", "out", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert (tmp_path / "out" / "table2" / "results.csv").exists()
    done = run(tmp_path, *options, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    written = list(csv.DictReader((tmp_path / printed["out"] / "table2" / "results.csv").read_text().splitlines()))
    assert [row["method"] for row in printed["experiments"]["table2"]] == ["MSR(x)", "MSR(D)", "BS(D)"]
    for one, other in zip(printed["experiments"]["table2"], written, strict=True):
        assert list(one) == list(other)
        assert one["difference"] == pytest.approx(float(other["difference"]), abs=1e-6)
    missing = {item["name"].split()[1]: item for item in printed["missing"]}
    assert set(missing) == {"cifar100-vgg8", "svhn-vgg8"}
    assert "[cifar100-vgg8]" in missing["cifar100-vgg8"]["instructions"][1]
    assert "name" in missing["svhn-vgg8"]["reason"]
    assert "[svhn-vgg8]" in missing["svhn-vgg8"]["instructions"][0]


def test_overviews_list_every_experiment_and_group(tmp_path: Path) -> None:
    for argument in ("--help", "list"):
        done = run(tmp_path, argument)
        assert done.returncode == 0, done.stderr
        assert {*EXPERIMENTS, *GROUPS} <= set(done.stdout.split())
    rows = json.loads(run(tmp_path, "list", "--json").stdout)
    assert [row["name"] for row in rows] == [*EXPERIMENTS, *GROUPS]


def test_documented_commands_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "reproduction" / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = set(re.findall(r"python -m reproduction ([^\s`]+)", text))
    assert {*GROUPS["all"].experiments, *GROUPS} <= names
    assert names <= {*EXPERIMENTS, *GROUPS, "list"}


@pytest.mark.parametrize(
    ("arguments", "offender"),
    [
        (["tabel2", "--data-root", "."], "table2"),
        (["table2"], "--data-root"),
        (["table2", "--data-root", "absent"], "absent"),
        (["table2", "--data-root", ".", "--classifiers", "broken.toml"], "broken.toml"),
        (["table2", "--data-root", "."], "cifar-10-batches-py"),
        (["table2", "--data-root", ".", "--limit", "0"], "--limit"),
    ],
)
def test_errors_exit_with_code_2_and_no_traceback(tmp_path: Path, arguments: list[str], offender: str) -> None:
    (tmp_path / "broken.toml").write_text("[")
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert offender in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.posix
def test_interrupt_exits_with_code_130(data_root: Path, tmp_path: Path) -> None:
    slow = "import time\n\ndef wait(images):\n    open('started', 'w').close()\n    time.sleep(600)\n"
    (tmp_path / "nets.py").write_text(slow)
    table = 'spec = "function:nets:wait"\noutput = "probabilities"\nname = "slow"\n'
    (tmp_path / "nets.toml").write_text(f"[cifar10-vgg8]\n{table}")
    line = [*COMMAND, "table2", "--data-root", str(data_root), "--classifiers", "nets.toml"]
    process = subprocess.Popen(line, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in stderr
