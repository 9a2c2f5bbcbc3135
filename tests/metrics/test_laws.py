"""Laws of every registered metric, and every metric of ties against all their orders."""

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.metrics import METRICS, aorc_joint, auroc, parse_metric, rank

ORDER_ONLY = [name for name in METRICS if METRICS[name].reads == "order"]
ARGUMENTS: dict[str | None, tuple[float, ...]] = {None: (), "coverage": (0.6,), "risk": (0.2,)}


def draw_images(size: int, levels: int) -> st.SearchStrategy[tuple[Any, Any]]:
    """Draw `correct`, with both outcomes, and `confidence`, with many ties."""
    images = st.lists(st.tuples(st.booleans(), st.integers(0, levels)), min_size=2, max_size=size)
    arrays = images.map(lambda drawn: (np.array([c for c, _ in drawn]), np.array([s for _, s in drawn]) / levels))
    return arrays.filter(lambda drawn: 0 < drawn[0].sum() < len(drawn[0]))


def compute(name: str, correct: Any, confidence: Any) -> float:
    record = METRICS[name]
    return record.function(correct, np.asarray(confidence, dtype=float), *ARGUMENTS[record.parameter])


@pytest.mark.parametrize("name", METRICS)
@settings(deadline=None, max_examples=60)
@given(images=draw_images(40, 6), seed=st.integers(0, 1000))
def test_values_are_bounded_and_shuffled_or_ranked_images_change_no_bit(
    name: str, images: tuple[Any, Any], seed: int
) -> None:
    correct, confidence = images
    value = compute(name, correct, confidence)
    low, high = METRICS[name].bounds
    assert low <= value <= high
    order = np.random.default_rng(seed).permutation(len(correct))
    assert compute(name, correct[order], confidence[order]) == value
    parsed = parse_metric(":".join(map(str, (name, *ARGUMENTS[METRICS[name].parameter]))))
    assert parsed.compute(rank(correct, confidence)) == parsed(correct, confidence) == value


@pytest.mark.parametrize("name", ORDER_ONLY)
@settings(deadline=None, max_examples=60)
@given(images=draw_images(40, 6))
def test_only_the_order_matters_and_the_perfect_and_the_worst_order_are_extreme(
    name: str, images: tuple[Any, Any]
) -> None:
    correct, confidence = images
    value = compute(name, correct, confidence)
    assert compute(name, correct, np.exp(18.0 * confidence) - 7) == value
    best, worst = compute(name, correct, correct), compute(name, correct, ~correct)
    low, high = (worst, best) if METRICS[name].better == "higher" else (best, worst)
    assert low - 1e-12 <= value <= high + 1e-12


@settings(deadline=None, max_examples=200)
@given(images=draw_images(40, 6))
def test_aorc_on_joint_risk_equals_auroc_exactly(images: tuple[Any, Any]) -> None:
    assert aorc_joint(*images) == auroc(*images)


def iter_orders_of_ties(correct: list[bool], confidence: list[float]) -> Iterator[list[bool]]:
    """Yield every order, most confident first, that differs only within equal confidences."""
    ties = [[c for c, s in zip(correct, confidence, strict=True) if s == value] for value in sorted(set(confidence))]
    for shuffled in product(*(list(permutations(tie)) for tie in reversed(ties))):
        yield [is_correct for tie in shuffled for is_correct in tie]


def list_risks(order: list[bool], joint: bool) -> list[float]:
    return [order[:n].count(False) / (len(order) if joint else n) for n in range(1, len(order) + 1)]


def compute_areas(order: list[bool], joint: bool) -> tuple[float, float, float]:
    """Return the areas of the worst, the given and the perfect order."""
    worst, given, perfect = (
        float(np.mean(list_risks(one, joint))) for one in (sorted(order), order, sorted(order)[::-1])
    )
    return worst, given, perfect


def compute_eaurc(order: list[bool], joint: bool = False) -> float:
    _, given, perfect = compute_areas(order, joint)
    return given - perfect


def compute_aorc(order: list[bool], joint: bool = False) -> float:
    worst, given, perfect = compute_areas(order, joint)
    return (worst - given) / (worst - perfect)


def compute_auroc(order: list[bool]) -> float:
    pairs = [(i, j) for i, first in enumerate(order) for j, second in enumerate(order) if first and not second]
    return float(np.mean([i < j for i, j in pairs]))


def compute_fpr95(order: list[bool]) -> float:
    accepted = next(n for n in range(1, len(order) + 1) if 100 * order[:n].count(True) >= 95 * order.count(True))
    return order[:accepted].count(False) / order.count(False)


def compute_aupr(order: list[bool]) -> float:
    flagged = [not is_correct for is_correct in reversed(order)]
    return float(np.mean([np.mean(flagged[: n + 1]) for n, is_error in enumerate(flagged) if is_error]))


REFERENCES: dict[str, Callable[[list[bool]], float]] = {
    "auroc": compute_auroc,
    "fpr95": compute_fpr95,
    "aupr": compute_aupr,
    "aurc": lambda order: compute_areas(order, joint=False)[1],
    "eaurc": compute_eaurc,
    "aorc": compute_aorc,
    "augrc": lambda order: float(np.trapezoid([0.0, *list_risks(order, joint=True)], dx=1 / len(order))),
    "eaurc_joint": lambda order: compute_eaurc(order, joint=True),
    "aorc_joint": lambda order: compute_aorc(order, joint=True),
}


@pytest.mark.parametrize("name", REFERENCES)
@settings(deadline=None, max_examples=40)
@given(images=draw_images(6, 3))
def test_ties_count_as_the_mean_over_all_their_orders(name: str, images: tuple[Any, Any]) -> None:
    orders = iter_orders_of_ties(*(one.tolist() for one in images))
    expected = np.mean([REFERENCES[name](order) for order in orders])
    assert getattr(metrics, name)(*images) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "all_correct", "all_wrong"),
    [
        ("accuracy", 1.0, 0.0),
        ("auroc", None, None),
        ("fpr95", None, None),
        ("aupr", None, 1.0),
        ("aurc", 0.0, 1.0),
        ("eaurc", 0.0, 0.0),
        ("aorc", None, None),
        ("augrc", 0.0, 0.5),
        ("eaurc_joint", 0.0, 0.0),
        ("aorc_joint", None, None),
        ("risk_at:0.5", 0.0, 1.0),
        ("coverage_at:0.1", 1.0, 0.0),
    ],
)
@pytest.mark.parametrize("confidence", [[0.5], [0.2, 0.9, 0.4], [0.5, 0.5, 0.5]], ids=["one", "three", "tied"])
def test_edge_cases_have_the_documented_value(
    text: str, all_correct: float | None, all_wrong: float | None, confidence: list[float]
) -> None:
    for outcome, expected in ((True, all_correct), (False, all_wrong)):
        ranking = rank([outcome] * len(confidence), confidence)
        if expected is None:
            with pytest.raises(MetricError, match=text):
                parse_metric(text).compute(ranking)
        else:
            assert parse_metric(text).compute(ranking) == pytest.approx(expected, abs=1e-12)
