"""Child processes: forked from this one after all imports, so that each takes milliseconds."""

import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

LONGEST_SECONDS = 20.0
"""A process that takes longer counts as hanging."""
HUNG = -1000
"""Exit code of a hanging process."""


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a new folder, in memory if possible: flushing to a real disk would take most of the time."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="stress-", dir=memory if os.access(memory, os.W_OK) else None)


@dataclass(frozen=True)
class Ended:
    """The end of a process: its exit code, or minus the signal number, and its output."""

    code: int
    text: str

    @property
    def is_one_sentence(self) -> bool:
        """Whether the process reported an error that the user can repair: exit code 2 and no traceback."""
        return self.code == 2 and "Traceback" not in self.text and self.text.count("error:") == 1


def run_forked(job: Callable[[], object]) -> Ended:
    """Run a job in a forked process and wait for it."""
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run_child(job, output.fileno())
        code = _wait(pid)
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def _run_child(job: Callable[[], object], output: int) -> NoReturn:
    """Run a job with its output in a file, and exit without returning to the code of the parent."""
    code = 1
    try:
        for stream in (1, 2):
            os.dup2(output, stream)
        job()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:  # noqa: BLE001 - the parent reads it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


@dataclass(frozen=True)
class Trial:
    """The result of one item: the line returned by `judge`, or the death of the process."""

    number: int
    outcome: str


def run_trials(judge: Callable[[int], str], count: int, seconds: float) -> Iterator[Trial]:
    """Judge the items 0 to `count` in forked processes; one that dies or hangs is attributed and replaced."""
    deadline = time.monotonic() + seconds
    done = 0
    while done < count and time.monotonic() < deadline:
        for trial in _run_worker(judge, done, count, deadline):
            yield trial
            done = trial.number + 1


def _run_worker(judge: Callable[[int], str], start: int, stop: int, deadline: float) -> Iterator[Trial]:
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        with Path(os.devnull).open("wb") as nowhere:
            _run_child(lambda: _judge_all(judge, range(start, stop), write_end), nowhere.fileno())
    os.close(write_end)
    number, pending, has_ended = start, b"", False
    with os.fdopen(read_end, "rb", buffering=0) as answers:
        while not has_ended and time.monotonic() < deadline:
            if not select.select([answers], [], [], LONGEST_SECONDS)[0]:
                yield Trial(number, "hang")
                break
            received = answers.read(1 << 16)
            has_ended = not received
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                yield Trial(number, line.decode())
                number += 1
    code = _stop(pid)
    if has_ended and number < stop:
        yield Trial(number, f"crash: exit code {code}")


def _judge_all(judge: Callable[[int], str], numbers: range, write_end: int) -> None:
    for number in numbers:
        os.write(write_end, judge(number).replace("\n", " | ").encode() + b"\n")


def _stop(pid: int) -> int:
    """Return the exit code of a process that has ended or ends in a moment; end it otherwise."""
    for _ in range(500):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
