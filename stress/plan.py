"""Arguments and results of all stress tests."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from measurement import Row


@dataclass(frozen=True)
class Plan:
    """Number of trials, maximum seconds, random seed, and cases (all by default)."""

    count: int
    seconds: float = 3600.0
    seed: int = 0
    cases: tuple[str, ...] = ()
    started: float = field(default_factory=time.monotonic)

    def includes(self, case: str) -> bool:
        """Whether to run a case."""
        return not self.cases or case in self.cases

    @property
    def seconds_left(self) -> float:
        """The remaining time of the test."""
        return self.seconds - (time.monotonic() - self.started)


@dataclass(frozen=True)
class Result:
    """A row of numbers for one case, and a description of each failure."""

    row: Row
    failures: list[str]


Test = Callable[[Plan], Iterator[Result]]
