"""Slow and obvious versions of the metrics: every order of the ties is tried."""

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

Reference = Callable[[list[bool]], float]


def orders_of_ties(correct: list[bool], confidence: list[float]) -> Iterator[list[bool]]:
    """Every order, surest first, that differs only within equal confidences."""
    blocks = [[c for c, s in zip(correct, confidence, strict=True) if s == value] for value in sorted(set(confidence))]
    for shuffled in product(*(list(permutations(block)) for block in reversed(blocks))):
        yield [right for block in shuffled for right in block]


def mean_over_orders(reference: Reference, correct: list[bool], confidence: list[float]) -> float:
    return float(np.mean([reference(order) for order in orders_of_ties(correct, confidence)]))


def risks(order: list[bool]) -> list[float]:
    return [order[:n].count(False) / n for n in range(1, len(order) + 1)]


def joint_risks(order: list[bool]) -> list[float]:
    return [order[:n].count(False) / len(order) for n in range(1, len(order) + 1)]


def area_between(curve: Callable[[list[bool]], list[float]], order: list[bool]) -> tuple[float, float, float]:
    """Areas of the worst, the given and the perfect order."""
    worst, perfect = sorted(order), sorted(order, reverse=True)
    return float(np.mean(curve(worst))), float(np.mean(curve(order))), float(np.mean(curve(perfect)))


def slow_aurc(order: list[bool]) -> float:
    return float(np.mean(risks(order)))


def slow_eaurc(order: list[bool]) -> float:
    _, given, perfect = area_between(risks, order)
    return given - perfect


def slow_aorc(order: list[bool]) -> float:
    worst, given, perfect = area_between(risks, order)
    return (worst - given) / (worst - perfect)


def slow_eaurc_joint(order: list[bool]) -> float:
    _, given, perfect = area_between(joint_risks, order)
    return given - perfect


def slow_aorc_joint(order: list[bool]) -> float:
    worst, given, perfect = area_between(joint_risks, order)
    return (worst - given) / (worst - perfect)


def slow_auroc(order: list[bool]) -> float:
    pairs = [(i, j) for i, right in enumerate(order) for j, other in enumerate(order) if right and not other]
    return float(np.mean([i < j for i, j in pairs]))


def slow_average_precision(order: list[bool]) -> float:
    flagged = [not right for right in reversed(order)]
    return float(np.mean([np.mean(flagged[: n + 1]) for n, wrong in enumerate(flagged) if wrong]))


def slow_augrc(order: list[bool]) -> float:
    return float(np.trapezoid([0.0, *joint_risks(order)], dx=1 / len(order)))


@pytest.fixture
def brute_force() -> Callable[[str, Any, Any], float]:
    """Return a function of a metric's name, `correct` and `confidence` that tries every order of the ties."""
    references = {
        "aurc": slow_aurc,
        "eaurc": slow_eaurc,
        "aorc": slow_aorc,
        "eaurc_joint": slow_eaurc_joint,
        "aorc_joint": slow_aorc_joint,
        "auroc": slow_auroc,
        "aupr": slow_average_precision,
        "augrc": slow_augrc,
    }
    return lambda name, correct, confidence: mean_over_orders(
        references[name], [bool(c) for c in correct], [float(s) for s in confidence]
    )
