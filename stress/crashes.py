"""Kills and errors at every file-system event of a job; the rerun must end with the same bytes."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from measurement import Row
from stress.events import ERRORS, Fault, FaultName
from stress.plan import Plan, Result
from stress.processes import Ended, temporary_folder
from stress.workspace import JOBS, Job, copy_workspace, make_workspace, read_files, run_in

Files = dict[str, bytes | None]


@dataclass
class Outcome:
    """Counts over the faults of one job, and descriptions of failures."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, kind: str, text: str) -> None:
        """Count a failure and keep its description."""
        self.counts[kind] += 1
        self.failures.append(f"{kind}: {text}")


def kill_jobs(plan: Plan) -> Iterator[Result]:
    """Kill every job at each of its events, and run it again; further kills hit the second run too."""
    yield from _run_jobs(plan, "kills", ("kill",))


def fail_jobs(plan: Plan) -> Iterator[Result]:
    """Make the disk or the memory fail at each event of every job, and run it again."""
    yield from _run_jobs(plan, "errors", ERRORS)


def _run_jobs(plan: Plan, test: str, faults: tuple[FaultName, ...]) -> Iterator[Result]:
    workspace = make_workspace()
    with temporary_folder() as place:
        tested = [_TestedJob(workspace, Path(place) / "copy", job, faults) for job in JOBS if plan.includes(job.name)]
        events_left = sum(job.n_events for job in tested)
        count_left = plan.count
        for job in tested:
            share = job.n_events / events_left
            count = max(1, round(count_left * share))
            points = _choose_points(job.n_events, count, np.random.default_rng((plan.seed, job.n_events)))
            outcome = job.test(points, time.monotonic() + plan.seconds_left * share)
            names = ("faults", "wrong files", "leftovers", "bad endings", "failed reruns")
            counts = {name.replace(" ", "_"): outcome.counts[name] for name in names}
            row: Row = {"test": test, "case": job.job.name, "events": job.n_events, **counts, "seed": plan.seed}
            yield Result(row, outcome.failures)
            events_left -= job.n_events
            count_left -= count


def _choose_points(events: int, count: int, rng: np.random.Generator) -> list[list[int]]:
    """Return the events of faults for each trial: every event once, or some of them; then pairs of events."""
    every = rng.permutation(events) + 1
    pairs = rng.integers(1, events + 1, (max(0, count - events) // 2, 2))
    return [*([int(at)] for at in every[:count]), *([int(at) for at in pair] for pair in pairs)]


class _TestedJob:
    """A job, its final files, and its number of events."""

    def __init__(self, workspace: Path, place: Path, job: Job, faults: tuple[FaultName, ...]) -> None:
        self.workspace, self.place, self.job, self.faults = workspace, place, job, faults
        counting = Fault(faults[0], 0)
        copy_workspace(workspace, place)
        ended = run_in(place, job.run, counting)
        if ended.code != 0:
            raise RuntimeError(f"{job.name} failed without a fault: {ended.text}")
        self.expected = read_files(place)
        self.n_events = counting.events

    def test(self, trials: Sequence[list[int]], deadline: float) -> Outcome:
        """Run each trial: the job with a fault at each of the given events in turn, then without."""
        outcome = Outcome()
        for number, points in enumerate(trials):
            if time.monotonic() > deadline:
                break
            copy_workspace(self.workspace, self.place)
            name = self.faults[(number + points[0]) % len(self.faults)]
            where = f"{self.job.name}, {name} at {points} of {self.n_events} events"
            for at in points:
                fault = Fault(name, at)
                self._check_ending(outcome, where, fault, run_in(self.place, self.job.run, fault))
            self._finish(outcome, where)
        return outcome

    def _check_ending(self, outcome: Outcome, where: str, fault: Fault, ended: Ended) -> None:
        """Expect a kill or a one-sentence error; or success, if the job does not depend on the event."""
        if fault.events < fault.at:  # a resumed job has fewer events
            return
        outcome.counts["faults"] += 1
        expected = ended.code == -9 if fault.name == "kill" else ended.code == 0 or ended.is_one_sentence
        if not expected:
            outcome.fail("bad endings", f"{where}: exit code {ended.code}: {ended.text[-1500:]}")

    def _finish(self, outcome: Outcome, where: str) -> None:
        """Run the job again if it had not finished, and compare all files."""
        if not self._is_finished():
            ended = run_in(self.place, self.job.run)
            if ended.code != 0:
                outcome.fail("failed reruns", f"{where}: exit code {ended.code}: {ended.text[-1500:]}")
        found = read_files(self.place)
        wrong = sorted(name for name, content in self.expected.items() if found.get(name, b"missing") != content)
        left = sorted(found.keys() - self.expected.keys())
        if wrong:
            outcome.fail("wrong files", f"{where}: {', '.join(wrong)}")
        if [name for name in left if not _is_last_lock(name)]:
            outcome.fail("leftovers", f"{where}: {', '.join(left)}")

    def _is_finished(self) -> bool:
        found = read_files(self.place)
        return {name: content for name, content in found.items() if not _is_last_lock(name)} == self.expected


def _is_last_lock(name: str) -> bool:
    """Whether a file is the lock of a job that ended after its last file."""
    return name.endswith((".parts", ".parts/_lock"))
