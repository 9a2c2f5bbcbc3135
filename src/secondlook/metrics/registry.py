"""`METRICS`: the registry of metrics, and how texts such as 'auroc' or 'risk_at:0.8' are parsed."""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Concatenate, Literal, ParamSpec, Protocol

from numpy.typing import ArrayLike

from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, rank
from secondlook.registry import Registry

P = ParamSpec("P")


@dataclass(frozen=True)
class Metric:
    """A registered metric, or one with its parameter, parsed from a text such as 'risk_at:0.8'."""

    name: str
    summary: str
    better: Literal["higher", "lower"]
    bounds: tuple[float, float]
    reads: Literal["order", "values"]
    """'order' if only the order of the confidences matters, 'values' if they must be probabilities."""
    parameter: str | None
    """Name of the required parameter, given after a colon as in 'risk_at:0.8'; None for most metrics."""
    function: Callable[..., float]
    """`function(correct, confidence, ...)` with bool [N] and float [N]."""
    ranked: Callable[..., float]
    """`ranked(ranking, ...)`, the same number for ranked images."""
    text: str
    arguments: tuple[float, ...] = ()

    def __call__(self, correct: ArrayLike, confidence: ArrayLike) -> float:
        """Return the metric for images in any order. bool [N], float [N]"""
        return self.compute(rank(correct, confidence))

    def compute(self, ranking: Ranking) -> float:
        """Return the metric for ranked images."""
        return self.ranked(ranking, *self.arguments)

    def try_compute(self, ranking: Ranking, score: str | None = None) -> tuple[float, str | None]:
        """Return the metric and None, or NaN and why it is undefined; `score` names what is not a probability."""
        if self.reads == "values" and score is not None:
            return math.nan, f"{self.text} is undefined for {score!r}, which is a score and not a probability."
        try:
            return self.compute(ranking), None
        except MetricError as error:
            return math.nan, str(error)

    @property
    def form(self) -> str:
        """The name with a placeholder for the parameter, such as 'risk_at:COVERAGE'."""
        return f"{self.name}:{self.parameter.upper()}" if self.parameter else self.name


METRICS: Registry[Metric] = Registry("metric", MetricError)
"""All metrics by name."""


class MetricFunction(Protocol[P]):
    """A metric as a function of bool [N] and float [N]."""

    def __call__(self, correct: ArrayLike, confidence: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> float:
        """Return the metric for images in any order."""


def metric(
    name: str,
    *,
    summary: str,
    better: Literal["higher", "lower"],
    bounds: tuple[float, float] = (0.0, 1.0),
    reads: Literal["order", "values"] = "order",
    parameter: str | None = None,
) -> Callable[[Callable[Concatenate[Ranking, P], float]], MetricFunction[P]]:
    """Register the decorated function of a `Ranking` as a metric, and make it a function of correct and confidence."""

    def register(ranked: Callable[Concatenate[Ranking, P], float]) -> MetricFunction[P]:
        def function(correct: ArrayLike, confidence: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> float:
            return ranked(rank(correct, confidence), *args, **kwargs)

        signature = inspect.signature(function)
        images, options = list(signature.parameters.values())[:2], inspect.signature(ranked).parameters.values()
        functools.update_wrapper(function, ranked)
        vars(function)["__signature__"] = signature.replace(parameters=[*images, *list(options)[1:]])
        METRICS.add(Metric(name, summary, better, bounds, reads, parameter, function, ranked, name))
        return function

    return register


_BOTH_OUTCOMES = rank([True, False], [0.75, 0.25])
"""Two images for which every metric is defined."""


def parse_metric(text: str) -> Metric:
    """Parse a metric such as 'auroc' or 'risk_at:0.8'."""
    name, colon, argument = text.partition(":")
    record = METRICS.find(name)
    if record.parameter is None:
        if colon:
            raise MetricError(f"metric {name!r} has no parameter, got {text!r}; write {name!r}.")
        return record
    try:
        number = float(argument)
    except ValueError:
        fault = f"metric {text!r} needs a number as its {record.parameter}, got {argument!r}"
        raise MetricError(fault, repair=f"write {record.form!r}, such as '{record.name}:0.8'") from None
    bound = replace(record, text=text, arguments=(number,))
    bound.compute(_BOTH_OUTCOMES)  # raises if the parameter is out of range
    return bound


def parse_metrics(texts: str | Iterable[str]) -> tuple[Metric, ...]:
    """Parse one or more metrics; duplicates are an error."""
    parsed = tuple(parse_metric(text) for text in ([texts] if isinstance(texts, str) else texts))
    for index, one in enumerate(parsed):
        if one in parsed[:index]:
            raise MetricError(f"duplicate metric {one.text!r}; list each metric once.")
    return parsed
