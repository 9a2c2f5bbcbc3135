"""The fixed-sequence test: its guarantee fails in at most delta of all draws, for every distribution."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.metrics import rank
from secondlook.selective.fixed_sequence import compute_starts, count_without_errors, largest_certified_count


@dataclass(frozen=True)
class Population:
    """A distribution with known risk.

    `error_rate(u)` is that of the image at quantile u, 0 the most confident; `risk(u)` that of all images up to u.
    """

    error_rate: Callable[[Any], Any]
    risk: Callable[[Any], Any]
    levels: int | None = None
    """Number of distinct confidences that the quantiles are rounded to; None without ties."""

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        quantile = rng.random(n)
        wrong = rng.random(n) < self.error_rate(quantile)
        return ~wrong, -quantile if self.levels is None else -np.ceil(quantile * self.levels) / self.levels

    def oracle_coverage(self, risk: float) -> float:
        steps = np.linspace(0, 1, 10_001 if self.levels is None else self.levels + 1)[1:]
        return float(steps[self.risk(steps) <= risk].max(initial=0))


def oscillating(u: Any) -> Any:
    """Risk that crosses 5 % many times."""
    return 0.05 + 0.004 * np.sin(40 * u) * (1 - u)


POPULATIONS = {
    "steep": Population(lambda u: 0.8 * u**3, lambda u: 0.2 * u**3),
    "gentle": Population(lambda u: 0.3 * u**2, lambda u: 0.1 * u**2),
    "confident errors": Population(
        lambda u: np.where(u < 0.02, 0.3, 0.6 * u**3),
        lambda u: (0.3 * np.minimum(u, 0.02) + 0.15 * np.maximum(u**4 - 1.6e-7, 0)) / u,
    ),
    "flat": Population(lambda u: np.full_like(u, 0.0501), lambda u: np.full_like(u, 0.0501)),
    "oscillating": Population(
        lambda u: oscillating(u) + u * 0.004 * (40 * np.cos(40 * u) * (1 - u) - np.sin(40 * u)), oscillating
    ),
    "ties": Population(
        lambda u: 0.8 * (np.ceil(u * 20) / 20) ** 3,
        lambda u: 0.8 * np.cumsum(np.arange(1, 21) ** 3)[np.round(u * 20).astype(int) - 1] / 8000 / np.round(u * 20),
        levels=20,
    ),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_risk_is_the_mean_error_rate(name: str) -> None:
    population = POPULATIONS[name]
    middles = (np.arange(200_000) + 0.5) / 200_000
    rates = population.error_rate(middles)
    assert 0 <= rates.min() <= rates.max() <= 1
    for quantile in (0.05, 0.35, 1.0):
        expected = float(population.risk(np.array(quantile)))
        assert rates[middles < quantile].mean() == pytest.approx(expected, abs=1e-5)


def certified_quantile(population: Population, rng: np.random.Generator, n: int, risk: float, delta: float) -> float:
    """Return the quantile up to which images are accepted, 0 if none are."""
    ranking = rank(*population.draw(rng, n))
    accepted = largest_certified_count(ranking, risk, delta)
    if accepted is None:
        return 0.0
    return float(-ranking.confidences[np.searchsorted(ranking.accepted, accepted)])


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize(("n", "risk", "delta"), [(1000, 0.05, 0.1), (300, 0.05, 0.2)])
def test_guarantee_fails_in_at_most_delta_of_draws(name: str, n: int, risk: float, delta: float) -> None:
    population, rng, draws = POPULATIONS[name], np.random.default_rng(0), 1000
    quantiles = np.array([certified_quantile(population, rng, n, risk, delta) for _ in range(draws)])
    accepted = quantiles[quantiles > 0]
    failures = int(np.sum(population.risk(accepted) > risk + 1e-12)) if len(accepted) else 0
    # By chance alone, one test in ten thousand may fail.
    assert failures <= binom.ppf(1 - 1e-4, draws, delta)


def test_coverage_is_close_to_that_of_an_oracle() -> None:
    population, rng, draws, risk, delta = POPULATIONS["steep"], np.random.default_rng(1), 2000, 0.05, 0.05
    quantiles = np.array([certified_quantile(population, rng, 5000, risk, delta) for _ in range(draws)])
    assert quantiles.mean() >= 0.9 * population.oracle_coverage(risk)
    assert np.mean(quantiles > population.oracle_coverage(risk)) <= delta + 4 * np.sqrt(delta * (1 - delta) / draws)


def reference_largest(correct: list[bool], confidence: list[float], risk: float, delta: float) -> int | None:
    """Test rank by rank, as docs/selective.md describes it."""
    order = sorted(zip(confidence, correct, strict=True), key=lambda one: (-one[0], one[1]))
    starts = compute_starts(len(order), risk, delta)
    level, largest = 0.0, None
    for n in range(1, len(order) + 1):
        errors = sum(not right for _, right in order[:n])
        p_value = binom.cdf(errors, n, risk)
        passes = level > 0 and p_value <= level * (1 + 1e-12)
        level = level if passes else 0.0
        ends_a_block = n == len(order) or order[n][0] != order[n - 1][0]
        if passes and ends_a_block:
            largest = n
        if n in starts and (passes or p_value <= delta / len(starts)):
            level += delta / len(starts)
    return largest


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 120),
    levels=st.sampled_from([3, 10, 1000]),
    risk=st.sampled_from([0.1, 0.3]),
    delta=st.sampled_from([0.05, 0.4]),
    seed=st.integers(0, 10_000),
)
def test_reference_agrees(n: int, levels: int, risk: float, delta: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = np.floor(rng.random(n) * levels)
    correct = rng.random(n) < 0.75 + 0.25 * confidence / levels
    assert largest_certified_count(rank(correct, confidence), risk, delta) == reference_largest(
        correct.tolist(), confidence.tolist(), risk, delta
    )


def test_starts_are_increasing_and_can_pass() -> None:
    for n, risk, delta in [(5000, 0.05, 0.05), (5000, 0.01, 0.001), (100, 0.05, 0.05), (61, 0.05, 0.05)]:
        starts = compute_starts(n, risk, delta)
        assert starts == sorted(set(starts))
        assert count_without_errors(risk, delta / len(starts)) <= starts[0] < n
    assert compute_starts(59, 0.05, 0.05) == []


def test_smallest_number_of_images_without_errors() -> None:
    assert count_without_errors(0.05, 0.05) == 59
    assert (1 - 0.05) ** 59 <= 0.05 < (1 - 0.05) ** 58
    for risk in (0.05, 0.1, 0.3):
        assert [count_without_errors(risk, (1 - risk) ** n) for n in (1, 2, 7, 30)] == [1, 2, 7, 30]
    perfect = rank([True] * 60, np.arange(60.0))
    assert largest_certified_count(perfect, 0.05, 0.05) == 60
