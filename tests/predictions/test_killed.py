"""A process killed at any moment while collecting, and restarted, writes the same bytes as an uninterrupted one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from secondlook.predictions import Predictions

KILLS = 21
MAX_LIFETIME_SECONDS = 0.06  # from the first write

# Imports everything once, then forks a collecting process for each line on stdin, so that lifetimes can be short.
PARENT = """
import os, sys, time
import numpy as np, pyarrow.parquet
from secondlook.classifiers import load_classifier
from secondlook.predictions import Execution, batching, collect
from secondlook.sources import Source, UnreadableImageError
from secondlook.views import apply_view

class Images(Source):
    def __init__(self):
        super().__init__("test:images", [f"{i:03d}" for i in range(150)], labels=np.arange(150) % 3, on_error="skip")
    def read(self, index):
        if index in (5, 37, 38):
            raise UnreadableImageError(self.ids[index], "it is broken")
        return np.random.default_rng(index).integers(0, 256, (4, 4, 3), dtype=np.uint8)

def slow_logits(batch):
    time.sleep(0.001)
    return batch.reshape(len(batch), -1)[:, :3].astype(np.float32)

def slow_fsync(descriptor, fsync=os.fsync):
    os.write(write_end, b".")
    time.sleep(0.002)
    fsync(descriptor)

os.fsync = slow_fsync  # a slow disk: many processes are killed while writing a file
batching.CHUNK_BYTES = 16 * 4 * 4 * 3
for line in sys.stdin:
    store, views = line.strip().split(" ", 1)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        classifier = load_classifier(slow_logits, name="slow", output="logits")
        collect(classifier, Images(), views, store=store, execution=Execution(batch_size=8, progress=False))
        os._exit(0)
    os.close(write_end)
    os.read(read_end, 1)  # until it writes its first file, or exits
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
    os.close(read_end)
"""
VIEWS = "identity hflip shift:1,0 shift:0,1 vflip"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


class Collectors:
    """Starts collecting processes and returns their exit codes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def start(self, store: Path, views: str = VIEWS) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{store} {views}\n")
        self._process.stdin.flush()
        return self._read_number()

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(self._read_number())

    def _read_number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def start_collectors() -> Iterator[Collectors]:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Collectors(process)


def all_bytes(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


@pytest.mark.posix
def test_killed_and_resumed_collection_writes_the_same_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with start_collectors() as collector:
        collector.start(tmp_path / "uninterrupted")
        assert collector.wait() == 0
        expected = all_bytes(tmp_path / "uninterrupted")
        kills, kills_while_writing, store = 0, 0, tmp_path / "killed-0"
        while kills < KILLS or (not kills_while_writing and kills < 10 * KILLS):
            pid = collector.start(store)
            time.sleep(random.uniform(0, MAX_LIFETIME_SECONDS))
            with suppress(ProcessLookupError):  # it has already exited
                os.kill(pid, signal.SIGKILL)
            if collector.wait() == -signal.SIGKILL:
                kills += 1
                kills_while_writing += any(store.rglob("*.tmp"))
            else:  # it finished: compare its bytes, and start with a new store
                assert all_bytes(store) == expected
                store = tmp_path / f"killed-{kills}"
        collector.start(store)
        assert collector.wait() == 0
    assert all_bytes(store) == expected
    assert kills_while_writing > 0
    assert len(expected) == 5 * 10 + 4, "ten chunks of five views, the manifest, the images and two locks"


def test_two_processes_can_share_a_store_and_add_different_views(tmp_path: Path) -> None:
    with start_collectors() as one, start_collectors() as two:
        one.start(tmp_path / "alone")
        assert one.wait() == 0
        for collector in (one, two):
            collector.start(tmp_path / "shared")
        assert [one.wait(), two.wait()] == [0, 0]
        assert all_bytes(tmp_path / "shared") == all_bytes(tmp_path / "alone")
        one.start(tmp_path / "views", "identity hflip shift:1,0")
        two.start(tmp_path / "views", "identity vflip shift:0,1")
        assert [one.wait(), two.wait()] == [0, 0]
    opened = Predictions.open(tmp_path / "views")
    assert set(opened.views.texts) == set(VIEWS.split())
    assert opened.shape == (147, 5, 3)
    assert [name for name, _ in opened.skipped] == ["005", "037", "038"]
