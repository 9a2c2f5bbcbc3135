"""A new guarantee from reviewed images."""

import contextlib
import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from secondlook import Policy, Predictions, certify
from secondlook.arrays import Float64Array
from secondlook.classifiers import Preprocessing
from secondlook.errors import CalibrationWarning, DecisionError, MonitoringError
from secondlook.monitoring import recertify
from secondlook.monitoring.recertification import find_last_passing, list_thresholds
from secondlook.policies import Guarantee, Ledger
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
    policy: Policy, confidence: Float64Array, rate: float = 0.3, seed: int = 0, *, is_wrong: object = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return rows of images predicted as class 0, and the labels of those that are due for review."""
    rng = np.random.default_rng(seed)
    accept = confidence >= policy.threshold
    audit = accept & (rng.random(len(confidence)) < rate)
    constant = {"label": 0, "looks": 4, "disagreement": 0.1}
    rows = [
        {"id": str(place), "confidence": value, "first_look": value, "accept": accepted, "audit": marked, **constant}
        | {"audit_probability": rate if accepted else None}
        for place, (value, accepted, marked) in enumerate(
            zip(confidence.tolist(), accept.tolist(), audit.tolist(), strict=True)
        )
    ]
    labels = np.broadcast_to(np.asarray(is_wrong, np.int64), confidence.shape)
    return rows, {str(place): int(labels[place]) for place in np.flatnonzero(audit | ~accept)}


SPREAD = np.random.default_rng(1).uniform(POLICY.threshold - 0.2, 1, 20_000)
HIGH = np.full(2000, 0.99)


@pytest.mark.parametrize(("rate", "looks"), [(1.0, 1), (0.5, 2)])
def test_planned_looks_are_exact_tests_that_share_delta(rate: float, looks: int, tmp_path: Path) -> None:
    confidence = np.full(300, POLICY.threshold)
    ledger = tmp_path / "ledger.json"

    def recertify_with(errors: int) -> float:
        rows, labels = make_rows(POLICY, confidence, rate=rate)
        labels |= dict.fromkeys(list(labels)[:errors], 1)
        fresh = recertify(POLICY, [rows], labels, risk=0.1, delta=0.05, planned_looks=looks, ledger=ledger)
        return fresh.policy.threshold

    level = 0.05 / looks / len(list_thresholds(POLICY)[1])  # no image is above the starts before the present one
    most = max(errors for errors in range(30) if binom.cdf(errors, 300, rate * 0.1) <= level)
    assert most > 0
    assert recertify_with(most) <= POLICY.threshold
    with contextlib.ExitStack() as stack:
        if looks == 1:  # this is one too many
            stack.enter_context(pytest.warns(CalibrationWarning))
        with pytest.raises(DecisionError):
            recertify_with(most + 2)
    recorded = Ledger.read(ledger)
    assert [one.delta for one in recorded.calibrations] == [0.05 / looks] * 2
    assert recorded.joint_delta == pytest.approx(0.1 / looks)


def test_planned_looks_need_equal_audit_probabilities() -> None:
    rows, labels = make_rows(POLICY, HIGH, rate=0.5)
    rows[0]["audit_probability"] = 0.9
    with pytest.raises(MonitoringError, match="same probability"):
        recertify(POLICY, [rows], labels, planned_looks=1)
    with pytest.raises(DecisionError, match="planned_looks=0"):
        recertify(POLICY, [rows], labels, planned_looks=0)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_planned_looks_fail_in_at_most_delta_of_streams(rate: float) -> None:
    """The error rate is just above the risk; each of two planned looks may certify something."""
    rng, failures, draws = np.random.default_rng(2), 0, 100
    for seed in range(draws):
        confidence = rng.uniform(POLICY.threshold - 0.1, 1, 500)
        rows, labels = make_rows(POLICY, confidence, rate, seed, is_wrong=rng.random(500) < 0.101)
        for count in (250, 500):
            known = {id_: label for id_, label in labels.items() if int(id_) < count}
            with contextlib.suppress(DecisionError):
                recertify(POLICY, [rows[:count]], known, risk=0.1, delta=0.2, planned_looks=2)
                failures += 1
                break
    assert failures <= binom.ppf(1 - 1e-4, draws, 0.2)


def test_with_all_images_reviewed_the_test_is_a_plain_betting_process() -> None:
    confidence = np.full(400, POLICY.threshold)
    rows, labels = make_rows(POLICY, confidence, rate=1.0, is_wrong=np.arange(400) < 12)
    assert len(labels) == 400
    fresh = recertify(POLICY, [rows], labels, risk=0.1, delta=0.05).policy
    stakes = 2.0 ** -np.arange(5)
    capital = np.mean((1 - stakes * 0.9) ** 12 * (1 + stakes * 0.1) ** 388)
    assert capital >= 6 / 0.05
    assert fresh.threshold <= POLICY.threshold
    assert (fresh.certified, fresh.coverage) == (True, 1.0)
    assert fresh.calibration is not None
    assert fresh.calibration.reviewed == 400
    assert fresh.calibration.estimated_risk == pytest.approx(0.03)
    with pytest.raises(DecisionError, match="no threshold"):
        recertify(POLICY, [rows], labels, risk=0.1, delta=1 / float(capital) / 1.01)


def test_more_errors_need_a_higher_threshold() -> None:
    is_wrong = np.random.default_rng(2).random(20_000) < np.where(SPREAD > 0.85, 0.01, 0.3)
    rows, labels = make_rows(POLICY, SPREAD, is_wrong=is_wrong)
    result = recertify(POLICY, [rows[:5000], rows[5000:]], labels)
    assert result.policy.threshold > POLICY.threshold
    assert is_wrong[result.policy.threshold <= SPREAD].mean() <= 0.1
    assert result.policy.coverage < result.coverage_before == pytest.approx(np.mean(POLICY.threshold <= SPREAD))
    assert result.policy.guarantee == Guarantee(risk=0.1, delta=0.05)
    assert "higher" in str(result)
    assert result.policy.reference is not None
    assert result.policy.reference.images == 16_000
    assert result.to_dict()["threshold"] == {"before": POLICY.threshold, "now": result.policy.threshold}


def test_good_rejected_images_lower_the_threshold() -> None:
    rows, labels = make_rows(POLICY, SPREAD)
    lowered = recertify(POLICY, [rows], labels).policy.threshold
    assert lowered < POLICY.threshold
    only_audits = {id_: label for id_, label in labels.items() if rows[int(id_)]["accept"]}
    assert lowered < recertify(POLICY, [rows], only_audits).policy.threshold


def test_audits_without_a_label_count_as_wrong_and_other_labels_change_nothing() -> None:
    rows, labels = make_rows(POLICY, HIGH)
    others = {row["id"]: 1 for row in rows if row["id"] not in labels}
    first, second = (recertify(POLICY, [rows], each).policy for each in (labels, labels | others))
    assert first.certified
    assert (first.threshold, first.calibration) == (second.threshold, second.calibration)
    with pytest.raises(DecisionError, match="not reviewed yet"):
        recertify(POLICY, [rows], dict(list(labels.items())[::2]))


def test_false_guarantees_are_as_rare_as_stated() -> None:
    """Accept from the threshold on with an error rate just above the risk: at most delta of the trials may certify."""
    delta, trials, failures = 0.3, 150, 0
    for seed in range(trials):
        rng = np.random.default_rng([7, seed])
        confidence = rng.uniform(POLICY.threshold, 1, 600)
        rows, labels = make_rows(POLICY, confidence, rate=0.5, seed=seed, is_wrong=rng.random(600) < 0.1001)
        try:
            recertify(POLICY, [rows], labels, delta=delta)
        except DecisionError:
            continue
        failures += 1
    assert failures <= delta * trials + 3 * math.sqrt(trials * delta * (1 - delta))


def test_calibrations_on_the_same_stream_add_up(tmp_path: Path) -> None:
    rows, labels = make_rows(POLICY, HIGH)

    def again(images: int, **terms: Any) -> float | None:
        pq.write_table(pa.Table.from_pylist(rows[:images]), tmp_path / "part.parquet")
        known = {id_: label for id_, label in labels.items() if int(id_) < images}
        calibration = recertify(POLICY, tmp_path, known, **terms).policy.calibration
        assert calibration is not None
        return calibration.joint_delta

    assert again(1500) is None
    assert again(2000) is None, "the stream grew"
    others: list[dict[str, float]] = [{"risk": 0.11}, {"delta": 0.04}, {"risk": 0.09}]
    for number, terms in enumerate(others):
        for _ in range(2):
            with pytest.warns(CalibrationWarning):
                assert again(2000, **terms) == pytest.approx([0.1, 0.14, 0.19][number])
    with pytest.warns(CalibrationWarning), pytest.raises(DecisionError, match="no threshold"):
        again(2000, risk=0.001)
    with pytest.warns(CalibrationWarning, match=r"5 different.* 24 %"):
        again(2000)
    assert len(Ledger.read(tmp_path / "_calibrations.json").calibrations) == 5
    tables = recertify(POLICY, [rows], labels).policy.calibration
    assert tables is not None
    assert tables.joint_delta is None, "nothing tells where tables come from"


def test_retries_until_something_passes_fail_within_the_joint_probability(tmp_path: Path) -> None:
    """Reviewers of bad images try larger and larger risks, all of them too small, and keep any that passes."""
    trials, failures, joint_delta, delta = 60, 0, 0.0, 0.1
    for seed in range(trials):
        rng = np.random.default_rng([8, seed])
        confidence = rng.uniform(POLICY.threshold, 1, 600)
        rows, labels = make_rows(POLICY, confidence, rate=0.5, seed=seed, is_wrong=rng.random(600) < 0.1001)
        ledger, passed = tmp_path / f"{seed}.json", False
        for risk in (0.08, 0.09, 0.1):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                try:
                    passed |= recertify(POLICY, [rows], labels, risk=risk, delta=delta, ledger=ledger).policy.certified
                except DecisionError:
                    continue
        failures += passed
        joint_delta = Ledger.read(ledger).joint_delta
    assert joint_delta == pytest.approx(3 * delta)
    assert failures <= joint_delta * trials + 3 * math.sqrt(trials * joint_delta * (1 - joint_delta))


def test_adaptive_policy_keeps_its_threshold() -> None:
    policy = make_policy(adaptive=True)
    assert list_thresholds(policy) == ([policy.threshold], [0])
    rows, labels = make_rows(policy, HIGH + 0.009)
    fresh = recertify(policy, [rows], labels).policy
    assert (fresh.threshold, fresh.schedule) == (policy.threshold, policy.schedule)
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
def test_sequence_equals_a_transparent_version(p_values: list[float], places: set[int], delta: float) -> None:
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


def test_unusable_input_is_an_error() -> None:
    rows, _ = make_rows(POLICY, HIGH[:100])
    unmarked = [{**row, "audit_probability": None, "audit": False} for row in rows]
    plain = [{key: value for key, value in row.items() if "audit" not in key} for row in rows]
    # The tests start at the present threshold and above, where there may be no images.
    low, low_labels = make_rows(POLICY, np.full(500, POLICY.threshold - 0.01))
    cases: list[tuple[list[object], dict[str, int], dict[str, Any], str]] = [
        ([rows], {"unknown": 0}, {}, "'unknown'"),
        ([rows, rows], {}, {}, "several tables"),
        ([], {}, {}, "no images"),
        ([unmarked], {}, {}, "audit_probability of image '0'"),
        ([plain], {}, {}, "audit="),
        ([rows], {}, {"risk": 2}, "risk=2"),
        ([low], low_labels, {}, "0 of 0 reviewed"),
    ]
    for tables, labels, options, offending in cases:
        with pytest.raises((MonitoringError, DecisionError), match=offending) as error:
            recertify(POLICY, tables, labels, **options)
        assert isinstance(error.value, DecisionError) == (offending in ("risk=2", "0 of 0 reviewed"))


def test_answers_count_as_errors_or_as_unreviewed() -> None:
    """Unknown and bad images are wrong wherever they are accepted, so the guarantee covers them."""
    rows, labels = make_rows(POLICY, SPREAD, rate=0.5)
    audited = [row["id"] for row in rows if row["audit"]]
    rejected = [row["id"] for row in rows if not row["accept"]]
    changed = audited[::40] + rejected[::40]
    texts = ("none of these", "bad image", "cannot tell")
    answers = dict(zip(changed, itertools.cycle(texts), strict=False))
    result = recertify(POLICY, [rows], labels | answers)
    expected = recertify(POLICY, [rows], labels | dict.fromkeys(changed, 1))
    assert result.policy.threshold == expected.policy.threshold
    assert result.policy.calibration is not None
    assert expected.policy.calibration is not None
    unclear = sum(text == "cannot tell" for text in answers.values())
    unknown = [id_ for id_, text in answers.items() if text == "none of these"]
    assert (result.reviewed, expected.reviewed) == (len(labels) - unclear, len(labels))
    assert (result.none_of_these, expected.none_of_these) == (len(unknown), 0)
    confidence = {row["id"]: row["confidence"] for row in rows}
    for policy, accepted in ((POLICY, result.accepted_before), (result.policy, result.accepted_now)):
        assert accepted == sum(confidence[id_] >= policy.threshold for id_ in unknown)
    assert result.accepted_before > 0
    assert result.to_dict()["none_of_these"] == len(unknown)
    assert str(result).splitlines()[-1].startswith(f"reviewed: {result.reviewed:,} images")
    with pytest.raises(DecisionError):
        recertify(POLICY, [rows], labels | dict.fromkeys(audited, "none of these"))
