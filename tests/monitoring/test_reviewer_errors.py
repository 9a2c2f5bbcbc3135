"""Reviewers who err: bounds against all outcomes, verdicts at the raised and the lowered risk, rare false verdicts."""

import contextlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook.arrays import BoolArray
from secondlook.errors import DecisionError, MonitoringError
from secondlook.monitoring import Monitor, recertify
from secondlook.monitoring.audit import AuditedImage, LabelErrors, judge_audits
from secondlook.report import write_monitor_page
from tests.monitoring.streams import make_policy, make_rows, make_table, review
from tests.monitoring.test_audit import draw_audited, slow_break, slow_capital

PREDICTED, UNCLEAR = "predicted", "cannot tell"
LABELS = (PREDICTED, "other", "third", UNCLEAR)
RISK = 0.02


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


# ---- Verdicts


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
        judge_audits(300, audited, risk=RISK, smallest=1.0, errors=LabelErrors.bound(error)) for error in (0.0, 0.03)
    )
    assert plain.more_labels is not None
    assert careful.more_labels is None


# ---- Validity

STREAMS, IMAGES, ERROR, ALPHA = 50, 800, 0.2, 0.2
MOST_FALSE = int(binom.ppf(1 - 1e-6, STREAMS, ALPHA))


def draw_labels(wrong: BoolArray, agreeing: int, rng: np.random.Generator) -> list[bool | None]:
    """Return whether each audit counts as wrong: all are reviewed twice, and reviewers agree on false errors."""
    labels = []
    for is_wrong, errs in zip(wrong.tolist(), (rng.random((len(wrong), 4)) < ERROR).tolist(), strict=True):
        given: tuple[str, ...] = ()
        while (found := find_label(given, agreeing, is_double=True) if given else None) is None:
            is_contradicted = is_wrong or errs[len(given)]
            given += ("other" if is_contradicted else PREDICTED,)
        labels.append(None if found == UNCLEAR else found != PREDICTED)
    return labels


@pytest.mark.parametrize("agreeing", [2, 3])
def test_false_verdicts_are_as_rare_as_stated(agreeing: int) -> None:
    """The error rate is exactly the risk; without the correction, most streams would be judged wrongly."""
    false = Counter[str]()
    for seed in range(STREAMS):
        rng = np.random.default_rng([seed, agreeing])
        wrong = rng.random(IMAGES) < RISK
        for name, errors in (("corrected", LabelErrors.bound(ERROR, agreeing)), ("plain", LabelErrors())):
            labels = draw_labels(wrong, agreeing, np.random.default_rng(seed))
            audited = [AuditedImage(i, 1.0, label) for i, label in enumerate(labels, 1)]
            verdict = judge_audits(IMAGES, audited, risk=RISK, smallest=1.0, alpha=ALPHA, errors=errors)
            false[name] += verdict.broken_at is not None or verdict.low > RISK
    assert false["corrected"] <= MOST_FALSE
    assert false["plain"] > STREAMS / 2


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


# ---- The monitor


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
