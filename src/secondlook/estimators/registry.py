"""What ways to compute a confidence exist: one frozen record each, found by name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError
from secondlook.registry import did_you_mean

Need = Literal["logits", "members", "two views", "passes", "embeddings"]
Compute = TypeVar("Compute", bound=Callable[..., Float64Array])

GIVEN_TO_ALL = ("preds", "predict_from", "top_k")


@dataclass(frozen=True)
class Method:
    """A confidence: its name, the paper's symbol for it, what it is in one line, and what it needs.

    `compute(preds, *, by, k, ...)` returns float64 [N]; what it takes beyond these are the method's options. A method
    with a `parameter` is asked for as 'name:PARAMETER' and gets that text as its second argument.
    """

    name: str
    symbol: str
    summary: str
    compute: Callable[..., Float64Array]
    needs: tuple[Need, ...] = ()
    parameter: str | None = None
    is_probability: bool = False
    """Whether its values can be read as probabilities of being right, which calibration metrics need."""
    is_rank: bool = False
    """Whether its values are places among the images at hand, so that a threshold means nothing for others."""

    @property
    def form(self) -> str:
        """How the method is written where it is asked for, such as 'msr' or 'view:TEXT'."""
        return f"{self.name}:{self.parameter}" if self.parameter else self.name

    @property
    def options(self) -> tuple[str, ...]:
        """The options that `confidence` passes on."""
        names = inspect.signature(self.compute).parameters
        return tuple(name for name, of in names.items() if of.kind is of.KEYWORD_ONLY and name not in GIVEN_TO_ALL)


_methods: dict[str, Method] = {}
METHODS: Mapping[str, Method] = MappingProxyType(_methods)
"""Every method by its name, in the order in which a table lists them."""


def method(
    name: str,
    *,
    symbol: str,
    summary: str,
    needs: tuple[Need, ...] = (),
    parameter: str | None = None,
    is_probability: bool = False,
    is_rank: bool = False,
) -> Callable[[Compute], Compute]:
    """Register the decorated function under `name`."""

    def register(compute: Compute) -> Compute:
        if name in _methods:
            raise ConfidenceError(f"confidence {name!r} is registered already; choose another name.")
        _methods[name] = Method(name, symbol, summary, compute, needs, parameter, is_probability, is_rank)
        return compute

    return register


def find_method(asked: str) -> tuple[Method, tuple[str, ...]]:
    """Return the method that is asked for, and its parameter where it has one ('view:hflip')."""
    name, colon, parameter = asked.partition(":")
    if name not in _methods:
        known = ", ".join(one.form for one in _methods.values())
        raise ConfidenceError(f"unknown confidence {asked!r}; known: {known}.{did_you_mean(name, _methods)}")
    found = _methods[name]
    if bool(found.parameter) != bool(parameter):
        raise ConfidenceError(f"confidence {asked!r} is not complete or has too much; write it as {found.form!r}.")
    return found, (parameter,) if colon else ()


def check_options(found: Method, options: Mapping[str, object]) -> None:
    """Refuse an option that the method does not have."""
    for option in options:
        if option not in found.options:
            has = f"its options are {', '.join(found.options)}" if found.options else "it has none but by and k"
            raise ConfidenceError(
                f"confidence {found.form!r} has no option {option!r}; {has}.{did_you_mean(option, found.options)}"
            )
