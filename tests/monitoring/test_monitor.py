"""`Monitor`: its results, independent of updates, and its errors."""

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
from secondlook.policies import Policy, threshold_for
from tests.monitoring.streams import (
    CLASSES,
    RISK,
    THRESHOLD,
    Row,
    make_policy,
    make_rows,
    make_shift_model,
    make_table,
    review,
)
from tests.policy_maker import attach

Change = Callable[[list[Row]], object]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


@pytest.fixture
def monitor(policy: Policy) -> Monitor:
    """A monitor that has seen 400 images."""
    monitor = Monitor(policy)
    monitor.update(make_rows(400))
    return monitor


def save(monitor: Monitor, folder: Path) -> bytes:
    monitor.save(folder / "state.json")
    return (folder / "state.json").read_bytes()


def test_counts_and_means_are_those_of_the_rows(policy: Policy) -> None:
    monitor, rows = Monitor(policy), make_rows(1234)
    status = monitor.update(rows)
    read = [row for row in rows if row["reason"] is None]
    accepted = [row for row in read if row["accept"]]
    assert (status.images, status.accepted, status.skipped) == (len(read), len(accepted), len(rows) - len(read))
    assert status.coverage == len(accepted) / len(read)
    assert (status.audited, status.auditable) == (sum(row["audit"] for row in accepted), len(accepted))
    assert not status.alarm
    assert status.estimate is not None
    assert status.estimate.risk is not None
    assert status.recent_images == len(read) - 500, "the last window and the one before"


@pytest.mark.parametrize(("window", "merged"), [(100, 100), (4, 16)])
def test_windows_hold_means_of_their_images(policy: Policy, window: int, merged: int) -> None:
    """Of 4,900 images, windows of 4 are merged in pairs until there are at most 400."""
    monitor = Monitor(policy, window=window)
    rows = [row for row in make_rows(5000) if row["reason"] is None]
    monitor.update(rows)
    windows = monitor.timeline()
    assert [one.images for one in windows] == [merged] * (4900 // merged) + [4900 % merged] * (4900 % merged > 0)
    for one in windows:
        images = rows[one.start : one.start + one.images]
        assert one.accepted == sum(row["accept"] for row in images)
        assert one.confidence == pytest.approx(np.mean([row["confidence"] for row in images]))
        assert one.disagreement == pytest.approx(np.mean([row["disagreement"] for row in images]))


def test_changed_images_raise_the_alarm(policy: Policy) -> None:
    monitor = Monitor(policy)
    assert not monitor.update(make_rows(3000)).alarm
    status = monitor.update(make_rows(500, first=3000, damage=1.5))
    assert status.alarm
    assert status.shift.raised
    assert status.shift.raised_at is not None
    assert 2940 < status.shift.raised_at < 3200
    assert status.shift.log10_evidence > status.shift.log10_limit == pytest.approx(math.log10(1 / 0.05))
    assert status.shift.statistic == "disagreement"


def test_audit_positions_count_auditable_images(policy: Policy) -> None:
    monitor, rows = Monitor(policy), make_rows(1000, first=1000, audit=0.2)
    monitor.update(make_rows(1000, audit=None))
    status = monitor.update(rows)
    accepted = [row for row in rows if row["accept"]]
    assert status.auditable == len(accepted) < status.accepted
    assert [audit.accepted for audit in monitor.audited] == [i for i, row in enumerate(accepted, 1) if row["audit"]]
    monitor.add_labels(review(monitor, 0.1))
    path = monitor.audit_path()
    assert all(980 <= image <= 1960 for image, _, _ in path), "where these images are in the stream"
    assert path[-1][0] == 1960


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 900), max_size=12),
    window=st.sampled_from([1, 7, 100, 500]),
    adaptive=st.booleans(),
    is_learned=st.booleans(),
)
def test_result_does_not_depend_on_updates(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], window: int, adaptive: bool, is_learned: bool
) -> None:
    """Monitors are also saved and loaded after each update, and windows are merged in between."""
    policy, folder = make_policy(adaptive=adaptive), tmp_path_factory.mktemp("cuts")
    if is_learned:
        policy = policy.replace(shifts=make_shift_model())
    rows = make_rows(600) + make_rows(300, first=600, damage=1.0)
    whole, parts = Monitor(policy, window=window), Monitor(policy, window=window)
    whole.update(rows)
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(rows)]):
        parts.update(rows[start:stop])
        parts.save(folder / "parts.json")
        parts = Monitor.load(folder / "parts.json", policy)
    assert save(parts, folder) == save(whole, folder)
    assert str(parts.status()) == str(whole.status())
    assert parts.worst_images() == whole.worst_images()


def test_worst_images_are_wrong_audits_and_the_most_doubtful(policy: Policy) -> None:
    monitor, rows = Monitor(policy), make_rows(2000)
    monitor.update(rows)
    accepted = [row for row in rows if row["accept"]]
    ranked = sorted(accepted, key=lambda row: (-row["disagreement"], row["confidence"]))
    assert [image.id for image in monitor.worst_images()] == [row["id"] for row in ranked[:24]]
    latest = monitor.audited[-1]
    monitor.add_labels({latest.id: (latest.predicted[0] + 1) % 4})
    first, *others = monitor.worst_images()
    assert (first.id, first.wrong) == (latest.id, True)
    assert [image.id for image in others] == [row["id"] for row in ranked[:24] if row["id"] != latest.id]


def test_rows_of_any_kind_give_the_same_and_no_rows_change_nothing(monitor: Monitor, tmp_path: Path) -> None:
    rows, expected = make_rows(400), save(monitor, tmp_path)
    table = pa.Table.from_pylist(rows)
    for kind in (table, pd.DataFrame(rows), table.to_batches()[0], iter(rows)):
        other = Monitor(monitor.policy)
        other.update([])
        other.update(kind)
        other.update(table.slice(400))
        assert save(other, tmp_path) == expected


def test_decisions_are_rows() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (150, 8, 8, 3), dtype=np.uint8)

    def predict(batch: Any) -> Any:
        bright = batch.reshape(len(batch), -1).mean(axis=1) / 255.0
        return np.stack([1 - bright, bright], axis=1)

    model = sl.load_classifier(predict, name="p")
    preds = sl.collect(model, images, "identity hflip shift:2,0", labels=rng.integers(0, 2, 150))
    policy = attach(threshold_for(preds, "mean", coverage=0.5), classifier=model, views=preds.views.texts)
    status = Monitor(policy, burn_in=50).update(sl.SelectiveClassifier(model, policy).decide(images))
    assert (status.images, status.guarantee, status.audit) == (150, None, None)


def test_top_k_prediction_is_wrong_if_all_classes_are() -> None:
    rows = [{**row, "labels": [row["label"], 3]} if row["label"] is not None else row for row in make_rows(400)]
    monitor = Monitor(make_policy(top_k=2))
    monitor.update(rows)
    first, second, *_ = monitor.audited
    neither = next(index for index in range(4) if index not in second.predicted)
    monitor.add_labels({first.id: 3, second.id: neither})
    assert [audit.wrong for audit in monitor.audited[:3]] == [False, True, None]


def test_labels_are_names_or_indices_given_in_any_order_and_again(monitor: Monitor, tmp_path: Path) -> None:
    other, labels = Monitor(monitor.policy), review(monitor, 0.1)
    other.update(make_rows(400))
    assert monitor.add_labels({id_: CLASSES[label] for id_, label in labels.items()}) == len(labels)
    assert other.add_labels([(id_, str(label)) for id_, label in reversed(labels.items())]) == len(labels)
    assert other.add_labels(labels) == 0, "given again"
    assert save(monitor, tmp_path) == save(other, tmp_path)


@pytest.mark.parametrize(
    ("labels", "offending"),
    [
        *(([("second", label)], repr(label)) for label in ("catt", 4, -1, "2.5", None)),
        ([("second", 1), ("nowhere.jpg", 1)], "nowhere.jpg"),
        ([("second", 1), ("first", 2)], "'cat' before and 'bird' now"),
        ([("second", 1), ("second", 2)], "two labels"),
    ],
)
def test_unusable_labels_are_errors_and_change_nothing(
    monitor: Monitor, labels: list[tuple[str, Any]], offending: str, tmp_path: Path
) -> None:
    ids = {"first": monitor.audited[0].id, "second": monitor.audited[1].id}
    monitor.add_labels({ids["first"]: 0})
    before = save(monitor, tmp_path)
    with pytest.raises(MonitoringError) as error:
        monitor.add_labels([(ids.get(id_, id_), label) for id_, label in labels])
    assert offending in str(error.value)
    assert ids.get(labels[-1][0], labels[-1][0]) in str(error.value)
    assert save(monitor, tmp_path) == before


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
    monitor: Monitor, change: Change, offending: str, tmp_path: Path
) -> None:
    before = save(monitor, tmp_path)
    rows = make_rows(300, first=400)
    rows[7]["id"] = "day/000007.jpg"
    change(rows)
    with pytest.raises(MonitoringError) as error:
        monitor.update(rows)
    assert offending in str(error.value)
    assert save(monitor, tmp_path) == before


@pytest.mark.parametrize("rows", ["scores.parquet", 3, [1, 2], {"id": []}])
def test_invalid_row_types_are_errors(policy: Policy, rows: object) -> None:
    with pytest.raises(MonitoringError, match=type(rows).__name__):
        Monitor(policy).update(rows)


def test_rows_of_another_policy_or_classifier_are_an_error(policy: Policy) -> None:
    rows, other = make_rows(200), make_policy(risk=0.1)
    assert Monitor(policy).update(make_table(rows, policy, audit=0.05)).images == 196
    for table, offending in (
        (make_table(rows, other, audit=0.05), other.checksum[:8]),
        (make_table(rows, policy, mismatch="the policy is for classifier 'a'"), "classifier 'a'"),
        (make_table(rows, policy).replace_schema_metadata({"secondlook.score": "{"}), "damaged"),
        (make_table(rows, policy).replace_schema_metadata({"secondlook.score": "[" * 100_000}), "damaged"),
    ):
        with pytest.raises(MonitoringError, match=offending):
            Monitor(policy).update(table)


@pytest.mark.parametrize("accept", [True, False])
def test_duplicate_image_to_review_is_an_error(monitor: Monitor, accept: bool) -> None:
    audited = {audit.id for audit in monitor.audited}
    row = next(row for row in make_rows(400) if (row["id"] in audited if accept else row["id"] in monitor.labels))
    with pytest.raises(MonitoringError, match=row["id"]):
        monitor.update([row])


def test_policy_without_a_reference_is_an_error() -> None:
    with pytest.raises(MonitoringError):
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
    monitor, path = Monitor(policy, alpha=0.01, window=50, seed=3), tmp_path / "state.json"
    monitor.update(make_rows(200))
    state = save(monitor, tmp_path)
    loaded = Monitor.load(path, policy)
    assert (loaded.alpha, loaded.window, loaded.seed) == (0.01, 50, 3)
    with pytest.raises(MonitoringError, match="another policy"):
        Monitor.load(path, make_policy(risk=0.1))
    for content, offending in (
        (state.replace(b'"skipped":4', b'"skipped":5'), "checksum"),
        (state[:100], "state.json"),
    ):
        path.write_bytes(content)
        with pytest.raises(MonitoringError, match=offending):
            Monitor.load(path, policy)
    with pytest.raises(MonitoringError, match="missing"):
        Monitor.load(tmp_path / "missing.json", policy)


@pytest.mark.parametrize("is_learned", [False, True])
def test_status_as_json_has_every_number(policy: Policy, is_learned: bool) -> None:
    """Estimates without labels are marked, including whether the interval covers shifts."""
    monitor = Monitor(policy.replace(shifts=make_shift_model()) if is_learned else policy)
    monitor.update(make_rows(1000) + make_rows(500, first=1000, damage=2.0))
    content = json.loads(json.dumps(monitor.status().to_dict(), allow_nan=False))
    assert (content["alarm"], content["shift"]["raised"], content["audit"]["verdict"]) == (True, True, "undecided")
    assert content["estimate"]["includes_shifts"] is is_learned
    assert content["recent"]["meaning"] == "estimate, not guarantee"
    assert (content["guarantee"]["risk"], content["guarantee"]["delta"]) == (RISK, 0.01)
    text = str(monitor.status())
    assert "estimate, not guarantee" in text
    assert ("sampling only" in text) is not is_learned


def test_removed_labels_leave_no_trace(policy: Policy, tmp_path: Path) -> None:
    monitor = Monitor(policy)
    monitor.update(make_rows(2000, audit=0.2))
    labels = review(monitor, 0.3)
    kept = dict(list(labels.items())[::2])
    monitor.add_labels(kept)
    before, told = save(monitor, tmp_path), str(monitor.status())
    monitor.add_labels(labels)
    assert str(monitor.status()) != told
    assert monitor.remove_labels(labels.keys() - kept.keys()) == len(labels) - len(kept)
    assert (save(monitor, tmp_path), str(monitor.status())) == (before, told)
    assert monitor.remove_labels(labels.keys() - kept.keys()) == 0, "they are gone already"
    first, *_ = kept
    assert monitor.remove_labels([first, first]) == 1
    monitor.add_labels({first: (labels[first] + 1) % 4})
    assert next(audit for audit in monitor.audited if audit.id == first).label == (labels[first] + 1) % 4
    state = save(monitor, tmp_path)
    with pytest.raises(MonitoringError, match=r"nowhere\.jpg"):
        monitor.remove_labels([*kept, "nowhere.jpg"])
    assert save(monitor, tmp_path) == state, "nothing is taken back if one is unknown"
