"""The stress tests find what they look for."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from secondlook.files import compute_checksum
from stress.mutation import flip_bit, forge, mutate

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.posix


def run_python(code: str, *words: str) -> list[str]:
    """Run code in a process of its own, since it forks, and return the lines it prints."""
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_mutations_are_repeatable_and_different() -> None:
    content = b'{"threshold": 0.5, "views": ["identity", "hflip"]}'
    mutants = [mutate(content, np.random.default_rng(number)) for number in range(200)]
    assert mutants == [mutate(content, np.random.default_rng(number)) for number in range(200)]
    assert len(set(mutants)) > 150
    flipped = np.frombuffer(flip_bit(content, np.random.default_rng(0)), np.uint8) ^ np.frombuffer(content, np.uint8)
    assert np.unpackbits(flipped).sum() == 1


def test_forged_records_have_a_matching_checksum_or_none() -> None:
    content = b'{"threshold": 0.5, "views": ["identity", "hflip"], "checksum": "0"}'
    forged = [json.loads(forge(content, np.random.default_rng(number))) for number in range(200)]
    sealed = [record for record in forged if "checksum" in record]
    assert 50 < len(sealed) < 150
    for record in sealed:
        checksum = record.pop("checksum")
        assert checksum == compute_checksum(record)
    assert len({json.dumps(record) for record in forged}) > 50


def test_crashes_and_hangs_are_attributed() -> None:
    code = """
import os, signal, time
from stress import processes
processes.LONGEST_SECONDS = 10
def judge(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 3:
        time.sleep(600)
    return f"item {number}"
for trial in processes.run_trials(judge, 5, 600):
    print(trial.number, trial.outcome)
"""
    assert run_python(code) == ["0 item 0", "1 crash: exit code -11", "2 item 2", "3 hang", "4 item 4"]


SKIPPING_JOB = """
import os, sys
from pathlib import Path
import secondlook.report.writer, secondlook.policies.policy  # so that forked processes need not import them
from secondlook.files import write_bytes_atomically
from stress import crashes, workspace
from stress.plan import Plan

def job():
    if not Path("new.txt").exists():
        {write}

start = Path(sys.argv[1]) / "start"
start.mkdir()
crashes.make_workspace = lambda: start
crashes.JOBS = [workspace.Job("write", job)]
for result in crashes.{test}(Plan(8)):
    print(result.row["faults"], *sorted({{failure.partition(":")[0] for failure in result.failures}}))
"""


@pytest.mark.parametrize(
    ("test", "write", "finding"),
    [
        ("kill_jobs", "write_bytes_atomically(Path('new.txt'), b'0123456789')", ""),
        ("kill_jobs", "Path('new.txt').write_bytes(b'0123456789')", "wrong files"),
        ("kill_jobs", "Path(f'{os.getpid()}').mkdir(); write_bytes_atomically(Path('new.txt'), b'0')", "leftovers"),
        ("fail_jobs", "write_bytes_atomically(Path('new.txt'), b'0123456789')", "bad endings"),
    ],
)
def test_careless_jobs_are_found(test: str, write: str, finding: str, tmp_path: Path) -> None:
    """A job that skips a file which exists, as resuming jobs do, has to write it whole, and to report errors."""
    (line,) = run_python(SKIPPING_JOB.format(write=write, test=test), str(tmp_path))
    faults, _, found = line.partition(" ")
    assert int(faults) >= 3
    assert finding in found
    assert bool(finding) == bool(found)
