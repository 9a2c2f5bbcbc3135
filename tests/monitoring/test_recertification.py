"""A fresh guarantee from reviewed images."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook import Policy, Predictions, certify
from secondlook.arrays import BoolArray, Float64Array
from secondlook.classifiers import Preprocessing
from secondlook.errors import DecisionError, MonitoringError
from secondlook.monitoring.audit import STAKES_BELOW
from secondlook.monitoring.recertification import find_last_passing, list_thresholds, recertify
from secondlook.policies import Guarantee
from secondlook.predictions import ClassifierRecord
from tests.policy_maker import attach

VIEWS = ("identity", "hflip", "vflip", "gamma:2")


def make_policy(*, risk: float = 0.1, delta: float = 0.05, adaptive: bool = False) -> Policy:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    logits = rng.normal(size=(2000, 4, 3)) + 1.5 * np.eye(3)[labels][:, None]
    preds = Predictions(logits=logits.astype(np.float32), labels=labels, views=list(VIEWS))
    rule = certify(preds, "mean", risk=risk, delta=delta, adaptive=adaptive)
    classifier = ClassifierRecord(
        name="onnx:m.onnx", digest="d", output="logits", preprocessing=Preprocessing().to_dict()
    )
    return attach(
        rule,
        classifier=classifier,
        views=(rule.schedule.views if rule.schedule else VIEWS),
        class_names=("a", "b", "c"),
    )


POLICY = make_policy()


def make_rows(
    policy: Policy, confidence: Float64Array, rate: float = 0.2, seed: int = 0
) -> tuple[list[dict[str, Any]], BoolArray]:
    """Return rows of images predicted as class 0, and which of them are due for review."""
    rng = np.random.default_rng(seed)
    accept = confidence >= policy.threshold
    audit = accept & (rng.random(len(confidence)) < rate)
    rows = [
        {
            "id": f"{place}",
            "label": 0,
            "confidence": float(value),
            "accept": bool(accept[place]),
            "looks": 4,
            "first_look": float(value),
            "disagreement": 0.1,
            "audit": bool(audit[place]),
            "audit_probability": rate if accept[place] else None,
        }
        for place, value in enumerate(confidence)
    ]
    return rows, audit | ~accept


def test_all_images_reviewed_is_a_plain_betting_process() -> None:
    confidence = np.full(400, POLICY.threshold)
    rows, due = make_rows(POLICY, confidence, rate=1.0)
    assert due.all()
    labels = {row["id"]: "b" if int(row["id"]) < 12 else "a" for row in rows}
    fresh = recertify(POLICY, [rows], labels, risk=0.1, delta=0.05).policy
    capital = np.mean([(1 - stake * 0.9) ** 12 * (1 + stake * 0.1) ** 388 for stake in STAKES_BELOW])
    assert capital >= 6 / 0.05
    assert fresh.threshold <= POLICY.threshold
    assert (fresh.certified, fresh.coverage) == (True, 1.0)
    assert fresh.calibration is not None
    assert fresh.calibration.reviewed == 400
    assert fresh.calibration.estimated_risk == pytest.approx(0.03)
    with pytest.raises(DecisionError, match="no threshold"):
        recertify(POLICY, [rows], labels, risk=0.1, delta=1 / float(capital) / 1.01)


def test_more_errors_need_a_higher_threshold() -> None:
    confidence = np.random.default_rng(1).uniform(POLICY.threshold - 0.2, 1, 20_000)
    rows, due = make_rows(POLICY, confidence, rate=0.3)
    is_wrong = np.random.default_rng(2).random(20_000) < np.where(confidence > 0.85, 0.01, 0.3)
    labels = {row["id"]: int(wrong) for row, wrong, one in zip(rows, is_wrong, due, strict=True) if one}
    result = recertify(POLICY, [rows[:5000], rows[5000:]], labels)
    assert result.policy.threshold > POLICY.threshold
    assert is_wrong[confidence >= result.policy.threshold].mean() <= 0.1
    assert result.policy.coverage < result.coverage_before == pytest.approx(np.mean(confidence >= POLICY.threshold))
    assert result.policy.guarantee == Guarantee(risk=0.1, delta=0.05)
    assert "higher" in str(result)
    assert result.policy.reference is not None
    assert result.policy.reference.images == 16_000
    assert result.to_dict()["threshold"] == {"before": POLICY.threshold, "now": result.policy.threshold}


def test_good_rejected_images_lower_the_threshold() -> None:
    confidence = np.random.default_rng(1).uniform(POLICY.threshold - 0.2, 1, 20_000)
    rows, due = make_rows(POLICY, confidence, rate=0.3)
    labels = {row["id"]: 0 for row, one in zip(rows, due, strict=True) if one}
    lowered = recertify(POLICY, [rows], labels).policy.threshold
    assert lowered < POLICY.threshold
    only_audits = {id_: label for id_, label in labels.items() if rows[int(id_)]["accept"]}
    assert lowered < recertify(POLICY, [rows], only_audits).policy.threshold


def test_images_that_were_not_reviewed_count_as_wrong() -> None:
    confidence = np.full(2000, 0.99)
    rows, due = make_rows(POLICY, confidence, rate=0.3)
    ids = [row["id"] for row, one in zip(rows, due, strict=True) if one]
    assert recertify(POLICY, [rows], dict.fromkeys(ids, 0)).policy.certified
    with pytest.raises(DecisionError, match="not reviewed yet"):
        recertify(POLICY, [rows], dict.fromkeys(ids[: len(ids) // 2], 0))


def test_labels_of_images_that_were_not_audited_change_nothing() -> None:
    confidence = np.full(2000, 0.99)
    rows, due = make_rows(POLICY, confidence, rate=0.3)
    labels = {row["id"]: 0 for row, one in zip(rows, due, strict=True) if one}
    others = {row["id"]: 1 for row, one in zip(rows, due, strict=True) if not one}
    first, second = (recertify(POLICY, [rows], given).policy for given in (labels, labels | others))
    assert (first.threshold, first.calibration) == (second.threshold, second.calibration)


def test_false_guarantees_are_as_rare_as_stated() -> None:
    """Accept from the threshold on with an error rate just above the risk: at most delta of the trials may certify."""
    delta, trials, failures = 0.3, 150, 0
    for seed in range(trials):
        rng = np.random.default_rng([7, seed])
        confidence = rng.uniform(POLICY.threshold, 1, 600)
        rows, due = make_rows(POLICY, confidence, rate=0.5, seed=seed)
        is_wrong = rng.random(600) < 0.1001
        labels = {row["id"]: int(wrong) for row, wrong, one in zip(rows, is_wrong, due, strict=True) if one}
        try:
            recertify(POLICY, [rows], labels, delta=delta)
        except DecisionError:
            continue
        failures += 1
    assert failures <= delta * trials + 3 * math.sqrt(trials * delta * (1 - delta))


def test_nothing_is_certified_where_nothing_was_accepted() -> None:
    """The tests start at the present threshold and above, where there are no images."""
    rows, due = make_rows(POLICY, np.full(500, POLICY.threshold - 0.01))
    assert due.all()
    with pytest.raises(DecisionError, match="0 of 0 reviewed"):
        recertify(POLICY, [rows], {row["id"]: 0 for row in rows})


def test_adaptive_policy_keeps_its_threshold() -> None:
    policy = make_policy(adaptive=True)
    assert list_thresholds(policy) == ([policy.threshold], [0])
    rows, due = make_rows(policy, np.full(2000, 0.999), rate=0.3)
    labels = {row["id"]: 0 for row, one in zip(rows, due, strict=True) if one}
    fresh = recertify(policy, [rows], labels).policy
    assert fresh.threshold == policy.threshold
    assert fresh.schedule == policy.schedule
    assert fresh.reference is not None
    assert fresh.reference.disagreement is None


def test_starts_do_not_depend_on_the_stream() -> None:
    thresholds, starts = list_thresholds(POLICY)
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[starts[-1]] == POLICY.threshold
    assert 1 < len(starts) <= 6


@given(
    p_values=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    places=st.sets(st.integers(0, 29), min_size=1, max_size=4),
    delta=st.floats(0.01, 0.9),
)
@settings(max_examples=100)
def test_sequence_equals_a_transparent_one(p_values: list[float], places: set[int], delta: float) -> None:
    starts = sorted(place for place in places if place < len(p_values)) or [0]
    level, last = 0.0, None
    for place, p_value in enumerate(p_values):
        if place < starts[0]:
            continue
        if place in starts:
            level += delta / len(starts)
        if level and p_value <= level:
            last = place
        else:
            level = 0.0
    assert find_last_passing(np.array(p_values), starts, delta) == last


def test_bad_input_is_one_sentence() -> None:
    rows, _ = make_rows(POLICY, np.full(100, 0.99))
    with pytest.raises(MonitoringError, match="'unknown'"):
        recertify(POLICY, [rows], {"unknown": 0})
    with pytest.raises(MonitoringError, match="several tables"):
        recertify(POLICY, [rows, rows], {})
    with pytest.raises(MonitoringError, match="no images"):
        recertify(POLICY, [], {})
    with pytest.raises(MonitoringError, match="audit_probability of image '0'"):
        recertify(POLICY, [[{**row, "audit_probability": None, "audit": False} for row in rows]], {})
    plain = [{key: value for key, value in row.items() if "audit" not in key} for row in rows]
    with pytest.raises(MonitoringError, match="audit="):
        recertify(POLICY, [plain], {})
    with pytest.raises(DecisionError, match="risk=2"):
        recertify(POLICY, [rows], {}, risk=2)
