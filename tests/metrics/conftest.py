"""Random images, and slow but obvious references of the metrics that try every order of ties."""

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

Reference = Callable[[list[bool]], float]


def make_images(seed: int, n: int = 3000, decimals: int = 2) -> tuple[Any, Any]:
    """Return `correct` and `confidence`; rounding to few decimals makes ties."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).round(decimals)
    return rng.random(n) < 0.3 + 0.65 * confidence, confidence


@pytest.fixture
def images() -> Callable[..., tuple[Any, Any]]:
    return make_images


def iter_orders_of_ties(correct: list[bool], confidence: list[float]) -> Iterator[list[bool]]:
    """Yield every order, most confident first, that differs only within equal confidences."""
    ties = [[c for c, s in zip(correct, confidence, strict=True) if s == value] for value in sorted(set(confidence))]
    for shuffled in product(*(list(permutations(tie)) for tie in reversed(ties))):
        yield [is_correct for tie in shuffled for is_correct in tie]


def average_over_orders(reference: Reference, correct: list[bool], confidence: list[float]) -> float:
    return float(np.mean([reference(order) for order in iter_orders_of_ties(correct, confidence)]))


def selective_risks(order: list[bool]) -> list[float]:
    return [order[:n].count(False) / n for n in range(1, len(order) + 1)]


def joint_risks(order: list[bool]) -> list[float]:
    return [order[:n].count(False) / len(order) for n in range(1, len(order) + 1)]


def areas(curve: Callable[[list[bool]], list[float]], order: list[bool]) -> tuple[float, float, float]:
    """Return the areas of the worst, the given and the perfect order."""
    worst, perfect = sorted(order), sorted(order, reverse=True)
    return float(np.mean(curve(worst))), float(np.mean(curve(order))), float(np.mean(curve(perfect)))


def reference_aurc(order: list[bool]) -> float:
    return float(np.mean(selective_risks(order)))


def reference_eaurc(order: list[bool]) -> float:
    _, given, perfect = areas(selective_risks, order)
    return given - perfect


def reference_aorc(order: list[bool]) -> float:
    worst, given, perfect = areas(selective_risks, order)
    return (worst - given) / (worst - perfect)


def reference_eaurc_joint(order: list[bool]) -> float:
    _, given, perfect = areas(joint_risks, order)
    return given - perfect


def reference_aorc_joint(order: list[bool]) -> float:
    worst, given, perfect = areas(joint_risks, order)
    return (worst - given) / (worst - perfect)


def reference_auroc(order: list[bool]) -> float:
    pairs = [(i, j) for i, first in enumerate(order) for j, second in enumerate(order) if first and not second]
    return float(np.mean([i < j for i, j in pairs]))


def reference_aupr(order: list[bool]) -> float:
    flagged = [not is_correct for is_correct in reversed(order)]
    return float(np.mean([np.mean(flagged[: n + 1]) for n, is_error in enumerate(flagged) if is_error]))


def reference_augrc(order: list[bool]) -> float:
    return float(np.trapezoid([0.0, *joint_risks(order)], dx=1 / len(order)))


@pytest.fixture
def brute_force() -> Callable[[str, Any, Any], float]:
    """Return a function of a metric's name, `correct` and `confidence` that tries every order of ties."""
    references = {
        "aurc": reference_aurc,
        "eaurc": reference_eaurc,
        "aorc": reference_aorc,
        "eaurc_joint": reference_eaurc_joint,
        "aorc_joint": reference_aorc_joint,
        "auroc": reference_auroc,
        "aupr": reference_aupr,
        "augrc": reference_augrc,
    }
    return lambda name, correct, confidence: average_over_orders(
        references[name], [bool(c) for c in correct], [float(s) for s in confidence]
    )
