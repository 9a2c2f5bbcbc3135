"""Unknown images: their share among reviewed images, and the alarm for its growth."""

import heapq
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, fisher_exact

from secondlook.arrays import BoolArray, Float64Array, IntArray, exact_interval
from secondlook.decisions import Answer
from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor
from secondlook.monitoring.unknown import (
    LOWEST_SHARES,
    SMALLEST_PERIOD,
    RejectedImage,
    UnknownShare,
    compare_periods,
    find_cuts,
    judge_unknown,
)
from tests.monitoring.streams import CLASSES, THRESHOLD, make_policy, make_rows

ALPHA = 0.05
POLICY = make_policy()


@pytest.mark.parametrize(("found", "images"), [(0, 1), (1, 1), (0, 30), (30, 30), (3, 40), (250, 1000)])
def test_interval_equals_scipy(found: int, images: int) -> None:
    expected = binomtest(found, images).proportion_ci(0.95, method="exact")
    assert exact_interval(found, images) == pytest.approx((expected.low, expected.high))


def compare_slowly(labels: list[bool | None]) -> dict[tuple[int, int], float]:
    """Return the adjusted p-value of each period in which the share is larger than before; None is not reviewed."""
    found: dict[tuple[int, int], float] = {}
    for level in itertools.count(1):
        length = SMALLEST_PERIOD * 2 ** (level - 1)
        if 2 * length > len(labels):
            return found
        for turn, end in enumerate(range(2 * length, len(labels) + 1, length), 1):
            start = end - length
            before, latest = sum(one is not False for one in labels[:start]), labels[start:end].count(True)
            if latest / length > before / start:
                table = np.array([[latest, length - latest], [before, start - before]])
                share = (turn**-0.5 - (turn + 1) ** -0.5) / (level * (level + 1))
                found[start, end] = fisher_exact(table, alternative="greater").pvalue / share
    raise AssertionError


@pytest.mark.parametrize(
    ("n_images", "share", "missing"), [(0, 0.1, 0), (99, 1, 0), (777, 0.1, 0.02), (2000, 0.3, 0.2)]
)
def test_periods_are_compared_by_exact_tests(n_images: int, share: float, missing: float) -> None:
    rng = np.random.default_rng(0)
    is_unknown, is_reviewed = rng.random(n_images) < share, rng.random(n_images) >= missing
    labels = [bool(one) if reviewed else None for one, reviewed in zip(is_unknown, is_reviewed, strict=True)]
    starts, ends, p_values = compare_periods(is_unknown & is_reviewed, is_reviewed)
    expected = compare_slowly(labels)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == list(expected)
    assert p_values == pytest.approx(list(expected.values()))


def test_p_value_is_the_smallest_of_all_comparisons() -> None:
    """Of all rejected images, and of those with less confidence, each with its share of alpha."""
    rng = np.random.default_rng(1)
    is_unknown, confidence = draw_rejected(rng, np.where(np.arange(800) < 400, 0.1, 0.15))
    found = judge(is_unknown, confidence, np.ones(800, dtype=np.bool_))
    groups = [is_unknown[confidence < share] for share in LOWEST_SHARES]
    p_values = [min(compare_slowly([bool(one) for one in group]).values()) for group in groups]
    assert found.p_value == pytest.approx(3 * min(p_values))
    assert ALPHA < found.p_value < 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0.02, 0.6), growth=st.floats(0, 0.4), missing=st.floats(0, 0.3))
def test_missing_labels_only_raise_p_values(seed: int, share: float, growth: float, missing: float) -> None:
    """So an alarm with some labels is an alarm with any further labels."""
    rng = np.random.default_rng(seed)
    is_unknown = rng.random(400) < share + growth * (np.arange(400) >= 200)
    is_reviewed = rng.random(400) >= missing
    p_values = [
        dict(zip(zip(starts.tolist(), ends.tolist(), strict=True), found.tolist(), strict=True))
        for starts, ends, found in (
            compare_periods(is_unknown & is_reviewed, is_reviewed),
            compare_periods(is_unknown, np.ones(400, dtype=np.bool_)),
        )
    ]
    few, all_ = p_values
    assert all(all_[period] <= value * (1 + 1e-9) for period, value in few.items())


# ---- Streams that people review


def review_queue(confidence: Float64Array, capacity: float, every: int = 100) -> IntArray:
    """Return when each image is reviewed, least confident first, a fraction `capacity` of each batch; -1 if never."""
    reviewed, left = np.full(len(confidence), -1), 0.0
    waiting: list[tuple[float, int]] = []
    for start in range(0, len(confidence), every):
        for place in range(start, min(start + every, len(confidence))):
            heapq.heappush(waiting, (confidence[place], place))
        left += capacity * every
        while waiting and left >= 1:
            reviewed[heapq.heappop(waiting)[1]] = start + every
            left -= 1
    return reviewed


def judge(is_unknown: BoolArray, confidence: Float64Array, is_reviewed: BoolArray) -> UnknownShare:
    parts = np.searchsorted(LOWEST_SHARES[:-1], confidence, side="right")
    labels = [
        None if not reviewed else int(Answer.NONE_OF_THESE) if unknown else 0
        for unknown, reviewed in zip(is_unknown, is_reviewed, strict=True)
    ]
    pairs = enumerate(zip(parts.tolist(), labels, strict=True), 1)
    return judge_unknown([RejectedImage(str(n), n, part, label) for n, (part, label) in pairs], [], alpha=ALPHA)


def draw_rejected(rng: np.random.Generator, shares: Float64Array) -> tuple[BoolArray, Float64Array]:
    """Return which images are unknown, with these probabilities, and confidences, lower for unknown ones."""
    is_unknown = rng.random(len(shares)) < shares
    return is_unknown, np.where(is_unknown, rng.beta(1, 1.5, len(shares)), rng.random(len(shares)))


@pytest.mark.parametrize("capacity", [1.0, 0.6])
def test_constant_share_rarely_raises_the_alarm(capacity: float) -> None:
    """Reviewers begin with the least confident images, may never come to the others, and look at each stage.

    An alarm at any time is one at the end, when the most labels are known.
    """
    rng, alarms, n_streams = np.random.default_rng(3), 0, 300
    for _ in range(n_streams):
        is_unknown, confidence = draw_rejected(rng, np.full(1600, 0.2))
        is_reviewed = review_queue(confidence, capacity) >= 0
        alarms += judge(is_unknown, confidence, is_reviewed).raised_at is not None
    assert alarms <= ALPHA * n_streams


def test_a_change_of_review_order_raises_no_alarm() -> None:
    """In the first half only confident images are reviewed, in the second half only the others."""
    rng, alarms = np.random.default_rng(4), 0
    for _ in range(100):
        is_unknown, confidence = draw_rejected(rng, np.full(1600, 0.2))
        is_reviewed = np.where(np.arange(1600) < 800, confidence > 0.6, confidence < 0.4)
        assert is_unknown[800:][is_reviewed[800:]].mean() > is_unknown[:800][is_reviewed[:800]].mean()
        alarms += judge(is_unknown, confidence, is_reviewed).raised_at is not None
    assert alarms == 0


@pytest.mark.parametrize(("capacity", "compared"), [(1.0, {0.25, 0.5, 1.0}), (0.6, {0.25, 0.5})])
def test_growth_is_detected_soon(capacity: float, compared: set[float]) -> None:
    rng, delays = np.random.default_rng(5), []
    for _ in range(20):
        is_unknown, confidence = draw_rejected(rng, np.where(np.arange(3000) < 1000, 0.02, 0.15))
        found = judge(is_unknown, confidence, review_queue(confidence, capacity) >= 0)
        assert found.raised_at is not None
        assert found.since is not None
        assert found.share_before is not None
        assert found.share_since is not None
        assert found.share_before < 0.08 < found.share_since
        assert found.compared in compared
        assert found.p_value <= ALPHA
        delays.append(found.raised_at - 1000)
    assert 0 < np.median(delays) <= 400


# ---- The monitor


def make_monitor(shares: tuple[float, ...] = (0.02, 0.5), n_images: int = 2500) -> tuple[Monitor, dict[str, str]]:
    """Return a monitor of consecutive streams, and labels with the given shares of unknown rejected images."""
    rng, monitor = np.random.default_rng(6), Monitor(POLICY)
    labels: dict[str, str] = {}
    for place, share in enumerate(shares):
        before = len(labels)
        monitor.update(make_rows(n_images, first=place * n_images, audit=0.1))
        audits = {audit.id: CLASSES[audit.predicted[0]] for audit in monitor.audited}
        for id_ in sorted(monitor.labels)[before:]:
            labels[id_] = audits.get(id_) or ("none of these" if rng.random() < share else "cat")
    return monitor, labels


def test_growth_alarm_reports_its_shares(tmp_path: Path) -> None:
    monitor, labels = make_monitor()
    assert monitor.status().unknown is None, "nothing is reviewed"
    monitor.add_labels(labels)
    status = monitor.status()
    unknown = status.unknown
    assert status.alarm
    assert not status.shift.raised
    assert unknown is not None
    assert unknown.raised_at is not None
    assert 2450 < unknown.raised_at < 3500
    found = sum(label == "none of these" for label in labels.values())
    assert (unknown.reviewed, unknown.none_of_these) == (len(labels), found)
    assert unknown.share == found / len(labels)
    content = json.loads(json.dumps(status.to_dict(), allow_nan=False))["unknown"]
    assert content == {"share": unknown.share, "raised": True, **unknown.model_dump()}
    for text in (status.verdict, str(status)):
        assert f"{unknown.since:,}" in text
        assert f"{unknown.raised_at:,}" in text
    windows = monitor.timeline()
    assert sum(window.none_of_these for window in windows) == found
    assert sum(window.reviewed for window in windows) == len(labels)
    assert windows[-1].none_of_these > 5 * windows[0].none_of_these
    quiet, labels = make_monitor((0.1, 0.1))
    quiet.add_labels(labels)
    assert not quiet.status().alarm


def test_answers_of_rejected_and_audited_images_are_counted() -> None:
    monitor = Monitor(POLICY)
    monitor.update(make_rows(1000, audit=0.2))
    audits, rejected = [audit.id for audit in monitor.audited], list(monitor.labels.keys())[len(monitor.audited) :]
    texts = ("none of these", "Bad Image", "cannot tell", "cat")
    assert monitor.add_labels(dict(zip(audits, texts, strict=False))) == 4
    assert monitor.add_labels(dict(zip(rejected, (*texts, *Answer), strict=False))) == 7
    status = monitor.status()
    assert [audit.wrong for audit in monitor.audited[:3]] == [True, True, None]
    assert status.audit is not None
    assert (status.audit.labels, status.audit.cannot_tell) == (3, 1)
    assert status.audit.pending == len(audits) - 4
    unknown = status.unknown
    assert unknown is not None
    assert (unknown.reviewed, unknown.none_of_these, unknown.bad_images, unknown.cannot_tell) == (8, 3, 3, 3)
    shown = [image.to_dict(names)["label"] for image in monitor.worst_images()[:2] for names in (None, CLASSES)]
    assert shown == ["bad image", "bad image", "none of these", "none of these"]


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 3000), max_size=4), seed=st.integers(0, 1000))
def test_label_order_and_updates_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seed: int
) -> None:
    """Labels come in any order, some again, some taken back, between updates and restarts."""
    folder = tmp_path_factory.mktemp("order")
    rows, rng = make_rows(3000, audit=0.05), np.random.default_rng(seed)
    whole, parts = Monitor(POLICY), Monitor(POLICY)
    whole.update(rows)
    labels = dict(zip(whole.labels, rng.choice([*CLASSES, *(one.text for one in Answer)], 3000).tolist(), strict=False))
    whole.add_labels(labels)
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(rows)]):
        parts.update(rows[start:stop])
        known = [id_ for id_ in parts.labels if id_ in labels]
        chosen = rng.permutation(known)[: len(known) // 2].tolist()
        parts.add_labels({id_: labels[id_] for id_ in chosen})
        parts.remove_labels(chosen[::3])
        parts.save(folder / "parts.json")
        parts = Monitor.load(folder / "parts.json", POLICY)
    parts.add_labels(dict(rng.permutation(list(labels.items())).tolist()))
    contents = []
    for monitor in (whole, parts):
        monitor.save(folder / "state.json")
        contents.append((folder / "state.json").read_bytes())
    assert contents[0] == contents[1]
    assert whole.status() == parts.status()


def test_state_of_a_rejected_image_is_small(tmp_path: Path) -> None:
    """And nothing of accepted images that are not audited."""
    sizes = []
    for threshold in (0.0, THRESHOLD):
        rows = [{**row, "accept": row["reason"] is None and row["confidence"] >= threshold} for row in make_rows(4000)]
        monitor = Monitor(make_policy(threshold=threshold))
        monitor.update([{**row, "audit": False, "audit_probability": 0.05} for row in rows])
        monitor.save(tmp_path / "state.json")
        sizes.append(((tmp_path / "state.json").stat().st_size, len(monitor.labels)))
    (few, none), (many, rejected) = sizes
    assert none == 0
    assert rejected > 500
    assert (many - few) / rejected < 40


def test_parts_are_shares_of_rejected_calibration_images() -> None:
    assert POLICY.reference is not None
    cuts = find_cuts(POLICY.reference, THRESHOLD)
    rejected = np.array([row["confidence"] for row in make_rows(20_000) if row["reason"] is None and not row["accept"]])
    assert (rejected[:, None] < cuts).mean(axis=0) == pytest.approx(LOWEST_SHARES[:-1], abs=0.06)
    assert list(find_cuts(POLICY.reference, 0.0)) == [0.0, 0.0], "nothing was rejected"


def test_state_of_an_earlier_version_is_an_error(tmp_path: Path) -> None:
    monitor, path = Monitor(POLICY), tmp_path / "state.json"
    monitor.update(make_rows(200))
    monitor.save(path)
    content: dict[str, Any] = json.loads(path.read_text())
    for name in ("rejected", "checksum"):
        del content[name]
    path.write_text(json.dumps(content | {"version": 1}))
    with pytest.raises(MonitoringError, match=r"state\.json.*version"):
        Monitor.load(path, POLICY)
