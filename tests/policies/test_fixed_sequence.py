"""The fixed-sequence test: its guarantee fails in at most delta of all draws, for every distribution."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.metrics import rank
from secondlook.policies import certify_confidence, largest_certified_count
from secondlook.policies.fixed_sequence import compute_starts, count_without_errors, estimate_prospect


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
    """Test rank by rank, as docs/policies.md describes it."""
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


def certifies_with_copies(correct: Any, confidence: Any, copies: int, risk: float, delta: float) -> bool:
    """Whether as many images as observed, times `copies`, certify if every error rate stays exactly the same."""
    order = np.argsort(-confidence, kind="stable")
    values = np.repeat(confidence[order], copies)
    if len(np.unique(confidence)) == len(confidence):
        values = -np.arange(len(values), dtype=float)  # images without ties stay without ties
    return largest_certified_count(rank(np.repeat(correct[order], copies), values), risk, delta) is not None


@pytest.mark.parametrize("name", ["steep", "gentle", "confident errors", "ties"])
@pytest.mark.parametrize("n", [20, 60])
def test_needed_images_are_those_that_certify_if_rates_stay_as_observed(name: str, n: int) -> None:
    risk, delta, checked = 0.05, 0.01, 0
    for seed in range(4):
        correct, confidence = POPULATIONS[name].draw(np.random.default_rng(seed), n)
        if largest_certified_count(rank(correct, confidence), risk, delta) is not None:
            continue
        _, additional = estimate_prospect(rank(correct, confidence), risk, delta)
        needed = None if additional is None else n + additional
        tried = (copies for copies in range(2, 120) if certifies_with_copies(correct, confidence, copies, risk, delta))
        copies = next(tried, None)
        if needed is None or needed > 100 * n:
            assert copies is None
            continue
        checked += 1
        assert copies == pytest.approx(needed / n, rel=0.2, abs=1.01)
    assert checked > 0


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60), levels=st.sampled_from([2, 1000]), wrong=st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_no_number_of_images_is_enough_exactly_if_no_start_has_a_lower_error_rate(
    seed: int, n: int, levels: int, wrong: float
) -> None:
    rng, risk = np.random.default_rng(seed), 0.2
    correct, confidence = rng.random(n) >= wrong, np.floor(rng.random(n) * levels)
    _, additional = estimate_prospect(rank(correct, confidence), risk, 0.05)
    # With ever more images, errors at the starts approach their rates, and only these matter.
    rates = []
    for step in range(1, 11):
        accepted = n / np.sqrt(2) ** step
        threshold = np.sort(confidence)[::-1][int(np.ceil(accepted - 1e-9)) - 1]
        above, equal = confidence > threshold, confidence == threshold
        errors, tied = int(np.sum(~correct & above)), int(np.sum(~correct & equal))
        if np.sum(equal) == 1:
            rates.append((errors + tied * (accepted - np.sum(above))) / accepted)
        else:
            rates.append((errors + tied) / max(accepted, np.sum(above) + tied))
    assume(not risk - 0.005 < min(rates) < risk + 1e-9)  # too close to tell, or too many images
    assert (additional is None) == (min(rates) >= risk)


def test_images_without_errors_need_the_closed_form() -> None:
    for n, risk, delta in [(5, 0.1, 0.1), (40, 0.05, 0.05), (3, 0.01, 0.001)]:
        closest, additional = estimate_prospect(rank([True] * n, np.arange(float(n))), risk, delta)
        needed = next(m for m in range(1, 10_000) if (1 - risk) ** m <= delta) + 1
        assert (additional, closest.accepted, closest.errors) == (needed - n, n, 0)


def test_estimated_number_of_images_is_where_certification_becomes_likely() -> None:
    """A set of images with the error rates of the whole population, and draws of the estimated size."""
    population, risk, delta = POPULATIONS["gentle"], 0.01, 0.001
    quantiles = (np.arange(1000) + 0.5) / 1000
    expected = np.cumsum(population.error_rate(quantiles))
    wrong = np.diff(np.round(expected), prepend=0) > 0
    _, additional = estimate_prospect(rank(~wrong, -quantiles), risk, delta)
    assert additional is not None
    needed = 1000 + additional
    assert needed > 3000
    rng = np.random.default_rng(0)

    def certified_share(n: int) -> float:
        draws = [largest_certified_count(rank(*population.draw(rng, n)), risk, delta) for _ in range(60)]
        return float(np.mean([one is not None for one in draws]))

    assert certified_share(needed // 2) < 0.15 < certified_share(needed)
    assert certified_share(2 * needed) > 0.8


def test_usual_delta_that_passes_is_found() -> None:
    def find_delta(risk: float, delta: float) -> float | None:
        shortfall = certify_confidence([True] * 60, np.arange(60.0), risk=risk, delta=delta).shortfall
        assert shortfall is not None
        return shortfall.larger_delta

    assert find_delta(0.05, 0.001) == 0.05
    assert (1 - 0.05) ** 59 > 0.02
    assert find_delta(0.04, 0.06) == 0.1
    assert find_delta(0.01, 0.001) is None
