"""The watcher: the numbers of `secondlook monitor` from the rows of a database, despite restarts and failures."""

import csv
import itertools
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from prometheus_client.parser import text_string_to_metric_families

from secondlook.decisions import Answer
from secondlook.errors import MonitoringError
from secondlook.monitoring import monitor_scores, name_label
from secondlook.policies import Policy
from secondlook.serving import watcher
from secondlook.serving.alarms import AlarmBook, list_resets
from secondlook.serving.database import Database, decisions, events, images, open_database, reviews
from secondlook.serving.label_files import NewLabel
from secondlook.serving.store import ReviewStore
from secondlook.serving.watcher import StreamMonitor
from tests.monitoring.streams import CLASSES, RISK, Row, make_policy, write_parquet
from tests.serving.running import fail_with, wait_for
from tests.serving.streams import REVIEWER, FakeService, add_rows, list_audits, make_stream, review_all

Open = Callable[..., FakeService]
POLICY = make_policy()


@pytest.fixture
def watch(sqlite: Database, tmp_path: Path) -> Open:
    """A function that opens a service, with some options and another policy, on one database."""

    def open_service(policy: Policy = POLICY, **options: Any) -> FakeService:
        return FakeService(sqlite, tmp_path, policy, **options)

    return open_service


def read_anew(database: Database, folder: Path) -> StreamMonitor:
    """Return a monitor that never stopped: it reads everything from the database."""
    monitor = StreamMonitor(database, POLICY, ReviewStore(database, 300.0), folder)
    while monitor.read_images():
        pass
    monitor.read_labels()
    return monitor


def describe(stream: StreamMonitor) -> tuple[Any, ...]:
    monitor = stream.monitor
    return monitor.describe(), monitor.audited, monitor.timeline(), monitor.worst_images()


def run_monitor(database: Database, parts: list[tuple[list[Row], float]], folder: Path) -> Any:
    """Write rows as score files and the labels as CSV, and return the output of `secondlook monitor`."""
    folder.mkdir()
    POLICY.save(folder / "policy.json")
    for place, (rows, audit) in enumerate(parts):
        content = {"policy": json.loads(POLICY.model_dump_json()), "audit": audit}
        write_parquet(folder / f"{place:03d}.parquet", rows, {"secondlook.score": json.dumps(content)})
    known = {row["id"] for rows, _ in parts for row in rows}
    query = sa.select(decisions.c.id, reviews.c.label).join(reviews, reviews.c.number == decisions.c.number)
    found = [(row.id, name_label(row.label, CLASSES)) for row in database.fetch(query) if row.id in known]
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *found])
    patterns, labels = str(folder / "*.parquet"), folder / "labels.csv"
    result = monitor_scores(folder / "policy.json", patterns, folder / "out", reviewed=labels)
    return json.loads(json.dumps(result.to_dict()))


def test_numbers_are_those_of_the_monitor_command(watch: Open, sqlite: Database, tmp_path: Path) -> None:
    service = watch(audit=0.2)
    first = service.live.deployment
    parts = [
        (make_stream(1500, audit=0.2), 0.2),
        (make_stream(1000, first=1500, damage=1.0, audit=0.05), 0.05),
        (make_stream(200, first=2500, audit=0.2), 0.2),
    ]
    service.add(parts[0][0])
    service.look()
    service.decisions.deploy(make_policy(risk=0.1), 0.2)  # another policy for a while
    service.refresh()
    service.add(make_stream(300, first=5000, audit=0.2))
    assert service.look()["monitor"]["images"] == 294
    service.decisions.deploy(POLICY, 0.05)  # the first one again, with fewer audits
    service.refresh()
    service.add(parts[1][0])
    add_rows(sqlite, parts[2][0], first)  # by an instance that did not know it yet
    answers = [row["id"] for row in parts[0][0] if row["audit"] or not row["accept"]][::9]
    texts = itertools.cycle(Answer)
    service.reviews.add_labels([NewLabel("row", id_, next(texts)) for id_ in answers], REVIEWER.name)
    review_all(service, 0.1)
    status = json.loads(json.dumps(service.look()["monitor"]))
    expected = run_monitor(sqlite, parts, tmp_path / "export")
    assert expected["images"] == 1470 + 980 + 196
    assert expected["audit"]["labels"] > 200
    compared = ("images", "accepted", "coverage", "calibration_coverage", "guarantee", "shift", "estimate", "recent")
    assert expected["unknown"]["none_of_these"] > 5
    for name in (*compared, "audit", "audited", "auditable", "unknown", "alarm", "verdict", "next_step"):
        assert status[name] == expected[name], name
    assert status["wrong_images"]
    for image in status["wrong_images"]:
        assert image["predicted"][0] in CLASSES
        assert image["label"] in (*CLASSES, "none of these", "bad image")
        assert [image["label"]] != image["predicted"]
    plotted = status["timeline"]["windows"]
    for name, other in (("coverage", "coverage"), ("risk", "estimated_risk"), ("audit_high", "audited_risk_high")):
        assert [one[name] for one in plotted] == [one[other] for one in expected["windows"]]
    shares = [one["none_of_these"] / one["reviewed"] for one in expected["windows"]]
    assert [one["unknown"] for one in plotted] == shares


def test_many_labels_are_compared_less_often(watch: Open, sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "LABELS_PER_ROUND", 50)
    service = watch(audit=1.0)
    service.add(make_stream(80, audit=1.0))
    audits = list_audits(sqlite, [1])
    assert 50 <= len(audits) < 100
    found = []
    for number, predicted in audits[:4]:
        service.reviews.label(number, predicted, REVIEWER)
        found.append(service.look()["monitor"]["audit"]["labels"])
    assert found == [1, 1, 3, 3], "in every second round"


class WatchedStream(RuleBasedStateMachine):
    """Images, labels, undo, resets and restarts in any order, against a monitor that never stopped."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder / f"run{len(list(folder.iterdir()))}"
        (self.folder / "anew").mkdir(parents=True)
        self.database = open_database(self.folder)
        self.service = FakeService(self.database, self.folder, POLICY, audit=0.5)
        self.images = 0
        self.stream = self.open()

    def open(self) -> StreamMonitor:
        return StreamMonitor(self.database, POLICY, self.service.reviews, self.folder)

    @rule(count=st.integers(1, 60))
    def add(self, count: int) -> None:
        self.service.add(make_stream(count, first=self.images, audit=0.5))
        self.images += count

    @rule(wrong=st.booleans())
    def label(self, wrong: bool) -> None:
        for item in self.service.reviews.lease(REVIEWER, 1):
            self.service.reviews.label(item.number, (item.label + wrong) % 4, REVIEWER)

    @rule()
    def undo(self) -> None:
        last = self.service.reviews.find_last(REVIEWER.session)
        if last is not None:
            self.service.reviews.undo(last, REVIEWER)

    @rule()
    def reset_shift(self) -> None:
        book, resets = AlarmBook(self.database, None), len(list_resets(self.database, POLICY.checksum))
        book.update(1, POLICY.checksum, {"shift": "The images have changed."}, resets)
        book.reset_shift("Ada")

    @rule()
    def read_images(self) -> None:
        self.stream.read_images()

    @rule()
    def read_labels(self) -> None:
        """Also those of images that are not read yet."""
        self.stream.read_labels()

    @rule()
    def save(self) -> None:
        self.stream.save()

    @rule()
    def restart(self) -> None:
        """Nothing is saved on the way out."""
        self.stream = self.open()

    @invariant()
    def knows_no_more_than_there_is(self) -> None:
        assert self.stream.monitor.images <= self.images

    def teardown(self) -> None:
        while self.stream.read_images():
            pass
        self.stream.read_labels()
        assert describe(self.stream) == describe(read_anew(self.database, self.folder / "anew"))
        self.database.close()


def test_restarts_at_any_moment_change_nothing(tmp_path: Path) -> None:
    checks = list(HealthCheck)
    options = settings(max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(lambda: WatchedStream(tmp_path), settings=options)  # type: ignore[arg-type]


def test_state_is_saved_when_the_thread_stops_and_reused(watch: Open, sqlite: Database, tmp_path: Path) -> None:
    service = watch()
    service.add(make_stream(500, audit=None))
    assert service.watcher.find_problem() == "the service is starting"
    service.look()
    assert service.watcher.find_problem() is None
    assert not list(tmp_path.glob("monitor-*.json")), "a minute has not passed"
    service.watcher.status = {}
    service.watcher.start()
    wait_for(lambda: service.watcher.status)
    service.watcher.stop()
    assert service.watcher.status["monitor"]["images"] == 490
    again = StreamMonitor(sqlite, POLICY, service.reviews, tmp_path)
    assert (again.monitor.images, again.last) == (490, 490), "nothing was read from the database"
    assert not again.read_images()


@pytest.mark.parametrize("damage", ["cut", "other policy", "other database", "gone row", "not a file"])
def test_damaged_or_foreign_state_is_ignored(watch: Open, sqlite: Database, tmp_path: Path, damage: str) -> None:
    service = watch()
    service.add(make_stream(300, audit=None))
    read_anew(sqlite, tmp_path).save()
    (path,) = tmp_path.glob("monitor-*.json")
    policy = POLICY
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "other policy":
        policy = make_policy(risk=0.1)
        path.rename(path.with_name(f"monitor-{policy.checksum[:16]}.json"))
        service.decisions.deploy(policy, None)
    elif damage == "other database":
        with sqlite.write() as connection:
            connection.execute(sa.text("UPDATE settings SET value = '1' WHERE name = 'seed'"))
    elif damage == "gone row":
        with sqlite.write() as connection:
            for number in (events.c.image, reviews.c.number, decisions.c.number):
                connection.execute(sa.delete(number.table).where(number > 200))
    else:
        path.unlink()
        path.mkdir()
    found = StreamMonitor(sqlite, policy, service.reviews, tmp_path)
    assert (found.monitor.images, found.last) == (0, 0)


def test_throughput_and_coverage_are_those_of_all_instances(watch: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = watch(), watch()
    now = time.time() // 60 * 60 + 30.0  # in the middle of a minute, and it stays there
    monkeypatch.setattr(time, "time", lambda: now)
    rows = make_stream(306, audit=None)
    one.add(rows[:100], at=now - 20)
    other.look()
    other.add(rows[100:150], at=now - 50)
    one.add(rows[150:250], at=now - 30 * 60)
    other.add(rows[250:], at=now - 2 * 3600)
    status = one.look()
    throughput = status["throughput"]
    assert throughput["minute"] == {"images": 150, "per_second": 2.5}
    assert throughput["hour"]["images"] == 250
    assert throughput["hour"]["per_second"] == pytest.approx(250 / 3600, rel=0.02), "a minute that is not over"
    assert sum(minute["images"] for minute in throughput["minutes"]) == 250
    assert len(throughput["minutes"]) == 60
    starts = [datetime.fromisoformat(minute["start"]).timestamp() for minute in throughput["minutes"]]
    assert {later - earlier for earlier, later in itertools.pairwise(starts)} == {60}
    assert starts[-1] == now - 30
    accepted = sum(row["accept"] for row in rows)
    shares = {"coverage": accepted / 300, "looks_per_image": 2.0}
    assert status["decisions"] == {"images": 300, "accepted": accepted} | shares
    assert other.look()["throughput"] | {"hour": 0} == throughput | {"hour": 0}


def test_old_images_are_removed(watch: Open, sqlite: Database) -> None:
    service = watch(keep=100.0)
    service.add(make_stream(50, audit=None))
    with sqlite.write() as connection:
        (first, second, *_) = connection.execute(sa.select(reviews.c.number)).scalars()
        for number, age in ((first, 200), (second, 10)):
            values = {"number": number, "media_type": "image/png", "content": b"x", "stored_at": time.time() - age}
            connection.execute(sa.insert(images).values(**values))
    status = service.look()
    assert sqlite.fetch(sa.select(images.c.number)) == [(second,)]
    assert status["reviews"]["expired"] == 1


def test_watcher_survives_failures_and_policies_without_a_reference(
    watch: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = watch()
    service.add(make_stream(50, audit=None))
    for error in (MonitoringError("no such class"), ZeroDivisionError("private details")):
        with monkeypatch.context() as broken:
            broken.setattr(StreamMonitor, "read_images", fail_with(error))
            problem = service.look()["problem"]
            assert problem
            assert "private" not in problem
    assert service.look()["monitor"]["images"] == 49
    service = watch(make_policy(has_reference=False))
    status = service.look()
    assert status["monitor"] is None
    assert "Calibrate again" in status["monitor_missing"]
    assert (status["decisions"]["images"], status["problem"]) == (49, None)
    service.watcher.stop()


def test_metrics_have_the_numbers_of_the_status(watch: Open) -> None:
    service = watch(audit=0.3)
    assert b"secondlook_alarm" not in service.metrics.render(), "nothing is known yet"
    service.add(make_stream(500, audit=0.3) + make_stream(200, first=500, damage=3.0, audit=0.3))
    review_all(service, 0.3)
    status = service.look()
    service.worker.waiting = 7
    service.metrics.count_request("/v1/decide", 429, 0.01)
    service.metrics.overloads.inc()
    service.metrics.count_request("/v1/decide", 507, 0.01)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(service.metrics.render().decode())
        for sample in family.samples
    }
    monitor = status["monitor"]
    expected = {
        **dict.fromkeys(("alarm", "overloads_total", "storage_failures_total", "deployment", "guarantee_broken"), 1.0),
        "images_waiting": 7.0,
        "guaranteed_risk": RISK,
        "stream_images": float(monitor["images"]),
        "stream_coverage": monitor["coverage"],
        "shift_evidence_log10": monitor["shift"]["log10_evidence"],
        "shift_limit_log10": monitor["shift"]["log10_limit"],
        "estimated_risk": monitor["recent"]["risk"],
        "unknown_share": monitor["unknown"]["share"],
        "unknown_share_low": monitor["unknown"]["low"],
        "unknown_share_high": monitor["unknown"]["high"],
        "unknown_grown": 0.0,
        "audited_risk_low": monitor["audit"]["low"],
        "audited_risk_high": monitor["audit"]["high"],
    }
    for name, value in expected.items():
        assert samples[(f"secondlook_{name}",)] == pytest.approx(value), name
    assert samples["secondlook_reviews", "done"] == status["reviews"]["done"] > 50
    assert samples["secondlook_reviews", "waiting"] == 0
    assert samples["secondlook_policy_info", POLICY.checksum, "mean", status["version"]] == 1
    assert samples["secondlook_request_seconds_count", "/v1/decide", "429"] == 1
    assert [service.metrics.read_count(name) for name in ("overloads", "storage_failures")] == [1, 1]
