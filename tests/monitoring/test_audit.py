"""Audits: a slow version, rare false verdicts, and labels that are missing, late or wrong."""

import contextlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError, MonitoringError
from secondlook.monitoring import Monitor, recertify
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
    LabelErrors,
    judge_audits,
)
from secondlook.policies import AuditPlan, Reference
from secondlook.report import write_monitor_page
from tests.monitoring.streams import make_policy, make_rows, make_table, review

RISK = 0.1


def draw_audited(
    n_images: int, error_rate: float, seed: int = 0, *, probabilities: tuple[float, ...] = (0.1,)
) -> list[AuditedImage]:
    """Return the audits of accepted images whose probabilities alternate."""
    rng = np.random.default_rng(seed)
    each = np.resize(probabilities, n_images)
    places, wrong = np.flatnonzero(rng.random(n_images) < each), rng.random(n_images) < error_rate
    return make_audited(places + 1, each[places], wrong[places])


def make_audited(positions: IntArray, probabilities: Float64Array, wrong: BoolArray) -> list[AuditedImage]:
    return list(map(AuditedImage, positions.tolist(), probabilities.tolist(), wrong.tolist()))


# ---- Slow, plain versions


def weights_of(n_images: int, audited: list[AuditedImage], *, pending: bool) -> list[float]:
    """Return Z of every accepted image: 1 / probability for audited errors, 0 for all others."""
    wrong = {one.accepted: 1 / one.probability for one in audited if (pending if one.wrong is None else one.wrong)}
    return [wrong.get(position, 0.0) for position in range(1, n_images + 1)]


def slow_capital(n_images: int, audited: list[AuditedImage], risk: float, *, above: bool) -> float:
    """Return the log of the capital of bets that the risk is above `risk`, or below."""
    smallest = min(one.probability for one in audited)
    values = np.array(weights_of(n_images, audited, pending=not above))
    stakes = [min(stake * smallest, MAX_STAKE / risk) for stake in STAKES_ABOVE]
    if not above:
        stakes = [-stake * smallest for stake in STAKES_BELOW]
    log_capital = [np.sum(np.log1p(stake * (values - risk))) for stake in stakes]
    return float(np.logaddexp.reduce(log_capital)) - math.log(len(stakes))


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


@pytest.mark.parametrize("error_rate", [0.0, 0.05, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("probabilities", [(0.1,), (0.3,), (1.0,), (0.1, 0.5, 0.9)])
@pytest.mark.parametrize(("n_images", "pending"), [(300, 10), (1500, 10), (1500, 10**6), (1500, 2)])
def test_verdicts_equal_the_slow_version(
    error_rate: float, probabilities: tuple[float, ...], n_images: int, pending: int
) -> None:
    """One in `pending` audits is not reviewed."""
    audited = draw_audited(n_images, error_rate, probabilities=probabilities)
    audited = [one._replace(wrong=None) if i % pending == pending - 1 else one for i, one in enumerate(audited)]
    verdict = judge_audits(n_images, audited, risk=RISK, smallest=min(one.probability for one in audited))
    broken_at = slow_break(n_images, audited, RISK, 0.05)
    holds = slow_capital(n_images, audited, RISK, above=False) >= math.log(20)
    expected = "undecided" if broken_at is None else "broken"
    assert (verdict.verdict, verdict.broken_at) == ("holds" if holds and broken_at is None else expected, broken_at)
    # The capital grows with the distance from the bounds, where it reaches 2 / alpha.
    for bound, trivial, above in ((verdict.low, 0.0, True), (verdict.high, 1.0, False)):
        log_capital = slow_capital(n_images, audited, max(bound, 1e-9), above=above)
        assert log_capital < math.log(40) if bound == trivial else log_capital == pytest.approx(math.log(40), abs=1e-5)
    reviewed = [one for one in audited if one.wrong is not None]
    wrong, weights = [bool(one.wrong) for one in reviewed], [1 / one.probability for one in reviewed]
    assert verdict.estimate == pytest.approx(np.dot(wrong, weights) / sum(weights))
    assert (verdict.labels, verdict.pending) == (len(reviewed), len(audited) - len(reviewed))
    assert verdict.path[-1] == (n_images, verdict.low, verdict.high)


def test_path_has_the_bounds_at_earlier_moments() -> None:
    audited = draw_audited(300, 0.3, probabilities=(0.5,))
    path = judge_audits(300, audited, risk=RISK, smallest=0.5).path
    assert [moment for moment, _, _ in path] == list(range(10, 301, 10))
    for moment, low, high in path[::7]:
        then = judge_audits(moment, [one for one in audited if one.accepted <= moment], risk=RISK, smallest=0.5)
        assert (low, high) == (then.low, then.high)


def test_a_risk_that_grows_late_is_found() -> None:
    """3,000 audits without an error would weigh against any later one if all capital were bet from the start."""
    audited = [AuditedImage(10 * i, 0.1, i > 3000 and i % 3 == 0) for i in range(1, 3101)]
    verdict = judge_audits(31_000, audited, risk=RISK, smallest=0.1)
    assert verdict.verdict == "broken"
    assert verdict.broken_at is not None
    assert verdict.broken_at > 30_000
    assert verdict.estimate is not None
    assert verdict.estimate < RISK


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


def test_errors_where_audits_are_rare_do_not_hold() -> None:
    """All errors, 1.5 times the risk, are among rarely drawn images, so the drawn ones do not show them."""
    rng, verdicts = np.random.default_rng(0), []
    for _ in range(100):
        is_rare = rng.random(1000) < 1.5 * RISK
        probability = np.where(is_rare, 0.001, 0.2)
        places = np.flatnonzero(rng.random(1000) < probability)
        audited = [AuditedImage(int(i) + 1, float(probability[i]), bool(is_rare[i])) for i in places]
        least = min(one.probability for one in audited)
        verdicts.append([judge_audits(1000, audited, risk=RISK, smallest=one).verdict for one in (0.001, least)])
    designed, observed = ([one == "holds" for one in each] for each in zip(*verdicts, strict=True))
    assert sum(designed) <= binom.ppf(1 - 1e-6, 100, 0.05)
    assert sum(observed) > 50, "so the smallest probability must be that of the design"


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
        verdict = judge_audits(accepted, audited, risk=RISK, smallest=0.1)
        assert (verdict.verdict, verdict.estimate, verdict.more_labels) == ("undecided", None, None)
        assert (verdict.labels, verdict.pending) == (0, len(audited))
        assert (verdict.low, verdict.high, verdict.path) == (0.0, 1.0, ())


# ---- How many labels are still needed


@pytest.mark.parametrize("every", [3, 5, 10, 0])
def test_predicted_number_of_labels_is_about_right(every: int) -> None:
    """Errors come at regular intervals, so their rate stays the same; at the rate of the risk nothing is decided."""
    audited = [AuditedImage(10 * i, 0.1, every > 0 and i % every == 0) for i in range(1, 2001)]

    def judge(n: int) -> AuditVerdict:
        return judge_audits(10 * n, audited[:n], risk=RISK, smallest=0.1)

    if every == 10:
        assert (judge(1000).verdict, judge(1000).more_labels) == ("undecided", None)
        return
    decided = next(n for n in range(1, 2001) if judge(n).verdict != "undecided")
    assert judge(decided).more_labels is None
    half = judge(decided // 2)
    assert half.more_labels is not None
    assert decided / 4 <= half.more_labels <= decided


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
            broken_at = judge_audits(50_000, audited, risk=0.05, smallest=plan.smallest).broken_at or 50_000
            needed.append(int(np.searchsorted(places, broken_at)))
        mean_labels.append(np.mean(needed))
    assert mean_labels[0] < 0.8 * mean_labels[1]


# ---- The audits of a monitor


@pytest.mark.parametrize(("error_rate", "verdict"), [(0.0, "holds"), (0.3, "broken")])
def test_reviewed_audits_decide(error_rate: float, verdict: str) -> None:
    """Half of the rows have the rate of an audit plan, which may have smaller probabilities than all rows."""
    policy = make_policy()
    monitor, plan = Monitor(policy), AuditPlan(policy.reference, policy.threshold, 0.1)
    before = monitor.update(make_rows(3000, audit=0.2))
    assert before.audit is not None
    assert before.audit.verdict == "undecided"
    assert monitor.audit_path() == [], "nothing is known without labels"
    smallest, status = 0.2, before
    for is_planned in (False, True):
        if is_planned:
            smallest = plan.smallest
            monitor.update(make_table(make_rows(3000, first=3000, audit=0.2), policy, audit=0.1))
        labels = review(monitor, error_rate)
        monitor.remove_labels(labels)
        assert monitor.add_labels(labels) == len(labels)
        status = monitor.status()
        audited = [AuditedImage(one.accepted, one.probability, one.wrong) for one in monitor.audited]
        assert status.audit == judge_audits(status.auditable, audited, risk=0.05, smallest=smallest)
    assert plan.smallest < 0.1
    assert status.audit is not None
    assert status.audit.verdict == verdict
    assert status.alarm == (verdict == "broken")


# ---- Reviewers who err: bounds against all outcomes

PREDICTED, UNCLEAR = "predicted", "cannot tell"
LABELS = (PREDICTED, "other", "third", UNCLEAR)


def find_label(labels: tuple[str, ...], agreeing: int, *, is_double: bool) -> str | None:
    """Return the label in force of an audit; None as long as another reviewer is asked."""
    if len(labels) == 1 and not is_double and (agreeing == 1 or labels[0] in (PREDICTED, UNCLEAR)):
        return labels[0]
    needed = max(2, agreeing)
    for label, count in Counter(labels).items():
        if count >= (needed if label not in (PREDICTED, UNCLEAR) else 2):
            return label
    return UNCLEAR if len(labels) > needed else None


def find_worst(
    truth: str, bad: tuple[str, ...], agreeing: int, error: float, *, is_double: bool, labels: tuple[str, ...] = ()
) -> float:
    """Return the largest probability of a bad label in force, over all strategies of reviewers who may err."""
    found = find_label(labels, agreeing, is_double=is_double) if labels else None
    if found is not None:
        return float(found in bad)
    after = {
        label: find_worst(truth, bad, agreeing, error, is_double=is_double, labels=(*labels, label)) for label in LABELS
    }
    # A correct reviewer may also be unable to tell.
    honest = max(after[truth], after[UNCLEAR])
    return (1 - error) * honest + error * max(after.values())


@pytest.mark.parametrize("agreeing", [1, 2, 3])
@pytest.mark.parametrize("error", [0.0, 0.03, 0.2, 0.49])
def test_bounds_are_the_worst_of_all_outcomes(agreeing: int, error: float) -> None:
    bounds, wrong = LabelErrors.bound(error, agreeing), ("other", "third")
    false, missed = (
        [find_worst(truth, bad, agreeing, error, is_double=double) for double in (False, True)]
        for truth, bad in ((PREDICTED, wrong), ("other", (PREDICTED,)))
    )
    assert max(false) == pytest.approx(bounds.false, abs=1e-12)
    assert max(missed) <= bounds.missed + 1e-12
    if agreeing == 3:
        assert max(missed) == pytest.approx(bounds.missed, abs=1e-12)


def test_bounds_are_those_of_the_binomial_distribution() -> None:
    assert LabelErrors.bound(0.03) == pytest.approx((0.03, 0.03 + 0.97 * binom.sf(1, 3, 0.03)))
    assert LabelErrors.bound(0.03, 2).false == pytest.approx(3 * 0.03**2 - 2 * 0.03**3)
    assert LabelErrors.bound(0.03, 3).false == pytest.approx(0.03**3 * (4 - 3 * 0.03))
    assert LabelErrors.bound(0.0, 3) == (0, 0)


@given(
    errors=st.tuples(st.floats(0, 0.499), st.floats(0, 0.499)),
    agreeing=st.sampled_from([1, 2, 3]),
    risk=st.floats(0, 1),
)
def test_more_errors_widen_and_more_reviewers_narrow(errors: tuple[float, float], agreeing: int, risk: float) -> None:
    small, large = (LabelErrors.bound(error, agreeing) for error in sorted(errors))
    assert small.lower_risk(risk) >= large.lower_risk(risk) >= 0
    assert risk <= small.raise_risk(risk) <= large.raise_risk(risk) + 1e-15 <= 1 + 1e-12
    assert LabelErrors.bound(errors[0], 3).false <= LabelErrors.bound(errors[0], 2).false <= errors[0] + 1e-15


# ---- Verdicts with reviewers who err


@pytest.mark.parametrize("error_rate", [0.0, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("errors", [LabelErrors(0.05, 0.0), LabelErrors(0.0, 0.3), LabelErrors.bound(0.03)])
def test_verdicts_are_those_at_the_raised_and_the_lowered_risk(error_rate: float, errors: LabelErrors) -> None:
    risk, audited = 0.1, draw_audited(1500, error_rate, probabilities=(0.3,))
    verdict = judge_audits(1500, audited, risk=risk, smallest=0.3, errors=errors)
    broken_at = slow_break(1500, audited, risk + (1 - risk) * errors.false, 0.05)
    holds = slow_capital(1500, audited, risk * (1 - errors.missed), above=False) >= math.log(20)
    assert verdict.broken_at == broken_at
    assert verdict.verdict == ("broken" if broken_at else "holds" if holds else "undecided")
    plain = judge_audits(1500, audited, risk=risk, smallest=0.3)
    assert verdict.estimate == plain.estimate
    assert verdict.low == pytest.approx(max(0, (plain.low - errors.false) / (1 - errors.false)))
    assert verdict.high == pytest.approx(min(1, plain.high / (1 - errors.missed)))
    assert verdict.path[-1] == (1500, verdict.low, verdict.high)


@pytest.mark.parametrize("error_rate", [0.05, 0.12, 0.3])
def test_without_errors_nothing_changes(error_rate: float) -> None:
    audited = draw_audited(1000, error_rate, probabilities=(0.1, 0.5))
    plain = judge_audits(1000, audited, risk=0.1, smallest=0.1)
    for agreeing in (1, 3):
        errors = LabelErrors.bound(0.0, agreeing)
        assert judge_audits(1000, audited, risk=0.1, smallest=0.1, errors=errors) == plain


def test_predicted_number_of_labels_counts_errors_of_reviewers() -> None:
    """One label in 30 contradicts: too few for broken at 2 % with 3 % errors, and too many for holds."""
    audited = [AuditedImage(i, 1.0, i % 30 == 0) for i in range(1, 301)]
    plain, careful = (
        judge_audits(300, audited, risk=0.02, smallest=1.0, errors=LabelErrors.bound(error)) for error in (0.0, 0.03)
    )
    assert plain.more_labels is not None
    assert careful.more_labels is None


# ---- Validity with reviewers who err

ERROR, ALPHA = 0.2, 0.2


def draw_labels(wrong: BoolArray, agreeing: int, seed: int) -> list[bool | None]:
    """Return whether each audit counts as wrong: all are reviewed twice, and reviewers agree on false errors."""
    labels, rng = [], np.random.default_rng(seed)
    for is_wrong, errs in zip(wrong.tolist(), (rng.random((len(wrong), 4)) < ERROR).tolist(), strict=True):
        given: tuple[str, ...] = ()
        while (found := find_label(given, agreeing, is_double=True) if given else None) is None:
            is_contradicted = is_wrong or errs[len(given)]
            given += ("other" if is_contradicted else PREDICTED,)
        labels.append(None if found == UNCLEAR else found != PREDICTED)
    return labels


@pytest.mark.parametrize("agreeing", [2, 3])
def test_false_errors_break_as_rarely_as_stated(agreeing: int) -> None:
    """The error rate is exactly the risk; without the correction, most streams would be judged wrongly."""
    false, risk, streams, n_images = Counter[str](), 0.02, 50, 800
    for seed in range(streams):
        labels = draw_labels(np.random.default_rng([seed, 1]).random(n_images) < risk, agreeing, seed)
        audited = [AuditedImage(i, 1.0, label) for i, label in enumerate(labels, 1)]
        for name, errors in (("corrected", LabelErrors.bound(ERROR, agreeing)), ("plain", LabelErrors())):
            verdict = judge_audits(n_images, audited, risk=risk, smallest=1.0, alpha=ALPHA, errors=errors)
            false[name] += verdict.broken_at is not None or verdict.low > risk
    assert false["corrected"] <= binom.ppf(1 - 1e-6, streams, ALPHA)
    assert false["plain"] > streams / 2


@pytest.mark.parametrize("planned_looks", [None, 1])
def test_missed_errors_do_not_hold_or_certify(planned_looks: int | None) -> None:
    """Reviewers miss 40 % of the errors, which are exactly as many as the risk."""
    policy, error, streams, rows = make_policy(risk=0.1), 0.4, 20, make_rows(800, audit=1.0)
    table, due = make_table(rows, policy), {row["id"]: row["label"] for row in rows if row["reason"] is None}
    held, certified = Counter[float](), Counter[float]()
    for seed in range(streams):
        wrong = np.random.default_rng(seed).random(len(due)) < 0.1 * (1 - error)
        labels = {id_: (label + int(one)) % 4 for (id_, label), one in zip(due.items(), wrong.tolist(), strict=True)}
        audited = [AuditedImage(i, 1.0, bool(one)) for i, one in enumerate(wrong.tolist(), 1)]
        for stated in (0.0, error):
            errors = LabelErrors.bound(stated)
            verdict = judge_audits(len(audited), audited, risk=0.1, smallest=1.0, alpha=ALPHA, errors=errors)
            held[stated] += verdict.verdict == "holds" or verdict.high < 0.1
            with contextlib.suppress(DecisionError):
                terms: dict[str, Any] = {"delta": ALPHA, "planned_looks": planned_looks, "reviewer_error": stated}
                fresh = recertify(policy, [table], labels, **terms).policy
                assert fresh.calibration is not None
                assert fresh.calibration.reviewer_error == stated
                assert ("valid for reviewer errors" in str(fresh)) == (stated > 0)
                certified[stated] += 1
    for counts in (held, certified):
        assert counts[error] <= binom.ppf(1 - 1e-6, streams, ALPHA)
        assert counts[0.0] > streams / 2


def test_small_errors_of_reviewers_take_some_coverage() -> None:
    """Errors at half the risk certify with a small bound; the new policy states it."""
    policy, rows = make_policy(risk=0.1), make_rows(800, audit=1.0)
    labels = {row["id"]: (row["label"] + (i % 50 == 0)) % 4 for i, row in enumerate(rows) if row["reason"] is None}
    fresh = recertify(policy, [rows], labels, reviewer_error=0.03).policy
    assert fresh.guarantee == policy.guarantee
    assert fresh.calibration is not None
    assert fresh.calibration.reviewer_error == 0.03
    assert "valid for reviewer errors up to 3 %" in str(fresh)


# ---- A monitor whose reviewers err


def test_monitor_judges_and_states_the_bound_also_after_a_restart(tmp_path: Path) -> None:
    policy = make_policy()
    monitor = Monitor(policy, reviewer_error=0.03, agreeing=3)
    monitor.update(make_rows(3000, audit=0.2))
    monitor.add_labels(review(monitor, 0.03))
    monitor.save(tmp_path / "state.json")
    for one in (monitor, Monitor.load(tmp_path / "state.json", policy)):
        status = one.status()
        audited = [AuditedImage(audit.accepted, audit.probability, audit.wrong) for audit in one.audited]
        bounds = LabelErrors.bound(0.03, 3)
        expected = judge_audits(status.auditable, audited, risk=0.05, smallest=0.2, errors=bounds)
        assert status.audit == expected.model_copy(update={"reviewer_error": 0.03})
        assert (one.options["reviewer_error"], one.options["agreeing"]) == (0.03, 3)
        assert status.to_dict()["audit"]["reviewer_error"] == 0.03
        assert "valid for reviewer errors up to 3 %" in str(status)
    page = write_monitor_page(monitor, tmp_path / "monitor.html").read_text("utf-8")
    assert "valid for reviewer errors up to 3" in page
    assert "reviewer errors" not in str(Monitor(policy, burn_in=0).status())


@pytest.mark.parametrize("error", [-0.1, 0.5, 1.0, math.nan, "0.03", None])
def test_unusable_bounds_are_named(error: Any) -> None:
    policy = make_policy()
    with pytest.raises(MonitoringError) as raised:
        Monitor(policy, reviewer_error=error)
    assert raised.value.argument == "reviewer_error"
    with pytest.raises(MonitoringError, match="reviewer_error"):
        recertify(policy, [make_rows(10)], {}, reviewer_error=error)


@pytest.mark.parametrize("agreeing", [0, 4, 1.5, None])
def test_an_unusable_number_of_reviewers_is_named(agreeing: Any) -> None:
    with pytest.raises(MonitoringError) as raised:
        Monitor(make_policy(), reviewer_error=0.03, agreeing=agreeing)
    assert (raised.value.argument, raised.value.value) == ("agreeing", agreeing)
