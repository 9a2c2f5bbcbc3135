"""The table of metrics: what each is called, which way is better, and what it needs."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Concatenate, Generic, Literal, ParamSpec

from numpy.typing import ArrayLike

from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, rank
from secondlook.registry import did_you_mean

P = ParamSpec("P")


@dataclass(frozen=True)
class Metric(Generic[P]):
    """One metric. It is called as a function of `correct` (bool [N]) and `confidence` (float64 [N])."""

    name: str
    better: Literal["higher", "lower"]
    bounds: tuple[float, float]
    reads: Literal["order", "values"]
    """'order': only the order of the confidences matters; 'values': they must be probabilities of being right."""
    parameter: str | None
    """The name of the one parameter that a text such as 'risk_at:0.8' gives, where there is one."""
    says: str
    of: Callable[Concatenate[Ranking, P], float]
    """The same number from images that are already ranked, so that several metrics share one sort."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.of.__doc__)
        object.__setattr__(self, "__name__", self.name)

    def __call__(self, correct: ArrayLike, confidence: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> float:
        """Return the number for images in any order."""
        return self.of(rank(correct, confidence), *args, **kwargs)


@dataclass(frozen=True)
class BoundMetric:
    """A metric with its parameter, as a text names it: 'auroc', 'risk_at:0.8'."""

    text: str
    metric: Metric[...]
    arguments: tuple[float, ...]

    def of(self, ranking: Ranking) -> float:
        """Return the number for ranked images."""
        return self.metric.of(ranking, *self.arguments)


_METRICS: dict[str, Metric[...]] = {}
_ONE_RIGHT_ONE_WRONG = rank([True, False], [0.75, 0.25])
"""Images for which every metric has a meaning."""


def metric(
    name: str,
    *,
    better: Literal["higher", "lower"],
    says: str,
    bounds: tuple[float, float] = (0.0, 1.0),
    reads: Literal["order", "values"] = "order",
    parameter: str | None = None,
) -> Callable[[Callable[Concatenate[Ranking, P], float]], Metric[P]]:
    """Register a function of a ranking as a metric; the name is then that of the record."""

    def register(of: Callable[Concatenate[Ranking, P], float]) -> Metric[P]:
        if name in _METRICS:
            raise MetricError(f"a metric named {name!r} is registered already; choose another name for the second one.")
        record = Metric(name, better, bounds, reads, parameter, says, of)
        _METRICS[name] = record
        return record

    return register


def known_metrics() -> tuple[Metric[...], ...]:
    """Return every registered metric, in the order of registration."""
    return tuple(_METRICS.values())


def parse_metric(text: str) -> BoundMetric:
    """Read 'auroc' or 'risk_at:0.8' into a metric with its parameter."""
    name, colon, argument = text.partition(":")
    if name not in _METRICS:
        known = ", ".join(_METRICS)
        raise MetricError(f"unknown metric {name!r}; known metrics: {known}.{did_you_mean(name, _METRICS)}")
    record = _METRICS[name]
    if record.parameter is None:
        if colon:
            raise MetricError(f"metric {name!r} has no parameter, but {text!r} gives one: write {name!r}.")
        return BoundMetric(text, record, ())
    read = BoundMetric(text, record, (_number(argument, text, record.parameter),))
    read.of(_ONE_RIGHT_ONE_WRONG)  # says what is wrong with the parameter, where something is
    return read


def parse_metrics(texts: Iterable[str]) -> tuple[BoundMetric, ...]:
    """Read several metrics, or a single one; naming one twice is an error."""
    read = tuple(parse_metric(text) for text in ([texts] if isinstance(texts, str) else texts))
    for index, one in enumerate(read):
        if one in read[:index]:
            raise MetricError(f"metric {one.text!r} is named twice; name each once.")
    return read


def _number(argument: str, text: str, parameter: str) -> float:
    try:
        number = float(argument)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        name = text.partition(":")[0]
        raise MetricError(f"metric {text!r} lacks its {parameter}, expected a number as in '{name}:0.8'.")
    return number
