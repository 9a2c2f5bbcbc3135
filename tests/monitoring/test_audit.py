"""Audits: closed forms, a slow version, rare false verdicts, and labels that are missing or late."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.monitoring.audit import (
    BREAK_SHARES,
    BREAK_STAKES,
    LATER_SHARE,
    MAX_STAKE,
    STAKES_ABOVE,
    STAKES_BELOW,
    START_DECAY,
    START_SPAN,
    AuditedImage,
    AuditVerdict,
    judge_audits,
)
from secondlook.policies import AuditPlan, Reference

RISK = 0.1


def draw_audited(
    n_images: int, error_rate: float, seed: int = 0, *, probabilities: tuple[float, ...] = (0.1,)
) -> list[AuditedImage]:
    """Return the audits of accepted images whose probabilities alternate."""
    rng = np.random.default_rng(seed)
    each = np.resize(probabilities, n_images)
    audited, wrong = rng.random(n_images) < each, rng.random(n_images) < error_rate
    return [AuditedImage(int(i) + 1, float(each[i]), bool(wrong[i])) for i in np.flatnonzero(audited)]


# ---- Slow, plain versions


def weights_of(n_images: int, audited: list[AuditedImage], *, pending: bool) -> list[float]:
    """Return Z of every accepted image: 1 / probability for audited errors, 0 for all others."""
    found = {one.accepted: one for one in audited}
    values = []
    for position in range(1, n_images + 1):
        one = found.get(position)
        is_wrong = one is not None and (pending if one.wrong is None else one.wrong)
        values.append(1 / one.probability if one is not None and is_wrong else 0.0)
    return values


def slow_bound(n_images: int, audited: list[AuditedImage], alpha: float, *, lower: bool) -> float:
    """Return the bound of the risk from a fine grid of values."""
    smallest = min((one.probability for one in audited), default=1.0)
    values = np.array(weights_of(n_images, audited, pending=not lower))
    grid = np.linspace(0, 1, 2001)[1:]
    is_refuted = []
    for risk in grid:
        if lower:
            stakes = [min(stake * smallest, MAX_STAKE / risk) for stake in STAKES_ABOVE]
        else:
            stakes = [-stake * smallest for stake in STAKES_BELOW]
        capital = np.mean([np.prod(1 + stake * (values - risk)) for stake in stakes])
        is_refuted.append(capital >= 2 / alpha)
    if lower:
        return float(grid[is_refuted].max(initial=0.0))
    return float(grid[is_refuted].min(initial=1.0))


def slow_break(n_images: int, audited: list[AuditedImage], risk: float, alpha: float) -> int | None:
    """Return when the guarantee is found broken: image by image, with the capital of each stake and start time."""
    values = weights_of(n_images, audited, pending=False)
    found = {one.accepted: one.probability for one in audited}

    def waiting(audits: int) -> float:
        return float(LATER_SHARE * (1 + audits / START_SPAN) ** -START_DECAY)

    seen: list[float] = []
    capital = [(1 - LATER_SHARE + waiting(0) - waiting(1)) * share for share in BREAK_SHARES]
    for position, value in enumerate(values, start=1):
        mean = sum(seen) / len(seen) if seen else 0.0
        for k, stake in enumerate(BREAK_STAKES):
            capital[k] *= 1 + min(stake * mean, MAX_STAKE / risk) * (value - risk)
        if position not in found:
            continue
        seen.append(found[position])
        if sum(capital) + waiting(len(seen)) >= 1 / alpha:
            return position
        entering = waiting(len(seen)) - waiting(len(seen) + 1)
        capital = [part + entering * share for part, share in zip(capital, BREAK_SHARES, strict=True)]
    return None


@pytest.mark.parametrize("error_rate", [0.0, 0.05, 0.3, 0.6])
@pytest.mark.parametrize("probabilities", [(0.3,), (1.0,), (0.1, 0.5, 0.9)])
def test_verdicts_equal_the_slow_version(error_rate: float, probabilities: tuple[float, ...]) -> None:
    audited = draw_audited(300, error_rate, probabilities=probabilities)
    audited = [one._replace(wrong=None) if i % 10 == 3 else one for i, one in enumerate(audited)]
    verdict = judge_audits(300, audited, risk=RISK)
    assert verdict.broken_at == slow_break(300, audited, RISK, 0.05)
    assert verdict.low == pytest.approx(slow_bound(300, audited, 0.05, lower=True), abs=6e-4)
    assert verdict.high == pytest.approx(slow_bound(300, audited, 0.05, lower=False), abs=6e-4)
    assert verdict.labels + verdict.pending == len(audited)
    assert verdict.path[-1] == (300, verdict.low, verdict.high)


def test_path_has_the_bounds_at_earlier_moments() -> None:
    audited = draw_audited(300, 0.3, probabilities=(0.5,))
    path = judge_audits(300, audited, risk=RISK).path
    assert [moment for moment, _, _ in path] == list(range(10, 301, 10))
    for moment, low, high in path[::7]:
        then = judge_audits(moment, [one for one in audited if one.accepted <= moment], risk=RISK, smallest=0.5)
        assert (low, high) == (then.low, then.high)


def test_a_risk_that_grows_late_is_found() -> None:
    """3,000 audits without an error would weigh against any later one if all capital were bet from the start."""
    audited = [AuditedImage(10 * i, 0.1, i > 3000 and i % 3 == 0) for i in range(1, 3101)]
    verdict = judge_audits(31_000, audited, risk=RISK)
    assert verdict.verdict == "broken"
    assert verdict.broken_at is not None
    assert verdict.broken_at > 30_000
    assert verdict.estimate is not None
    assert verdict.estimate < RISK


# ---- Closed forms


def test_no_errors_have_a_closed_form() -> None:
    """Without errors, the capital on a smaller risk is the mean of (1 + stake * risk) ** accepted."""

    def log_capital(accepted: int, risk: float) -> float:
        return math.log(np.mean([(1 + 0.1 * stake * risk) ** accepted for stake in STAKES_BELOW]))

    audited = [AuditedImage(10 * i, 0.1, False) for i in range(1, 101)]
    decided = next(n for n in range(1, 1001) if log_capital(n, RISK) >= math.log(20))
    for accepted in (decided - 1, decided):
        known = [one for one in audited if one.accepted <= accepted]
        verdict = judge_audits(accepted, known, risk=RISK)
        assert verdict.verdict == ("holds" if accepted == decided else "undecided")
        assert (verdict.estimate, verdict.low, verdict.broken_at) == (0.0, 0.0, None)
        assert log_capital(accepted, verdict.high) == pytest.approx(math.log(40), abs=1e-5)


def test_equal_probabilities_are_a_plain_betting_process() -> None:
    """Of n audits that were all reviewed, x are wrong: only these numbers matter to the bounds."""
    accepted, n, x, probability = 2000, 200, 30, 0.1

    def log_capital(risk: float) -> float:
        stakes = np.minimum(probability * np.array(STAKES_ABOVE), MAX_STAKE / risk)
        return float(np.log(np.mean((1 + stakes * (10 - risk)) ** x * (1 - stakes * risk) ** (accepted - x))))

    audited = [AuditedImage(10 * i, probability, i % 20 < 3) for i in range(1, n + 1)]
    verdict = judge_audits(accepted, audited, risk=RISK)
    assert verdict.estimate == pytest.approx(x / n)
    assert log_capital(verdict.low) == pytest.approx(math.log(40), abs=1e-5)
    other_order = [one._replace(wrong=before.wrong) for one, before in zip(audited, reversed(audited), strict=True)]
    again = judge_audits(accepted, other_order, risk=RISK)
    assert (again.low, again.high) == (verdict.low, verdict.high)


def test_estimate_is_weighted() -> None:
    audited = [AuditedImage(1, 0.5, True), AuditedImage(2, 0.1, False), AuditedImage(3, 0.2, None)]
    assert judge_audits(10, audited, risk=RISK).estimate == pytest.approx(2 / 12)


# ---- Validity

STREAMS = 400
MOST_FALSE = int(binom.ppf(1 - 1e-6, STREAMS, 0.2))
"""False verdicts that would happen once in a million cases if their probability were alpha = 0.2."""


@pytest.mark.parametrize("probabilities", [(0.1,), (0.05, 0.05, 0.05, 0.4)])
def test_false_verdicts_are_as_rare_as_stated(probabilities: tuple[float, ...]) -> None:
    broken = missed = held = 0
    for seed in range(STREAMS):
        audited = draw_audited(2000, RISK, seed, probabilities=probabilities)
        smallest = min(probabilities)
        verdict = judge_audits(2000, audited, risk=RISK, alpha=0.2, smallest=smallest)
        broken += verdict.broken_at is not None
        missed += any(low > RISK or high < RISK for _, low, high in verdict.path)
        held += any(
            judge_audits(
                moment, [one for one in audited if one.accepted <= moment], risk=RISK, alpha=0.2, smallest=smallest
            ).verdict
            == "holds"
            for moment in (500, 1000, 1500)
            if seed < 100
        )
    assert 0 < broken <= MOST_FALSE
    assert 0 < missed <= MOST_FALSE
    assert held <= binom.ppf(1 - 1e-6, 100, 0.2)


def test_errors_that_weights_find_rarely_count_more() -> None:
    """Errors where audits are improbable are as many as elsewhere, once they are weighted."""
    audited = draw_audited(20_000, 0.2, probabilities=(0.02, 0.2))
    verdict = judge_audits(20_000, audited, risk=RISK)
    assert verdict.verdict == "broken"
    assert verdict.low < 0.2 < verdict.high
    assert verdict.estimate == pytest.approx(0.2, abs=0.04)


# ---- Labels that are missing or late

labels = st.lists(st.tuples(st.integers(1, 20), st.sampled_from([0.1, 0.3, 1.0]), st.booleans()), max_size=60)


def list_audited(drawn: list[tuple[int, float, bool]], reviewed: set[int]) -> tuple[int, list[AuditedImage]]:
    positions = np.cumsum([gap for gap, _, _ in drawn], dtype=int).tolist()
    audited = [
        AuditedImage(position, probability, wrong if place in reviewed else None)
        for place, (position, (_, probability, wrong)) in enumerate(zip(positions, drawn, strict=True))
    ]
    return sum(gap for gap, _, _ in drawn) + 5, audited


@given(drawn=labels, data=st.data())
@settings(max_examples=40, deadline=None)
def test_missing_labels_never_make_a_verdict_bolder(drawn: list[tuple[int, float, bool]], data: st.DataObject) -> None:
    places = st.sets(st.integers(0, max(len(drawn) - 1, 0)))
    accepted, audited = list_audited(drawn, data.draw(places))
    _, complete = list_audited(drawn, set(range(len(drawn))))
    some, every = (judge_audits(accepted, each, risk=RISK, smallest=0.1) for each in (audited, complete))
    assert some.low <= every.low
    assert some.high >= every.high
    assert every.broken_at is not None or some.broken_at is None
    assert some.broken_at is None or every.broken_at is None or every.broken_at <= some.broken_at
    assert every.verdict in {"holds", "broken"} or some.verdict != "holds"


def test_without_labels_nothing_is_decided() -> None:
    pending = [AuditedImage(i, 0.1, None) for i in range(1, 200)]
    for accepted, audited in ((0, []), (5000, []), (5000, pending)):
        verdict = judge_audits(accepted, audited, risk=RISK)
        assert (verdict.verdict, verdict.estimate, verdict.more_labels) == ("undecided", None, None)
        assert (verdict.labels, verdict.pending) == (0, len(audited))
        assert (verdict.low, verdict.high, verdict.path) == (0.0, 1.0, ())


def test_a_guarantee_does_not_hold_by_missing_labels() -> None:
    audited = [AuditedImage(10 * i, 0.1, False) for i in range(1, 101)]
    pending = [one._replace(wrong=None) for one in audited[1:]]
    assert judge_audits(1000, audited, risk=RISK).verdict == "holds"
    assert judge_audits(1000, [audited[0], *pending], risk=RISK).verdict == "undecided"


# ---- How many labels are still needed


@pytest.mark.parametrize("every", [3, 5, 0])
def test_predicted_number_of_labels_is_about_right(every: int) -> None:
    """Errors come at regular intervals, so that they continue as before."""
    audited = [AuditedImage(10 * i, 0.1, every > 0 and i % every == 0) for i in range(1, 2001)]

    def judge(n: int) -> AuditVerdict:
        return judge_audits(10 * n, audited[:n], risk=RISK)

    decided = next(n for n in range(1, 2001) if judge(n).verdict != "undecided")
    assert judge(decided).more_labels is None
    half = judge(decided // 2)
    assert half.more_labels is not None
    assert decided / 4 <= half.more_labels <= decided


def test_a_rate_at_the_risk_is_never_decided() -> None:
    audited = [AuditedImage(10 * i, 0.1, i % 10 == 0) for i in range(1, 1001)]
    verdict = judge_audits(10_000, audited, risk=RISK)
    assert (verdict.verdict, verdict.more_labels) == ("undecided", None)


# ---- Input


def test_designed_audits_need_fewer_labels_than_even_ones() -> None:
    """An error rate that doubles from 5 %, with errors where confidence is low."""
    rng = np.random.default_rng(0)

    def draw(n_images: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
        confidence = rng.random(n_images)
        return confidence, rng.random(n_images) < factor * 0.45 * (1 - confidence) ** 8

    confidence, wrong = draw(5000, 1.0)
    reference = Reference.make(confidence, confidence, None, wrong)
    mean_labels = []
    for plan in (AuditPlan(reference, 0.0, 0.02), AuditPlan(None, 0.0, 0.02)):
        needed = []
        for _ in range(40):
            confidence, wrong = draw(50_000, 2.0)
            probability = plan.probabilities(confidence)
            places = np.flatnonzero(rng.random(len(probability)) < probability)
            audited = [AuditedImage(int(i) + 1, float(probability[i]), bool(wrong[i])) for i in places]
            broken_at = judge_audits(50_000, audited, risk=0.05).broken_at or 50_000
            needed.append(int(np.searchsorted(places, broken_at)))
        mean_labels.append(np.mean(needed))
    assert mean_labels[0] < 0.8 * mean_labels[1]


@given(drawn=labels, order=st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_the_order_in_which_labels_arrive_does_not_matter(drawn: list[tuple[int, float, bool]], order: object) -> None:
    """A break that was found with some labels is found with all, and the last verdict is that of all labels."""
    arriving = list(range(len(drawn)))
    order.shuffle(arriving)  # type: ignore[attr-defined]
    accepted, complete = list_audited(drawn, set(arriving))
    expected = judge_audits(accepted, complete, risk=RISK, smallest=0.1)
    verdicts: list[AuditVerdict] = []
    for n in range(0, len(arriving) + 1, 10):
        _, audited = list_audited(drawn, set(arriving[:n]))
        verdicts.append(judge_audits(accepted, audited, risk=RISK, smallest=0.1))
    _, audited = list_audited(drawn, set(arriving))
    assert judge_audits(accepted, audited, risk=RISK, smallest=0.1) == expected
    assert expected.verdict == "broken" or all(verdict.verdict != "broken" for verdict in verdicts)
