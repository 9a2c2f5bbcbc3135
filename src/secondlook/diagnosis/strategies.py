"""The registry of strategies: ways to choose views from a pool under a budget."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.diagnosis.objective import Objective
from secondlook.errors import DiagnosisError
from secondlook.registry import did_you_mean


@dataclass(frozen=True, eq=False)
class Question:
    """Views to choose from on some images; the first is the identity, which is always chosen."""

    shares: Float64Array
    """float64 [V, N]"""
    correct: BoolArray
    """bool [N]"""
    objective: Objective
    budget: int
    """How many views may be chosen, the identity among them."""
    advance: Callable[[int], None] = lambda _: None
    """Told how many more views were chosen."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen views as places among those to choose from, the best first look first."""

    places: IntArray
    weights: Float64Array | None = None
    """What each of them counts, adding up to 1; None where all count the same."""


Choose = Callable[[Question], Choice]


@dataclass(frozen=True)
class Strategy:
    """A way to choose: its name, a sentence, and the function."""

    name: str
    summary: str
    choose: Choose
    by_objective: bool
    """Whether it looks at the objective, so that the shrinkage matters to it."""


_strategies: dict[str, Strategy] = {}
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(_strategies)
"""Every strategy by its name."""


def strategy(name: str, summary: str, *, by_objective: bool = True) -> Callable[[Choose], Choose]:
    """Register the decorated function under `name`."""

    def register(choose: Choose) -> Choose:
        if name in _strategies:
            raise DiagnosisError(f"the strategy {name!r} is registered already; choose another name.")
        _strategies[name] = Strategy(name, summary, choose, by_objective)
        return choose

    return register


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name, or say which there are."""
    if name not in _strategies:
        known = ", ".join(_strategies)
        raise DiagnosisError(f"unknown strategy {name!r}; known: {known}.{did_you_mean(name, _strategies)}")
    return _strategies[name]
