"""Mutated inputs, bit flips and forged records: every reader gives a valid result or an error of ours."""

import math
import os
import resource
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from measurement import Row
from secondlook.errors import SecondLookError
from stress.mutation import flip_bit, forge, mutate
from stress.plan import Plan, Result
from stress.processes import run_trials, temporary_folder
from stress.readers import INPUTS, JOB_FOLDER, Reader, find_forged, find_stored, interrupt_scoring, prepare_forgery
from stress.workspace import copy_workspace, make_small_and_repeatable, make_workspace, run_in

MEMORY_LIMIT = 4 * 2**30
"""Address space of a process that reads mutated files."""
KNOWN_OUTCOMES = ("same result", "another result", "refused", "warned")
Mutation = Callable[[bytes, np.random.Generator], bytes]


def mutate_inputs(plan: Plan) -> Iterator[Result]:
    """Mutate every kind of file that is read, and read it."""
    workspace = _prepare_workspace()
    yield from _test_readers(plan, "mutated inputs", mutate, workspace, [*INPUTS, *find_stored(workspace)])


def flip_bits(plan: Plan) -> Iterator[Result]:
    """Flip one bit of every kind of stored file, and read it."""
    workspace = _prepare_workspace()
    yield from _test_readers(plan, "bit flips", flip_bit, workspace, find_stored(workspace))


def forge_records(plan: Plan) -> Iterator[Result]:
    """Forge every kind of record, with a matching checksum or none, and use it."""
    with temporary_folder() as place:
        workspace = Path(place) / "forged"
        copy_workspace(_prepare_workspace(), workspace)
        prepare_forgery(workspace)
        yield from _test_readers(plan, "forged records", forge, workspace, find_forged(workspace))


def _prepare_workspace() -> Path:
    workspace = make_workspace()
    if not (workspace / JOB_FOLDER).is_dir() and (ended := run_in(workspace, interrupt_scoring)).code != 0:
        raise RuntimeError(f"preparing an interrupted job failed: {ended.text}")
    return workspace


def _test_readers(
    plan: Plan, test: str, mutation: Mutation, workspace: Path, readers: Sequence[Reader]
) -> Iterator[Result]:
    chosen = [(number, reader) for number, reader in enumerate(readers) if plan.includes(reader.name)]
    with temporary_folder() as place:
        folder = Path(place) / "copy"
        copy_workspace(workspace, folder)
        shares = sum(reader.share for _, reader in chosen)
        for done, (number, reader) in enumerate(chosen):
            count = math.ceil(plan.count * reader.share / shares)
            seconds = plan.seconds_left / (len(chosen) - done)
            judge = _Judge(folder, reader, mutation, (plan.seed, number))
            outcomes, failures = Counter[str](), list[str]()
            for trial in run_trials(judge, count, seconds):
                kind = trial.outcome.partition(":")[0]
                outcomes[kind] += 1
                if kind not in KNOWN_OUTCOMES or (kind == "another result" and reader.stored):
                    failures.append(f"{reader.name} {trial.number}, seed {plan.seed}: {trial.outcome}")
            counts = {name.replace(" ", "_"): outcomes[name] for name in (*KNOWN_OUTCOMES, "raised", "crash", "hang")}
            row: Row = {"test": test, "case": reader.name, "inputs": outcomes.total(), **counts, "seed": plan.seed}
            failures.sort(key=lambda failure: failure.endswith("another result"))  # the worst first
            yield Result({**row, "failures": len(failures)}, failures)


class _Judge:
    """Mutates the file of a reader by number, and describes the result of reading it."""

    def __init__(self, workspace: Path, reader: Reader, mutation: Mutation, seed: tuple[int, int]) -> None:
        self._workspace, self._reader, self._mutation, self._seed = workspace, reader, mutation, seed
        self._original = (workspace / reader.path).read_bytes()
        self._expected: str | None = None

    def __call__(self, number: int) -> str:
        if self._expected is None:
            self._prepare()
        path = Path(self._reader.path)
        content = self._mutation(self._original, np.random.default_rng((*self._seed, number)))
        try:
            path.write_bytes(content)
            return self._read()
        finally:
            path.write_bytes(self._original)

    def _prepare(self) -> None:
        """Read the original file, once in each process."""
        os.chdir(self._workspace)
        make_small_and_repeatable()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        (self._workspace / self._reader.path).write_bytes(self._original)
        self._expected = self._reader.read()

    def _read(self) -> str:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                result = self._reader.read()
            except SecondLookError:
                return "refused"
            except BaseException as error:  # noqa: BLE001 - the test looks for these
                place = "; ".join(
                    f"{Path(at.filename).name}:{at.lineno}" for at in traceback.extract_tb(error.__traceback__)[-4:]
                )
                return f"raised: {type(error).__name__}: {str(error)[:300]} [{place}]"
        if result == self._expected:
            return "same result"
        return "warned" if warned else "another result"
