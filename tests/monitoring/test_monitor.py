"""`Monitor`: what it tells about a stream, however the stream is cut, and what it refuses."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secondlook as sl
from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor
from secondlook.monitoring.alarm import ShiftAlarm
from secondlook.monitoring.audit import AuditedImage, judge_audits
from secondlook.monitoring.monitor import MAX_WINDOWS
from secondlook.policies import AuditPlan, Policy, threshold_for
from tests.monitoring.streams import CLASSES, RISK, THRESHOLD, Row, make_policy, make_rows, review
from tests.policy_maker import attach

Change = Callable[[list[Row]], object]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


def save(monitor: Monitor, folder: Path) -> bytes:
    monitor.save(folder / "state.json")
    return (folder / "state.json").read_bytes()


def test_counts_and_means_are_those_of_the_rows(policy: Policy) -> None:
    rows = make_rows(1234)
    status = Monitor(policy).update(rows)
    read = [row for row in rows if row["reason"] is None]
    accepted = [row for row in read if row["accept"]]
    assert (status.images, status.accepted, status.skipped) == (len(read), len(accepted), len(rows) - len(read))
    assert status.coverage == len(accepted) / len(read)
    assert status.audited == sum(row["audit"] for row in accepted)
    assert status.auditable == len(accepted)
    assert not status.alarm
    assert status.estimate is not None
    assert status.estimate.risk is not None
    assert status.recent_images == len(read) - 500, "the last window and the one before"


def test_windows_hold_means_of_their_images(policy: Policy) -> None:
    monitor = Monitor(policy, window=100)
    rows = [row for row in make_rows(550) if row["reason"] is None]
    monitor.update(rows)
    windows = monitor.timeline()
    assert [window.images for window in windows] == [100] * 5 + [39]
    for window in windows:
        images = rows[window.start : window.start + window.images]
        assert window.accepted == sum(row["accept"] for row in images)
        assert window.confidence == pytest.approx(np.mean([row["confidence"] for row in images]))
        assert window.disagreement == pytest.approx(np.mean([row["disagreement"] for row in images]))
    assert policy.reference is not None
    alarm = ShiftAlarm(policy.reference, is_adaptive=False)
    columns = [np.array([row[name] for row in rows]) for name in ("confidence", "first_look", "disagreement")]
    evidence = alarm.update(*columns)
    ends = [window.start + window.images - 1 for window in windows]
    assert [window.log10_evidence for window in windows] == pytest.approx(evidence[ends] / math.log(10))


def test_images_that_change_raise_the_alarm(policy: Policy) -> None:
    monitor = Monitor(policy)
    assert not monitor.update(make_rows(3000)).alarm
    status = monitor.update(make_rows(500, first=3000, damage=1.5))
    assert status.alarm
    assert status.shift.raised
    assert status.shift.raised_at is not None
    assert 2940 < status.shift.raised_at < 3200
    assert status.shift.log10_evidence > status.shift.log10_limit == pytest.approx(math.log10(1 / 0.05))
    assert status.shift.statistic == "disagreement"
    assert "changed" in status.verdict


@pytest.mark.parametrize(("error_rate", "verdict"), [(0.0, "holds"), (0.3, "broken")])
def test_reviewed_audits_decide(policy: Policy, error_rate: float, verdict: str) -> None:
    monitor = Monitor(policy)
    before = monitor.update(make_rows(6000, audit=0.2))
    assert before.audit is not None
    assert before.audit.verdict == "undecided"
    assert "Review" in before.next_step
    labels = review(monitor, error_rate)
    assert monitor.add_labels(labels) == len(labels)
    status = monitor.status()
    assert status.audit is not None
    assert status.audit.verdict == verdict
    assert status.alarm == (verdict == "broken")
    assert verdict in status.verdict
    audited = [AuditedImage(one.accepted, one.probability, one.wrong) for one in monitor.audited]
    assert status.audit == judge_audits(status.auditable, audited, risk=RISK, smallest=0.2)


def test_audits_are_counted_among_images_that_could_be_audited(policy: Policy) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(1000, audit=None))
    status = monitor.update(make_rows(1000, first=1000, audit=0.2))
    rows = [row for row in make_rows(1000, first=1000, audit=0.2) if row["accept"]]
    assert status.auditable == len(rows) < status.accepted
    positions = [place + 1 for place, row in enumerate(rows) if row["audit"]]
    assert [audit.accepted for audit in monitor.audited] == positions
    assert monitor.audit_path() == [], "nothing is known without labels"
    monitor.add_labels(review(monitor, 0.1))
    path = monitor.audit_path()
    assert all(980 <= image <= 1960 for image, _, _ in path), "where these images are in the stream"
    assert path[-1][0] == 1960


def test_bets_on_audits_know_the_smallest_probability_of_the_plan(policy: Policy) -> None:
    rows = make_rows(3000, audit=0.3)
    content = {"policy": json.loads(policy.model_dump_json()), "audit": 0.1}
    monitor = Monitor(policy)
    monitor.update(pa.Table.from_pylist(rows).replace_schema_metadata({"secondlook.score": json.dumps(content)}))
    monitor.add_labels(review(monitor, 0.1))
    audited = [AuditedImage(one.accepted, one.probability, one.wrong) for one in monitor.audited]
    smallest = AuditPlan(policy.reference, policy.threshold, 0.1).smallest
    assert smallest < 0.1
    status = monitor.status()
    assert status.audit == judge_audits(status.auditable, audited, risk=RISK, smallest=smallest)


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 900), max_size=12), window=st.sampled_from([7, 100, 500]))
def test_how_a_stream_is_cut_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], window: int
) -> None:
    policy, folder = make_policy(), tmp_path_factory.mktemp("cuts")
    rows = make_rows(600) + make_rows(300, first=600, damage=1.0)
    whole, parts = Monitor(policy, window=window), Monitor(policy, window=window)
    whole.update(rows)
    ends = [0, *sorted(cuts), len(rows)]
    for start, stop in itertools.pairwise(ends):
        parts.update(rows[start:stop])
        parts.save(folder / "parts.json")
        parts = Monitor.load(folder / "parts.json", policy)
    assert save(parts, folder) == save(whole, folder)
    assert str(parts.status()) == str(whole.status())


def test_many_windows_are_merged_in_pairs(policy: Policy, tmp_path: Path) -> None:
    rows = [row for row in make_rows(5000) if row["reason"] is None]
    monitor, slow = Monitor(policy, window=4), Monitor(policy, window=4)
    monitor.update(rows)
    for start in range(0, len(rows), 611):
        slow.update(rows[start : start + 611])
    windows = monitor.timeline()
    assert len(windows) <= MAX_WINDOWS
    assert {window.images for window in windows[:-1]} == {16}, "4,900 images in at most 400 windows of 4, 8 or 16"
    assert sum(window.images for window in windows) == len(rows)
    assert windows[3].confidence == pytest.approx(np.mean([row["confidence"] for row in rows[48:64]]))
    assert policy.reference is not None
    columns = [np.array([row[name] for row in rows[:64]]) for name in ("confidence", "first_look", "disagreement")]
    evidence = ShiftAlarm(policy.reference, is_adaptive=False).update(*columns)
    assert windows[3].log10_evidence == pytest.approx(evidence[-1] / math.log(10))
    assert save(slow, tmp_path) == save(monitor, tmp_path)


def test_worst_images_are_wrong_audits_and_the_most_doubtful(policy: Policy) -> None:
    monitor = Monitor(policy)
    rows = make_rows(2000)
    for start in range(0, 2000, 300):
        monitor.update(rows[start : start + 300])
    accepted = [row for row in rows if row["accept"]]
    ranked = sorted(accepted, key=lambda row: (-row["disagreement"], row["confidence"]))
    assert [image.id for image in monitor.worst_images()] == [row["id"] for row in ranked[:24]]
    latest = monitor.audited[-1]
    monitor.add_labels({latest.id: (latest.predicted[0] + 1) % 4})
    first, *others = monitor.worst_images()
    assert (first.id, first.wrong) == (latest.id, True)
    assert [image.id for image in others] == [row["id"] for row in ranked[:24] if row["id"] != latest.id]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "batch", "dictionaries"])
def test_rows_of_any_kind_give_the_same(policy: Policy, kind: str, tmp_path: Path) -> None:
    rows = make_rows(200)
    table = pa.Table.from_pylist(rows)
    given: Any = {
        "arrow": table,
        "pandas": pd.DataFrame(rows),
        "batch": table.to_batches()[0],
        "dictionaries": iter(rows),
    }[kind]
    expected, monitor = Monitor(policy), Monitor(policy)
    expected.update(rows)
    monitor.update(given)
    assert save(monitor, tmp_path) == save(expected, tmp_path)


def test_no_rows_change_nothing(policy: Policy, tmp_path: Path) -> None:
    monitor = Monitor(policy)
    before = save(monitor, tmp_path)
    monitor.update([])
    monitor.update(pa.Table.from_pylist(make_rows(3)).slice(3))
    assert save(monitor, tmp_path) == before


def test_decisions_are_rows() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (150, 8, 8, 3), dtype=np.uint8)

    def predict(batch: Any) -> Any:
        bright = batch.reshape(len(batch), -1).mean(axis=1) / 255.0
        return np.stack([1 - bright, bright], axis=1)

    preds = sl.collect(predict, images, "identity hflip shift:2,0", labels=rng.integers(0, 2, 150))
    rule = threshold_for(preds, "mean", coverage=0.5)
    policy = attach(rule, classifier=sl.load_classifier(predict, name="p"), views=preds.views.texts)
    classifier = sl.SelectiveClassifier(sl.load_classifier(predict, name="p"), policy)
    status = sl.Monitor(policy, burn_in=50).update(classifier.decide(images))
    assert status.images == 150
    assert status.guarantee is None
    assert status.audit is None


def test_several_predicted_classes_are_wrong_if_all_are() -> None:
    policy = make_policy(top_k=2)
    rows = [{**row, "labels": [row["label"], 3]} if row["label"] is not None else row for row in make_rows(400)]
    monitor = Monitor(policy)
    monitor.update(rows)
    first, second, *_ = monitor.audited
    neither = next(index for index in range(4) if index not in second.predicted)
    monitor.add_labels({first.id: 3, second.id: neither})
    assert [audit.wrong for audit in monitor.audited[:3]] == [False, True, None]


def test_labels_are_names_or_indices_given_in_any_order_and_again(policy: Policy, tmp_path: Path) -> None:
    monitor, other = Monitor(policy), Monitor(policy)
    for one in (monitor, other):
        one.update(make_rows(1000))
    labels = review(monitor, 0.1)
    assert monitor.add_labels({id_: CLASSES[label] for id_, label in labels.items()}) == len(labels)
    assert other.add_labels([(id_, str(label)) for id_, label in reversed(labels.items())]) == len(labels)
    assert other.add_labels(labels) == 0, "given again"
    assert save(monitor, tmp_path) == save(other, tmp_path)


@pytest.mark.parametrize(
    ("label", "offending"), [("catt", "Did you mean 'cat'"), (4, "4"), (-1, "-1"), ("2.5", "'2.5'"), (None, "None")]
)
def test_labels_that_are_no_class_are_errors(policy: Policy, label: Any, offending: str) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(400))
    with pytest.raises(MonitoringError, match=offending) as error:
        monitor.add_labels({monitor.audited[0].id: label})
    assert monitor.audited[0].id in str(error.value)


def test_labels_of_unknown_images_and_conflicts_are_errors(policy: Policy, tmp_path: Path) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(400))
    first, second = monitor.audited[:2]
    monitor.add_labels({first.id: 0})
    before = save(monitor, tmp_path)
    for labels, offending in (
        ({second.id: 1, "nowhere.jpg": 1}, "nowhere.jpg"),
        ({second.id: 1, first.id: 2}, "'cat' before and 'bird' now"),
        ([(second.id, 1), (second.id, 2)], "two labels"),
    ):
        with pytest.raises(MonitoringError, match=offending):
            monitor.add_labels(labels)
        assert save(monitor, tmp_path) == before, "nothing is added if one is wrong"


def set_value(name: str, value: object, *, accepted: bool = True) -> Change:
    def change(rows: list[Row]) -> None:
        next(row for row in rows if row["accept"] == accepted and row["reason"] is None)[name] = value

    return change


def drop_column(name: str) -> Change:
    return lambda rows: [row.pop(name) for row in rows]


@pytest.mark.parametrize(
    ("change", "offending"),
    [
        (drop_column("first_look"), "'first_look'"),
        (drop_column("id"), "'id'"),
        (drop_column("audit_probability"), "'audit_probability'"),
        (set_value("audit_probability", None), "null"),
        (set_value("audit_probability", 0.0), "is 0"),
        (set_value("audit_probability", 1.5), "1.5"),
        (set_value("confidence", float("nan")), "nan"),
        (set_value("first_look", None), "first_look"),
        (set_value("label", None), "label"),
        (set_value("label", 4), "[4]"),
        (set_value("id", None), "null"),
        (set_value("disagreement", 2.0), "is 2"),
        (set_value("accept", False), "rejected"),
        (set_value("confidence", 0.1), "accepted with confidence 0.1"),
        (set_value("accept", True, accepted=False), str(THRESHOLD)),
        (set_value("id", "day/000007.jpg"), "'day/000007.jpg'"),
    ],
)
def test_invalid_rows_are_errors_and_change_nothing(
    policy: Policy, change: Change, offending: str, tmp_path: Path
) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(300))
    before = save(monitor, tmp_path)
    rows = make_rows(300, first=300)
    rows[7]["id"] = "day/000007.jpg"
    change(rows)
    with pytest.raises(MonitoringError) as error:
        monitor.update(rows)
    assert offending in str(error.value)
    assert save(monitor, tmp_path) == before


@pytest.mark.parametrize("rows", ["scores.parquet", 3, [1, 2], {"id": []}])
def test_other_things_are_not_rows(policy: Policy, rows: object) -> None:
    with pytest.raises(MonitoringError, match=type(rows).__name__):
        Monitor(policy).update(rows)


def test_rows_of_another_policy_are_an_error(policy: Policy) -> None:
    other = make_policy(risk=0.1)
    table = pa.Table.from_pylist(make_rows(200))

    def scored_with(used: Policy) -> pa.Table:
        content = {"policy": json.loads(used.model_dump_json()), "audit": 0.05}
        return table.replace_schema_metadata({"secondlook.score": json.dumps(content)})

    with pytest.raises(MonitoringError, match=other.checksum[:8]):
        Monitor(policy).update(scored_with(other))
    assert Monitor(policy).update(scored_with(policy)).images == 196
    with pytest.raises(MonitoringError, match="damaged"):
        Monitor(policy).update(table.replace_schema_metadata({"secondlook.score": "{"}))


def test_rows_of_another_classifier_are_an_error(policy: Policy) -> None:
    content = {"policy": json.loads(policy.model_dump_json()), "mismatch": "the policy is for classifier 'a'"}
    table = pa.Table.from_pylist(make_rows(200))
    with pytest.raises(MonitoringError, match="classifier 'a'"):
        Monitor(policy).update(table.replace_schema_metadata({"secondlook.score": json.dumps(content)}))


def test_image_that_is_audited_twice_is_an_error(policy: Policy) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(300))
    with pytest.raises(MonitoringError, match=monitor.audited[0].id):
        monitor.update(make_rows(300))


def test_policy_without_a_reference_is_an_error() -> None:
    with pytest.raises(MonitoringError, match="calibrate again"):
        Monitor(make_policy(has_reference=False))


@pytest.mark.parametrize(
    "options", [{"alpha": 0}, {"alpha": 1.5}, {"window": 0}, {"burn_in": -1}, {"seed": 0.5}, {"alpha": "0.1"}]
)
def test_options_out_of_range_are_errors(policy: Policy, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(MonitoringError, match=f"{name}="):
        Monitor(policy, **options)


def test_stream_shorter_than_the_burn_in_is_an_error_unless_there_is_an_alarm(policy: Policy) -> None:
    monitor = Monitor(policy, burn_in=100)
    status = monitor.update(make_rows(80))
    assert status.in_burn_in
    assert "Too few images" in status.verdict
    with pytest.raises(MonitoringError, match="burn_in=100"):
        monitor.status()
    assert not monitor.update(make_rows(40, first=80)).in_burn_in
    monitor.status()
    damaged = Monitor(policy, burn_in=100)
    assert damaged.update(make_rows(80, damage=6.0)).alarm
    assert damaged.status().alarm


def test_state_of_another_policy_and_changed_state_are_errors(policy: Policy, tmp_path: Path) -> None:
    monitor = Monitor(policy, alpha=0.01, window=50, seed=3)
    monitor.update(make_rows(200))
    state = save(monitor, tmp_path)
    path = tmp_path / "state.json"
    loaded = Monitor.load(path, policy)
    assert (loaded.alpha, loaded.window, loaded.seed) == (0.01, 50, 3)
    with pytest.raises(MonitoringError, match="another policy"):
        Monitor.load(path, make_policy(risk=0.1))
    path.write_bytes(state.replace(b'"skipped":4', b'"skipped":5'))
    with pytest.raises(MonitoringError, match="checksum"):
        Monitor.load(path, policy)
    path.write_bytes(state[:100])
    with pytest.raises(MonitoringError, match=r"state\.json"):
        Monitor.load(path, policy)
    with pytest.raises(MonitoringError, match="missing"):
        Monitor.load(tmp_path / "missing.json", policy)


def test_status_as_json_has_every_number(policy: Policy) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(1000) + make_rows(500, first=1000, damage=2.0))
    content = json.loads(json.dumps(monitor.status().to_dict(), allow_nan=False))
    assert content["alarm"] is True
    assert content["shift"]["raised"] is True
    assert content["recent"]["meaning"] == "estimate, not guarantee"
    assert content["audit"]["verdict"] == "undecided"
    assert (content["guarantee"]["risk"], content["guarantee"]["delta"]) == (RISK, 0.01)
    text = str(monitor.status())
    assert "estimate, not guarantee" in text
    assert "audits: undecided" in text


def test_labels_that_are_taken_back_leave_no_trace(policy: Policy, tmp_path: Path) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(2000, audit=0.2))
    labels = review(monitor, 0.3)
    kept = dict(list(labels.items())[::2])
    monitor.add_labels(kept)
    before, told = save(monitor, tmp_path), str(monitor.status())
    monitor.add_labels(labels)
    assert str(monitor.status()) != told
    assert monitor.remove_labels(labels.keys() - kept.keys()) == len(labels) - len(kept)
    assert save(monitor, tmp_path) == before
    assert str(monitor.status()) == told
    assert monitor.remove_labels(labels.keys() - kept.keys()) == 0, "they are gone already"
    first, *_ = kept
    assert monitor.remove_labels([first, first]) == 1
    monitor.add_labels({first: (labels[first] + 1) % 4})
    assert next(audit for audit in monitor.audited if audit.id == first).label == (labels[first] + 1) % 4
    state = save(monitor, tmp_path)
    with pytest.raises(MonitoringError, match=r"nowhere\.jpg"):
        monitor.remove_labels([*kept, "nowhere.jpg"])
    assert save(monitor, tmp_path) == state, "nothing is taken back if one is unknown"
