"""Monitoring that is killed at any moment and resumed ends with the same bytes as if it was never killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.monitoring.streams import make_policy, make_rows, write_parquet

KILLS = 8
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

# Everything is imported and compiled once; each line then forks one process, so that processes may be short-lived.
PARENT = """
import os, sys, time
from pathlib import Path
import pyarrow.parquet
from secondlook.monitoring import Monitor, monitor_scores
from secondlook.predictions import Execution
from secondlook.report import write_monitor_page
from secondlook.policies import Policy, read_policy
root = Path(sys.argv[1])
QUIET = Execution(progress=False)
policy = read_policy(root / "policy.json")
read = Monitor.update
def update(self, rows):
    time.sleep(0.01)
    return read(self, rows)
def run(folder, reviewed=root / "labels.csv"):
    result = monitor_scores(policy, str(root / "scores" / "*.parquet"), folder, reviewed=reviewed, execution=QUIET)
    write_monitor_page(result.monitor, folder / "monitor.html")
    return result
result = run(root / "first", None)
lines = [f"{audit.id},{audit.predicted[0]}" for audit in result.monitor.audited[::2]]
(root / "labels.csv").write_text("\\n".join(["id,label", *lines]))
Monitor.update = update
print("ready", flush=True)
while line := sys.stdin.readline():
    pid = os.fork()
    if pid == 0:
        run(Path(line.strip()))
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()  # until then the process id is not reused, so that no other process is killed
    print(os.waitpid(pid, 0)[1], flush=True)
"""


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.iterdir()) if path.name != "_lock" and not path.name.endswith(".tmp"))
    return {path.name: path.read_bytes() for path in files}


def test_killed_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    make_policy().save(tmp_path / "policy.json")
    (tmp_path / "scores").mkdir()
    for day in range(12):
        write_parquet(tmp_path / "scores" / f"{day:02d}.parquet", make_rows(60, first=60 * day))
    command = [sys.executable, "-W", "error", "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def send(line: str) -> int:
            stdin.write(f"{line}\n")
            stdin.flush()
            return int(stdout.readline())

        assert stdout.readline() == "ready\n"
        started = time.monotonic()
        send(str(tmp_path / "never-killed"))
        assert send("end") == 0
        duration = time.monotonic() - started
        expected = read_files(tmp_path / "never-killed")
        assert set(expected) == {"state.json", "monitor.json", "monitor.html", "to_review.csv"}
        rng, kills, folder = np.random.default_rng(0), 0, tmp_path / "killed-0"
        while kills < KILLS:
            pid = send(str(folder))
            time.sleep(rng.uniform(0, duration))
            os.kill(pid, signal.SIGKILL)
            kills += os.waitstatus_to_exitcode(send("end")) == -signal.SIGKILL
            if folder.exists() and set(read_files(folder)) == set(expected):  # it was finished, or nearly
                send(str(folder))
                assert send("end") == 0
                assert read_files(folder) == expected
                folder = tmp_path / f"killed-{kills}"
        send(str(folder))
        assert send("end") == 0
        assert read_files(folder) == expected
        stdin.close()
    assert not list(folder.glob(".*.tmp")), "what a killed process left is removed"
