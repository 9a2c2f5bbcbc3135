"""The shift alarm: exact p-values, valid bets, and evidence that does not depend on updates."""

import math
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from scipy.stats import binom

from secondlook.arrays import Float64Array
from secondlook.monitoring import Monitor
from secondlook.monitoring.alarm import POWERS, START_DECAY, START_SPAN, ShiftAlarm, rank_images
from secondlook.policies import Reference
from tests.monitoring.streams import make_policy, make_rows

NAMES = ("confidence", "first_look", "disagreement")
Images = tuple[Float64Array, Float64Array, Float64Array]


def draw_images(n_images: int, seed: int = 0, *, shift: float = 0.0, digits: int = 2) -> Images:
    """Return confidence, first look and disagreement of images, with ties."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(2.0 - shift, 1.0, n_images)
    noise = rng.normal(0.0, 0.5, (3, n_images))
    sure = 1 / (1 + np.exp(-quality - noise))
    return np.round(sure[0], digits), np.round(sure[1], digits), np.round(1 - sure[2], digits)


def draw_reference(n_images: int = 100, seed: int = 99, *, methods: int = 1) -> Reference:
    return Reference.make(*draw_images(n_images, seed), None, methods=methods)


def slow_evidence(reference: Reference, names: tuple[str, ...], images: Images, seed: int) -> list[float]:
    """Compute the evidence from its definition: sums over lists of bins, over densities and over start times."""
    capital = []
    for name in names:
        histogram = getattr(reference, name)
        sign = -1 if name == "disagreement" else 1
        seen = [sign * b for b, count in enumerate(histogram.counts) for _ in range(count)]
        p_values: list[float | None] = []
        for t, value in enumerate(images[NAMES.index(name)]):
            if math.isnan(value):
                p_values.append(None)
                continue
            b = sign * int(np.searchsorted(histogram.edges, value, side="right"))
            uniform = ((int(np.random.PCG64(seed).advance(t).random_raw()) >> 12) + 0.5) / 2**52
            ranked = sum(other < b for other in seen) + uniform * (sum(other == b for other in seen) + 1)
            p_values.append(ranked / (len(seen) + 1))
            seen.append(b)
        capital.append([slow_capital(p_values[: t + 1]) for t in range(len(p_values))])
    return [math.log(max(values) / len(names)) for values in zip(*capital, strict=True)]


def slow_capital(p_values: list[float | None]) -> float:
    """Return the capital after some p-values: a part enters before each p-value, in equal shares per density."""

    def waiting(t: int) -> float:
        return float((1 + t / START_SPAN) ** -START_DECAY)

    total = waiting(len(p_values))
    for start, (power, is_low) in product(range(len(p_values)), product(POWERS, (True, False))):
        ranks = [1 - p if is_low else p for p in p_values[start:] if p is not None]
        entered: float = (waiting(start) - waiting(start + 1)) / (2 * len(POWERS))
        total += entered * math.prod(power * rank ** (power - 1) for rank in ranks)
    return total


@pytest.mark.parametrize("is_adaptive", [False, True])
@pytest.mark.parametrize("shift", [0.0, 2.0, -2.0])
def test_evidence_equals_the_slow_version(is_adaptive: bool, shift: float) -> None:
    reference = draw_reference()
    images = draw_images(40, shift=shift)
    images[2][[3, 4, 20]] = np.nan
    alarm = ShiftAlarm(reference, is_adaptive=is_adaptive, seed=7)
    evidence = alarm.update(*images)
    names = ("first_look",) if is_adaptive else ("confidence", "disagreement")
    np.testing.assert_allclose(evidence, slow_evidence(reference, names, images, 7), rtol=1e-10, atol=1e-12)
    assert (alarm.state.images, alarm.state.evidence) == (40, evidence[-1])


@pytest.mark.parametrize("bins", [(0, 1, 2, 3, 4), (0, 0, 1, 1, 1), (0, 0, 0, 0, 0), (0, 2, 2, 2, 1)])
def test_p_values_of_exchangeable_images_are_uniform_and_independent(bins: tuple[int, ...]) -> None:
    """Over all orders of five images, two of them the reference, and exact quadrature over the tie-breaking numbers."""
    nodes, weights = np.polynomial.legendre.leggauss(4)
    nodes, weights = (nodes + 1) / 2, weights / 2
    powers = list(product(range(4), repeat=3))
    moments = np.zeros(len(powers))
    orders = list(permutations(bins))
    for order in orders:
        for places in product(range(len(nodes)), repeat=3):
            counts = np.bincount(order[:2], minlength=5).astype(np.int64)
            p_values = rank_images(np.array(order[2:]), nodes[list(places)], counts)
            weight = math.prod(weights[place] for place in places) / len(orders)
            moments += weight * np.prod(np.power(p_values, powers), axis=1)
    uniform = [float(math.prod(Fraction(1, power + 1) for power in each)) for each in powers]
    np.testing.assert_allclose(moments, uniform, rtol=1e-12)


@pytest.mark.parametrize("uniform", [2.0**-53, 1 - 2.0**-53])
def test_p_values_are_inside_the_unit_interval(uniform: float) -> None:
    """At 0 and 1 a density can be infinite."""
    for image_bin in (0, 1):
        counts = np.array([10**9, 10**9], dtype=np.int64)
        (p_value,) = rank_images(np.array([image_bin]), np.array([uniform]), counts)
        assert 0 < p_value < 1


def test_false_alarms_are_as_rare_as_stated() -> None:
    """1,000 streams of 300 images; at alpha = 0.2 more than the limit would happen once in a million cases."""
    false_alarms = 0
    for seed in range(1000):
        images = draw_images(400, seed)
        reference = Reference.make(images[0][:100], images[1][:100], images[2][:100], None)
        alarm = ShiftAlarm(reference, is_adaptive=False, alpha=0.2, seed=seed)
        alarm.update(*(values[100:] for values in images))
        false_alarms += alarm.state.raised_at is not None
    assert 0 < false_alarms <= binom.ppf(1 - 1e-6, 1000, 0.2)


@pytest.mark.parametrize("quiet", [0, 20_000])
@pytest.mark.parametrize("shift", [1.5, -2.5])
def test_a_shift_is_found_within_200_images(quiet: int, shift: float) -> None:
    alarm = ShiftAlarm(draw_reference(5000), is_adaptive=False)
    alarm.update(*draw_images(quiet, 1))
    assert alarm.state.raised_at is None
    alarm.update(*draw_images(1000, 2, shift=shift))
    assert alarm.state.raised_at is not None
    assert quiet < alarm.state.raised_at <= quiet + 200


def test_the_alarm_is_raised_where_the_evidence_first_reaches_its_limit() -> None:
    """If the method was chosen from several, they share alpha."""
    images = draw_images(200, shift=3.0)
    for methods in (1, 5):
        alarm = ShiftAlarm(draw_reference(methods=methods), is_adaptive=False, alpha=0.01)
        evidence = alarm.update(*images)
        assert alarm.limit == pytest.approx(math.log(100 * methods))
        raised_at = int(np.argmax(evidence >= alarm.limit)) + 1
        assert alarm.state.raised_at == raised_at > 1
        alarm.update(*images)
        assert alarm.state.raised_at == raised_at


@pytest.mark.parametrize("missing", ["values", "column", "reference"])
def test_without_disagreement_the_confidence_is_tested(missing: str) -> None:
    images = draw_images(100, 1, shift=1.0)
    reference = Reference.make(*draw_images(100, 99)[:2], None, None) if missing == "reference" else draw_reference()
    alarm = ShiftAlarm(reference, is_adaptive=False)
    names = tuple(alarm.state.statistics)
    assert names == (("confidence",) if missing == "reference" else ("confidence", "disagreement"))
    disagreement = {"values": np.full(100, np.nan), "column": None, "reference": images[2]}[missing]
    without = (*images[:2], np.full(100, np.nan))
    np.testing.assert_allclose(alarm.update(*images[:2], disagreement), slow_evidence(reference, names, without, 0))


@pytest.mark.parametrize("window", [7, 100])
@pytest.mark.parametrize("adaptive", [False, True])
def test_windows_of_a_monitor_hold_the_evidence_after_their_last_image(window: int, adaptive: bool) -> None:
    policy = make_policy(adaptive=adaptive)
    rows = [row for row in make_rows(550, damage=0.3) if row["reason"] is None]
    monitor = Monitor(policy, window=window, seed=3)
    status = monitor.update(rows)
    assert policy.reference is not None
    alarm = ShiftAlarm(policy.reference, is_adaptive=adaptive, seed=3)
    evidence = alarm.update(*(np.array([row[name] for row in rows]) for name in NAMES)) / math.log(10)
    windows = monitor.timeline()
    ends = [window.start + window.images - 1 for window in windows]
    assert [window.log10_evidence for window in windows] == pytest.approx(evidence[ends])
    assert (status.shift.raised_at, status.shift.log10_evidence) == (alarm.state.raised_at, evidence[-1])


def test_capital_neither_overflows_nor_vanishes() -> None:
    """A thousand powers of two up, then down again, since images are compared with the stream as well."""
    images = draw_images(30_000, shift=8.0)
    reference = draw_reference(2_000)
    alarm = ShiftAlarm(reference, is_adaptive=True)
    evidence = alarm.update(*(values[:2000] for values in images))
    scale = alarm.state.statistics["first_look"].scale
    assert evidence.max() > 512 * math.log(2)
    evidence = np.concatenate([evidence, alarm.update(*(values[2000:] for values in images))])
    np.testing.assert_allclose(evidence, capital_in_logs(reference, images[1]), rtol=1e-9, atol=1e-6)
    later = alarm.state.statistics["first_look"].scale
    assert any(after < before for before, after in zip(scale, later, strict=True))
    assert max(later) > 1024


def capital_in_logs(reference: Reference, first_look: Float64Array) -> list[float]:
    """Compute the evidence of the first look with the log of the capital on each density."""
    counts = np.array(reference.first_look.counts)
    uniforms = ((np.random.PCG64(0).random_raw(len(first_look)) >> np.uint64(12)) + 0.5) / 2**52
    powers = np.array(POWERS)[:, None]
    log_capital = np.full((len(POWERS), 2), -np.inf)
    evidence = []
    for t, (image_bin, uniform) in enumerate(zip(reference.first_look.find_bins(first_look), uniforms, strict=True)):
        p_value = (counts[:image_bin].sum() + uniform * (counts[image_bin] + 1)) / (counts.sum() + 1)
        counts[image_bin] += 1
        before, after = ((1 + (t + step) / START_SPAN) ** -START_DECAY for step in (0, 1))
        log_capital = np.logaddexp(log_capital, math.log((before - after) / (2 * len(POWERS))))
        log_capital += np.log(powers) + (powers - 1) * np.log([1 - p_value, p_value])
        evidence.append(float(np.logaddexp.reduce(log_capital, axis=None, initial=math.log(after))))
    return evidence
