"""A scoring killed at any moment, and started again, ends with the same bytes as one never killed."""

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
from PIL import Image

KILLS = 24

# Everything is imported once; each line then asks for one scoring process, forked, so that a life may be short.
PARENT = """
import os, sys, time
from pathlib import Path
import numpy as np, pyarrow.parquet
from PIL import PngImagePlugin
from secondlook.classifiers import load_classifier
from secondlook.estimators import confidence, confidence_interval
from secondlook.predictions import batching
from secondlook.selective import Policy, Rule
from secondlook.scoring.scoring import score
from secondlook.views import apply_view

def slow(batch):
    time.sleep(0.004)
    bright = batch.mean(axis=(1, 2, 3)) / 255.0
    return np.stack([1 - bright, bright], axis=1)

batching.PART_BYTES = 1
pyarrow.array(np.zeros(1)), pyarrow.array([[1]])  # the first array imports what takes longest
classifier = load_classifier(slow, name="slow")
views = ("identity", "hflip", "shift:1,0")
policy = Policy.of(Rule(0.52), classifier=classifier, views=views, made="then")
print("ready", flush=True)
while line := sys.stdin.readline():
    folder = Path(line.strip())
    pid = os.fork()
    if pid == 0:
        score(
            policy, f"folder:{folder.parent / 'new'}", folder / "scores.parquet", classifier=classifier, batch_size=8,
            on_error="skip", rejected=None if folder.name.startswith("plain") else folder / "rejected", progress=False,
            exports=[f"label-studio:{folder / 'tasks.json'}", f"fiftyone:{folder / 'labels.json'}"],
        )
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()  # until then a process that has ended keeps its number, and no other can be killed for it
    print(os.waitpid(pid, 0)[1], flush=True)
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks processes")


class Scorers:
    """Starts scoring processes and tells how they ended."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def start(self, folder: Path) -> int:
        folder.mkdir(exist_ok=True)
        return int(self._answer(f"{folder}\n"))

    def end(self) -> int:
        return os.waitstatus_to_exitcode(int(self._answer("end\n")))

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def scorers() -> Iterator[Scorers]:
    command = [sys.executable, "-W", "error", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Scorers(process)


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Return what a folder holds, but for the lock that a kill in the very last step leaves."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def scoring() -> Iterator[Scorers]:
    with scorers() as process:
        yield process


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with 90 new images, one of them broken."""
    random = np.random.default_rng(0)
    (tmp_path / "new").mkdir()
    for number in range(90):
        pixels = np.clip(random.normal(random.uniform(90, 160), 10, (4, 4, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "new" / f"{number:03d}.png")
    (tmp_path / "new" / "037.png").write_bytes(b"")
    return tmp_path


def test_killed_and_resumed_gives_the_same_bytes(place: Path, scoring: Scorers) -> None:
    random = np.random.default_rng(0)
    begun = time.monotonic()
    scoring.start(place / "never-killed")
    assert scoring.end() == 0
    longest_life = time.monotonic() - begun
    expected = all_bytes(place / "never-killed")
    kills, folder = 0, place / "killed-0"
    while kills < KILLS:
        pid = scoring.start(folder)
        time.sleep(random.uniform(0, longest_life))
        os.kill(pid, signal.SIGKILL)
        kills += scoring.end() == -signal.SIGKILL
        if set(all_bytes(folder)) == set(expected):  # it was done already, and the next one begins anew
            assert all_bytes(folder) == expected
            folder = place / f"killed-{kills}"
    scoring.start(folder)
    assert scoring.end() == 0
    assert all_bytes(folder) == expected
    assert {"scores.parquet", "tasks.json", "tasks-config.xml", "labels.json", "rejected/rejected.csv"} < set(expected)
    assert sum(name.endswith(".png") for name in expected) > 10
    assert not [name for name in expected if "parts" in name or name.endswith(".tmp")]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_killed_while_rejected_images_are_handed_over(place: Path, scoring: Scorers, share: float) -> None:
    """The moments after the scores are there are short, so they are waited for."""
    scoring.start(place / "never-killed")
    assert scoring.end() == 0
    expected = all_bytes(place / "never-killed")
    rejected = [line.split(",")[0] for line in expected["rejected/rejected.csv"].decode().splitlines()[1:]]
    pid = scoring.start(place / "killed")
    while not (place / "killed" / "rejected" / rejected[round(share * (len(rejected) - 1))]).exists():
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    assert scoring.end() in (0, -signal.SIGKILL)
    if set(all_bytes(place / "killed")) != set(expected):
        scoring.start(place / "killed")
        assert scoring.end() == 0
    assert all_bytes(place / "killed") == expected


def test_two_processes_take_turns(place: Path, scoring: Scorers) -> None:
    """Without a folder of rejected images, which the second would refuse to fill again."""
    scoring.start(place / "plain-alone")
    assert scoring.end() == 0
    with scorers() as another:
        for one in (scoring, another):
            one.start(place / "plain-shared")
        assert [scoring.end(), another.end()] == [0, 0]
    assert all_bytes(place / "plain-shared") == all_bytes(place / "plain-alone")
