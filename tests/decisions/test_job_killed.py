"""A scoring job that is killed at any moment and resumed ends with the same bytes as one that was never killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.decisions.conftest import read_files, read_rows, save_images
from tests.decisions.decider_files import make_bright_policy, write_decider

KILLS = 24

# Everything is imported once; each line then forks one scoring process, so that processes may be short-lived.
PARENT = """
import os, sys, time
from pathlib import Path
import numpy as np, onnxruntime, pyarrow.parquet
from PIL import PngImagePlugin
from secondlook.classifiers import load_classifier
from secondlook.decisions import ExportedFile
from secondlook.policies import Policy, Schedule
from secondlook.views import apply_view
from tests.decisions.conftest import make_policy
from tests.policy_maker import score

def slow(batch):
    time.sleep(0.004)
    bright = batch.mean(axis=(1, 2, 3)) / 255.0
    return np.stack([1 - bright, bright], axis=1)

class SlowFile(ExportedFile):
    def _run(self, images):
        time.sleep(0.004)
        return super()._run(images)

import secondlook.decisions.exported_file
secondlook.decisions.exported_file.ExportedFile = SlowFile
pyarrow.array(np.zeros(1)), pyarrow.array([[1]])  # the first array imports the slowest modules
classifier = load_classifier(slow, name="slow")
views = ("identity", "hflip", "shift:1,0")
schedule = Schedule(
    views=views, method="mean", changes=(0, 0, 0), spreads=(0.1, 0.05, 0), margin=1, tolerance=0.01, full_looks=3,
    images=100, threshold=0.52,
)
adaptive = make_policy(classifier, rule=Policy(threshold=0.52, method="mean", schedule=schedule))
policy = make_policy(classifier, threshold=0.52)
print("ready", flush=True)
while line := sys.stdin.readline():
    folder = Path(line.strip())
    pid = os.fork()
    if pid == 0:
        kind = folder.name.partition("-")[0]
        score(
            {"decider": folder.parent / "decide.onnx", "adaptive": adaptive}.get(kind, policy),
            f"folder:{folder.parent / 'new'}", folder / "scores.parquet",
            classifier=None if kind == "decider" else classifier, batch_size=8, part_size=16, on_error="skip",
            rejected=None if kind == "plain" else folder / "rejected", progress=False,
            exports=[f"label-studio:{folder / 'tasks.json'}", f"fiftyone:{folder / 'labels.json'}"],
        )
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()  # until then the process id is not reused, so that no other process is killed
    print(os.waitpid(pid, 0)[1], flush=True)
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


class Scorers:
    """Starts scoring processes and returns their exit codes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        assert self._stdout.readline() == "ready\n"

    def start(self, folder: Path) -> int:
        folder.mkdir(exist_ok=True)
        return int(self._send(f"{folder}\n"))

    def end(self) -> int:
        return os.waitstatus_to_exitcode(int(self._send("end\n")))

    def run(self, folder: Path) -> dict[str, bytes]:
        """Score, and return the files."""
        self.start(folder)
        assert self.end() == 0
        return read_files(folder)

    def _send(self, line: str) -> str:
        self._stdin.write(line)
        self._stdin.flush()
        return self._stdout.readline()


@contextmanager
def start_scorers() -> Iterator[Scorers]:
    command = [sys.executable, "-W", "error", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Scorers(process)


@pytest.fixture(scope="module")
def scoring() -> Iterator[Scorers]:
    with start_scorers() as process:
        yield process


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with 90 new images, one of them broken, and an exported file that decides about them."""
    rng = np.random.default_rng(0)
    colors = rng.uniform(90, 160, (90, 1, 1, 1))
    save_images(tmp_path / "new", np.clip(rng.normal(colors, 10, (90, 4, 4, 3)), 0, 255).astype(np.uint8), broken=[37])
    write_decider(tmp_path / "decide.onnx", make_bright_policy(0.52))
    return tmp_path


@pytest.mark.parametrize(
    ("looking", "enough_kills"), [("all", KILLS), ("adaptive", KILLS // 2), ("decider", KILLS // 2)]
)
def test_killed_and_resumed_gives_the_same_bytes(root: Path, scoring: Scorers, looking: str, enough_kills: int) -> None:
    rng = np.random.default_rng(0)
    started = time.monotonic()
    expected = scoring.run(root / f"{looking}-never-killed")
    duration = time.monotonic() - started
    kills, folder = 0, root / f"{looking}-killed-0"
    while kills < enough_kills:
        pid = scoring.start(folder)
        time.sleep(rng.uniform(0, duration))
        os.kill(pid, signal.SIGKILL)
        kills += scoring.end() == -signal.SIGKILL
        if set(read_files(folder)) == set(expected):  # it was finished; the next one starts again
            assert read_files(folder) == expected
            folder = root / f"{looking}-killed-{kills}"
    assert scoring.run(folder) == expected
    assert {"scores.parquet", "tasks.json", "tasks-config.xml", "labels.json", "rejected/rejected.csv"} < set(expected)
    assert sum(name.endswith(".png") for name in expected) > 10
    assert not [name for name in expected if "parts" in name or name.endswith(".tmp")]
    looks = {row["looks"] for row in read_rows(folder / "scores.parquet")}
    expected_looks = {"all": {0, 3}, "adaptive": {0, 1, 2, 3}, "decider": {0, 1}}
    assert looks == expected_looks[looking], "0 for the image that cannot be read"


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_killed_while_rejected_images_are_written(root: Path, scoring: Scorers, fraction: float) -> None:
    """The time after the scores are written is short, so the kill waits for it."""
    expected = scoring.run(root / "never-killed")
    rejected = [line.split(",")[0] for line in expected["rejected/rejected.csv"].decode().splitlines()[1:]]
    pid = scoring.start(root / "killed")
    while not (root / "killed" / "rejected" / rejected[round(fraction * (len(rejected) - 1))]).exists():
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    assert scoring.end() in (0, -signal.SIGKILL)
    if set(read_files(root / "killed")) != set(expected):
        scoring.run(root / "killed")
    assert read_files(root / "killed") == expected


def test_two_processes_take_turns(root: Path, scoring: Scorers) -> None:
    """There is no folder of rejected images, since the second process would not fill it again."""
    expected = scoring.run(root / "plain-alone")
    with start_scorers() as another:
        for one in (scoring, another):
            one.start(root / "plain-shared")
        assert [scoring.end(), another.end()] == [0, 0]
    assert read_files(root / "plain-shared") == expected
