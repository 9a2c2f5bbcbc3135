"""The guarantee: broken in at most delta of all draws, whatever the distribution, and with coverage to spare."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.metrics import rank
from secondlook.selective.fallback_test import images_without_errors, largest_certified_count, starting_ranks


@dataclass(frozen=True)
class World:
    """A distribution with known risk: `error_rate(u)` of the image at quantile u, 0 the surest; `risk(u)` up to it."""

    error_rate: Callable[[Any], Any]
    risk: Callable[[Any], Any]
    levels: int | None = None
    """Into how many equal confidences the quantiles are rounded; None for none."""

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        place = rng.random(n)
        wrong = rng.random(n) < self.error_rate(place)
        return ~wrong, -place if self.levels is None else -np.ceil(place * self.levels) / self.levels

    def oracle(self, risk: float) -> float:
        steps = np.linspace(0, 1, 10_001 if self.levels is None else self.levels + 1)[1:]
        return float(steps[self.risk(steps) <= risk].max(initial=0))


def humps(u: Any) -> Any:
    """Risk that crosses 5 % up and down again and again."""
    return 0.05 + 0.004 * np.sin(40 * u) * (1 - u)


WORLDS = {
    "steep": World(lambda u: 0.8 * u**3, lambda u: 0.2 * u**3),
    "gentle": World(lambda u: 0.3 * u**2, lambda u: 0.1 * u**2),
    "sure and wrong": World(
        lambda u: np.where(u < 0.02, 0.3, 0.6 * u**3),
        lambda u: (0.3 * np.minimum(u, 0.02) + 0.15 * np.maximum(u**4 - 1.6e-7, 0)) / u,
    ),
    "flat": World(lambda u: np.full_like(u, 0.0501), lambda u: np.full_like(u, 0.0501)),
    "humps": World(lambda u: humps(u) + u * 0.004 * (40 * np.cos(40 * u) * (1 - u) - np.sin(40 * u)), humps),
    "ties": World(
        lambda u: 0.8 * (np.ceil(u * 20) / 20) ** 3,
        lambda u: 0.8 * np.cumsum(np.arange(1, 21) ** 3)[np.round(u * 20).astype(int) - 1] / 8000 / np.round(u * 20),
        levels=20,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_worlds_are_what_they_say(name: str) -> None:
    world = WORLDS[name]
    middles = (np.arange(200_000) + 0.5) / 200_000
    rates = world.error_rate(middles)
    assert 0 <= rates.min() <= rates.max() <= 1
    for place in (0.05, 0.35, 1.0):
        assert rates[middles < place].mean() == pytest.approx(float(world.risk(np.array(place))), abs=1e-5)


def certified_place(world: World, rng: np.random.Generator, n: int, risk: float, delta: float) -> float:
    """Return the quantile down to which images are accepted, 0 for none."""
    ranking = rank(*world.draw(rng, n))
    accepted = largest_certified_count(ranking, risk, delta)
    if accepted is None:
        return 0.0
    return float(-ranking.confidences[np.searchsorted(ranking.accepted, accepted)])


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(("n", "risk", "delta"), [(1000, 0.05, 0.1), (300, 0.05, 0.2)])
def test_the_guarantee_is_kept(name: str, n: int, risk: float, delta: float) -> None:
    world, rng, draws = WORLDS[name], np.random.default_rng(0), 1000
    places = np.array([certified_place(world, rng, n, risk, delta) for _ in range(draws)])
    accepting = places[places > 0]
    broken = int(np.sum(world.risk(accepting) > risk + 1e-12)) if len(accepting) else 0
    # One test in ten thousand may fail by chance alone.
    assert broken <= binom.ppf(1 - 1e-4, draws, delta)


def test_coverage_comes_near_that_of_an_oracle_and_the_guarantee_is_kept() -> None:
    world, rng, draws, risk, delta = WORLDS["steep"], np.random.default_rng(1), 2000, 0.05, 0.05
    places = np.array([certified_place(world, rng, 5000, risk, delta) for _ in range(draws)])
    assert places.mean() >= 0.9 * world.oracle(risk)
    assert np.mean(places > world.oracle(risk)) <= delta + 4 * np.sqrt(delta * (1 - delta) / draws)


def slow_largest(correct: list[bool], confidence: list[float], risk: float, delta: float) -> int | None:
    """Carry the shares of delta from rank to rank, in so many words."""
    order = sorted(zip(confidence, correct, strict=True), key=lambda one: (-one[0], one[1]))
    starts = starting_ranks(len(order), risk, delta)
    alive, largest = 0.0, None
    for n in range(1, len(order) + 1):
        errors = sum(not right for _, right in order[:n])
        chance = binom.cdf(errors, n, risk)
        passes = alive > 0 and chance <= alive * (1 + 1e-12)
        alive = alive if passes else 0.0
        ends_a_block = n == len(order) or order[n][0] != order[n - 1][0]
        if passes and ends_a_block:
            largest = n
        if n in starts and (passes or chance <= delta / len(starts)):
            alive += delta / len(starts)
    return largest


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 120),
    levels=st.sampled_from([3, 10, 1000]),
    risk=st.sampled_from([0.1, 0.3]),
    delta=st.sampled_from([0.05, 0.4]),
    seed=st.integers(0, 10_000),
)
def test_the_obvious_version_agrees(n: int, levels: int, risk: float, delta: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = np.floor(rng.random(n) * levels)
    correct = rng.random(n) < 0.75 + 0.25 * confidence / levels
    assert largest_certified_count(rank(correct, confidence), risk, delta) == slow_largest(
        correct.tolist(), confidence.tolist(), risk, delta
    )


def test_starts_depend_on_nothing_observed_and_can_pass() -> None:
    for n, risk, delta in [(5000, 0.05, 0.05), (5000, 0.01, 0.001), (100, 0.05, 0.05), (61, 0.05, 0.05)]:
        starts = starting_ranks(n, risk, delta)
        assert starts == sorted(set(starts))
        assert images_without_errors(risk, delta / len(starts)) <= starts[0] < n
    assert starting_ranks(59, 0.05, 0.05) == []


def test_the_fewest_images_without_errors() -> None:
    assert images_without_errors(0.05, 0.05) == 59
    assert (1 - 0.05) ** 59 <= 0.05 < (1 - 0.05) ** 58
    for risk in (0.05, 0.1, 0.3):
        assert [images_without_errors(risk, (1 - risk) ** n) for n in (1, 2, 7, 30)] == [1, 2, 7, 30]
    perfect = rank([True] * 60, np.arange(60.0))
    assert largest_certified_count(perfect, 0.05, 0.05) == 60
