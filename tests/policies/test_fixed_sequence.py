"""The fixed-sequence test, of all images and of groups jointly: it fails in at most delta of draws, for every world."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.metrics import rank
from secondlook.policies import Calibration, CountedImages, certify_confidence, largest_certified_count
from secondlook.policies.fixed_sequence import FixedSequence, compute_starts, find_joint_counts
from tests.policies.conftest import known


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


def reference_run(correct: list[bool], values: list[float], risk: float, starts: list[int], level: float) -> Any:
    """Test rank by rank, as docs/background/proofs.md describes it.

    Return the certified ranks, and the number of starts whose shares arrive at the last rank.
    """
    order = sorted(range(len(values)), key=lambda image: (-values[image], correct[image]))
    held: list[int] = []
    certified, errors = [], 0
    for rank_, image in enumerate(order, start=1):
        errors += not correct[image]
        p_value = binom.cdf(errors, rank_, risk)
        if held:
            if p_value <= len(held) * level / len(starts) * (1 + 1e-12):
                if rank_ == len(order) or values[order[rank_]] < values[image]:
                    certified.append(rank_)
            else:
                held = []
        if rank_ in starts and (held or p_value <= level / len(starts) * (1 + 1e-12)):
            held += [rank_] * starts.count(rank_)
    return certified, len(held)


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
    starts = compute_starts(n, risk, delta)
    certified, _ = reference_run(correct.tolist(), confidence.tolist(), risk, starts, delta)
    assert largest_certified_count(rank(correct, confidence), risk, delta) == max(certified, default=None)


@pytest.mark.parametrize(
    ("n", "risk", "delta"),
    [(5000, 0.05, 0.05), (5000, 0.01, 0.001), (100, 0.05, 0.05), (61, 0.05, 0.05), (700, 0.3, 0.4)],
)
def test_starts_are_the_smallest_ranks_that_pass_with_as_many_errors_as_at_fixed_fractions(
    n: int, risk: float, delta: float
) -> None:
    starts = compute_starts(n, risk, delta)
    assert starts == sorted(starts)
    assert starts[-1] < n
    level = delta / len(starts)
    for start, power in zip(starts, range(len(starts), 0, -1), strict=True):
        fraction = int(n / np.sqrt(2) ** power)
        most = max((k for k in range(n) if binom.cdf(k, fraction, risk) <= level), default=0)
        assert binom.cdf(most, start, risk) <= level * (1 + 1e-12) < binom.cdf(most, start - 1, risk)


def test_more_labels_of_less_confident_images_do_not_certify_less() -> None:
    """An error at a rank that a later start would have had to pass."""
    for n in (420, 600):
        correct = np.arange(n) != 340
        assert largest_certified_count(rank(correct, -np.arange(float(n))), 0.021, 0.001) == 340


# ------------------------------------------------------------------------------------------------------------- copies


def draw_with_copies(rng: np.random.Generator, n: int, share: float, rate: float) -> tuple[Any, Any, Any]:
    """Draw images of which a share is one frame at a random place; return correct, confidence, and later copies of it.

    Other images are wrong at a rate that rises from 0 to twice `rate`.
    """
    quantile, is_frame = rng.random(n), rng.random(n) < share
    wrong = np.where(is_frame, True, rng.random(n) < 2 * rate * quantile)
    return ~wrong, np.where(is_frame, 0.0, -quantile), is_frame & (np.cumsum(is_frame) > 1)


def test_copies_that_occur_as_often_later_count_each_time_they_are_wrong() -> None:
    """A tenth of all images is one blank frame, wrong with the largest confidence."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        correct, confidence, is_copy = draw_with_copies(rng, 2000, 0.1, 0.02)
        policy = certify_confidence(correct, confidence, risk=0.05, delta=0.1, is_copy=is_copy)
        assert not policy.certified
        assert largest_certified_count(rank(correct[~is_copy], confidence[~is_copy]), 0.05, 0.1), "counted once"


@settings(deadline=None, max_examples=150)
@given(
    n=st.integers(20, 150),
    levels=st.sampled_from([8, 1000]),
    copied=st.floats(0, 0.6),
    risk=st.sampled_from([0.1, 0.3, 0.9]),
    seed=st.integers(0, 10_000),
)
def test_copies_certify_nothing_that_either_reading_would_not(
    n: int, levels: int, copied: float, risk: float, seed: int
) -> None:
    """Whether all images are draws, or the distinct ones alone, each with the starts for all images."""
    rng, delta = np.random.default_rng(seed), 0.3
    confidence = np.floor(rng.random(n) * levels)
    correct = rng.random(n) < 1 - risk + 0.9 * risk * confidence / levels
    is_copy = rng.random(n) < copied
    counted = CountedImages.count(correct, confidence, is_copy)
    count = largest_certified_count(counted, risk, delta)
    if count is None:
        return
    threshold = -np.sort(-confidence[~(is_copy & correct)])[count - 1]
    starts = compute_starts(n, risk, delta)
    for draws in (np.ones(n, dtype=bool), ~is_copy):
        certified, _ = reference_run(correct[draws].tolist(), confidence[draws].tolist(), risk, starts, delta)
        assert np.sum(confidence[draws] >= threshold) in certified


def test_rank_after_the_start_by_copies_alone_is_not_certified() -> None:
    """If copies are not draws, there is one image, which opens the sequence."""
    is_copy = np.array([False, True, True])
    counted = CountedImages.count([True, False, True], [0.9, 0.8, 0.7], is_copy)
    assert compute_starts(3, 0.9, 0.3) == [1, 1]
    assert binom.cdf(1, 2, 0.9) < 0.3
    assert largest_certified_count(counted, 0.9, 0.3) is None
    assert largest_certified_count(CountedImages.count([True, False, True], [0.9, 0.8, 0.7]), 0.9, 0.3) == 3


def test_images_that_are_all_correct_copies_certify_nothing() -> None:
    everything = np.ones(500, dtype=bool)
    counted = CountedImages.count(everything, np.arange(500.0), everything)
    assert largest_certified_count(counted, 0.05, 0.05) is None
    assert counted.n_images == 500


@pytest.mark.parametrize(
    ("risk", "delta", "smallest"),
    [(0.05, 0.05, 59), *((risk, (1 - risk) ** n, n) for risk in (0.05, 0.1, 0.3) for n in (1, 2, 7, 30))],
)
def test_smallest_number_of_images_without_errors_opens_the_sequence(risk: float, delta: float, smallest: int) -> None:
    """Also if delta is exactly (1 - risk)^n; the next rank is certified."""
    assert (1 - risk) ** smallest <= delta < (1 - risk) ** (smallest - 1)
    assert largest_certified_count(rank([True] * smallest, np.arange(float(smallest))), risk, delta) is None
    perfect = rank([True] * (smallest + 1), np.arange(smallest + 1.0))
    assert largest_certified_count(perfect, risk, delta) == smallest + 1


def estimate_prospect(correct: Any, confidence: Any, risk: float, delta: float) -> tuple[Calibration, int | None]:
    """Return which observed threshold comes closest to a guarantee, and how many images more would give it."""
    shortfall = known(certify_confidence(correct, confidence, risk=risk, delta=delta).shortfall)
    return known(shortfall.closest), shortfall.additional_images


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
        _, additional = estimate_prospect(correct, confidence, risk, delta)
        needed = None if additional is None else n + additional
        tried = (copies for copies in range(2, 120) if certifies_with_copies(correct, confidence, copies, risk, delta))
        copies = next(tried, None)
        if needed is None or needed > 100 * n:
            assert copies is None
            continue
        checked += 1
        # They pass at the fixed fractions, and fewer of them at the smaller ranks that are tested.
        assert 0.6 * needed / n - 1.01 <= known(copies) <= 1.2 * needed / n + 1.01
    assert checked > 0


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60), levels=st.sampled_from([2, 1000]), wrong=st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_no_number_of_images_is_enough_exactly_if_no_start_has_a_lower_error_rate(
    seed: int, n: int, levels: int, wrong: float
) -> None:
    rng, risk = np.random.default_rng(seed), 0.2
    correct, confidence = rng.random(n) >= wrong, np.floor(rng.random(n) * levels)
    # So small a delta that nothing is certified.
    _, additional = estimate_prospect(correct, confidence, risk, 1e-9)
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
        closest, additional = estimate_prospect([True] * n, np.arange(float(n)), risk, delta)
        needed = next(m for m in range(1, 10_000) if (1 - risk) ** m <= delta) + 1
        assert (additional, closest.accepted, closest.errors) == (needed - n, n, 0)


def test_estimated_number_of_images_is_where_certification_becomes_likely() -> None:
    """A set of images with the error rates of the whole population, and draws of the estimated size."""
    population, risk, delta = POPULATIONS["gentle"], 0.01, 0.001
    quantiles = (np.arange(1000) + 0.5) / 1000
    expected = np.cumsum(population.error_rate(quantiles))
    wrong = np.diff(np.round(expected), prepend=0) > 0
    needed = 1000 + known(estimate_prospect(~wrong, -quantiles, risk, delta)[1])
    assert needed > 3000
    rng = np.random.default_rng(0)

    def certified_share(n: int) -> float:
        draws = [largest_certified_count(rank(*population.draw(rng, n)), risk, delta) for _ in range(60)]
        return float(np.mean([one is not None for one in draws]))

    assert certified_share(needed // 2) < 0.15 < certified_share(needed)
    assert certified_share(2 * needed) > 0.8


@pytest.mark.parametrize(("risk", "delta", "larger"), [(0.05, 0.001, 0.05), (0.04, 0.06, 0.1), (0.01, 0.001, None)])
def test_usual_delta_that_passes_is_found(risk: float, delta: float, larger: float | None) -> None:
    assert (1 - 0.05) ** 59 > 0.02
    shortfall = certify_confidence([True] * 60, np.arange(60.0), risk=risk, delta=delta).shortfall
    assert known(shortfall).larger_delta == larger


# ------------------------------------------------------------------------------------------------------ groups jointly

RISK, DELTA = 0.05, 0.2


def reference_joint(groups: list[tuple[list[bool], list[float], float]], delta: float) -> list[int | None]:
    """Follow the procedure step by step, over groups of the given order."""
    best: set[int] = set()
    for size in range(len(groups), 0, -1):
        can_pass = {
            i for i, (correct, _, risk) in enumerate(groups) if (1 - risk) ** (len(correct) - 1) <= delta / size
        }
        if len(can_pass) >= size:
            # As many as possible, those that need the smallest level first; equal ones only together.
            needs = sorted((1 - groups[i][2]) ** (len(groups[i][0]) - 1) for i in can_pass)
            best = {i for i in can_pass if (1 - groups[i][2]) ** (len(groups[i][0]) - 1) <= needs[size - 1]}
            if len(best) == size:
                break
            best = set()
    level = delta / max(len(best), 1)
    starts = {i: compute_starts(len(groups[i][0]), groups[i][2], delta / len(best)) for i in best}
    while True:
        runs = {i: reference_run(*groups[i], starts[i], level) for i in best}
        needed = sum(1 - held / len(starts[i]) for i, (_, held) in runs.items())
        if needed <= 1e-12 or delta / needed <= level * (1 + 1e-12):
            return [max(runs[i][0], default=None) if i in best else None for i in range(len(groups))]
        level = delta / needed


@st.composite
def drawn_groups(draw: Callable[..., Any]) -> list[tuple[list[bool], list[float], float]]:
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        n, risk = draw(st.integers(2, 150)), draw(st.sampled_from([0.05, 0.1, 0.3]))
        rng, rate = np.random.default_rng(draw(st.integers(0, 10**6))), draw(st.sampled_from([0.0, 0.03, 0.1, 0.5]))
        levels = draw(st.sampled_from([4, 1000]))
        quantile = np.ceil(rng.random(n) * levels) / levels
        groups.append(((rng.random(n) >= rate * quantile).tolist(), (-quantile).tolist(), risk))
    return groups


@settings(max_examples=150, deadline=None)
@given(drawn_groups(), st.sampled_from([0.01, 0.1, 0.3]), st.randoms(use_true_random=False))
def test_reference_agrees_in_any_order_of_groups(groups: Any, delta: float, random: Any) -> None:
    counts = find_joint_counts([CountedImages.count(*group[:2]) for group in groups], [g[2] for g in groups], delta)
    assert counts == reference_joint(groups, delta)
    order = list(range(len(groups)))
    random.shuffle(order)
    shuffled = [groups[place] for place in order]
    again = find_joint_counts([CountedImages.count(*one[:2]) for one in shuffled], [one[2] for one in shuffled], delta)
    assert again == [counts[place] for place in order]


def test_one_group_is_certified_like_all_images() -> None:
    rng = np.random.default_rng(0)
    images = CountedImages.count(rng.random(700) >= 0.1 * np.linspace(0, 1, 700), -np.arange(700.0))
    assert find_joint_counts([images], [RISK], 0.01) == [largest_certified_count(images, RISK, 0.01)]


def draw_group(rng: np.random.Generator, error_rate: Callable[[Any], Any], n: int) -> CountedImages:
    quantile = rng.random(n)
    return CountedImages.count(rng.random(n) >= error_rate(quantile), -quantile)


def is_bad(error_rate: Callable[[Any], Any], quantile: float) -> bool:
    """Whether the error rate of all images up to a quantile exceeds the risk."""
    return float(np.mean(error_rate(np.linspace(0, quantile, 20_001)))) > RISK + 1e-6


def rise_steeply(quantile: Any) -> Any:
    """Return error rates whose mean up to a quantile is 0.08 u^6, which exceeds the risk at the end."""
    return 0.56 * quantile**6


def never_err(quantile: Any) -> Any:
    return 0 * quantile


WORLDS: dict[str, list[Callable[[Any], Any]]] = {
    "one hard": [never_err, never_err, rise_steeply],
    "all hard": [rise_steeply] * 3,
    "flat": [lambda u: np.full_like(u, 0.0503)] * 3,
    "good after a bad beginning": [lambda u: np.where(u < 0.3, 0.09, 0.0), never_err, rise_steeply],
    "bad in the middle": [lambda u: np.where((u > 0.3) & (u < 0.6), 0.12, 0.01), lambda u: 0.01 + 0 * u, rise_steeply],
}


@pytest.mark.parametrize("name", WORLDS)
def test_joint_guarantee_fails_in_at_most_delta_of_draws(name: str) -> None:
    world, rng, draws = WORLDS[name], np.random.default_rng(1), 800
    failures = 0
    for _ in range(draws):
        groups = [draw_group(rng, error_rate, 400) for error_rate in world]
        counts = find_joint_counts(groups, [RISK] * len(world), DELTA)
        failures += any(
            count is not None and is_bad(error_rate, -float(images.ranking.confidences[count - 1]))
            for error_rate, images, count in zip(world, groups, counts, strict=True)
        )
    # By chance alone, one test in ten thousand may fail.
    assert failures <= binom.ppf(1 - 1e-4, draws, DELTA)
    if name == "one hard":
        assert failures > 0.5 * DELTA * draws, "the level of the easy groups is used, not lost"


def test_whole_delta_for_each_group_would_break_the_guarantee() -> None:
    """So the simulation above can tell a procedure that is wrong."""
    rng, draws = np.random.default_rng(1), 300
    broken = sum(
        any(largest_certified_count(draw_group(rng, rise_steeply, 400), RISK, DELTA) for _ in range(3))
        for _ in range(draws)
    )
    assert broken > binom.ppf(1 - 1e-4, draws, DELTA)


def test_groups_without_errors_leave_the_whole_delta_to_the_others() -> None:
    rng = np.random.default_rng(4)
    easy = CountedImages.count(np.ones(400, dtype=bool), rng.random(400))
    gains = []
    for _ in range(30):
        hard = draw_group(rng, lambda u: 0.1 * u**2, 2000)
        *_, joint = find_joint_counts([easy] * 9 + [hard], [RISK] * 10, 0.01)
        assert joint == FixedSequence.plan(hard, RISK, 0.01 / 10).run(0.01)[0]
        gains.append(known(joint) - known(largest_certified_count(hard, RISK, 0.01 / 10)))
    assert min(gains) >= 0
    assert np.mean(gains) > 10


def test_group_that_is_too_small_takes_nothing_from_the_others() -> None:
    rng = np.random.default_rng(2)
    groups: list[CountedImages | None] = [draw_group(rng, lambda u: 0.1 * u**2, 1500) for _ in range(2)]
    tiny = CountedImages.count(np.ones(40, dtype=bool), np.arange(40.0))
    alone = find_joint_counts(groups, [RISK] * 2, 0.01)
    assert find_joint_counts([tiny, None, *groups], [RISK] * 4, 0.01) == [None, None, *alone]


@settings(max_examples=100, deadline=None)
@given(drawn_groups(), st.sampled_from([0.01, 0.1]), st.floats(1, 3))
def test_larger_level_never_certifies_less(groups: Any, delta: float, factor: float) -> None:
    """The proof needs it."""
    for correct, values, risk in groups:
        sequence = FixedSequence.plan(CountedImages.count(correct, values), risk, delta)
        small, large = sequence.run(delta), sequence.run(delta * factor)
        assert (large[0] or 0) >= (small[0] or 0)
        assert large[1] >= small[1]
