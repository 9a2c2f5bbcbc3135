"""Alarms: recorded once, acknowledged, reset, and the state that the dashboard shows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from secondlook import Monitor
from secondlook.errors import SecondLookError
from tests.monitoring.streams import make_policy
from tests.serving.running import Digits, send, serve
from tests.serving.streams import REVIEWER, FakeService, list_audits, make_reviewer, make_stream, review_all

POLICY = make_policy()
Open = Callable[..., FakeService]


@pytest.fixture
def watch(database: Any, tmp_path: Path) -> Open:
    """A function that opens an instance, in a folder of its own."""

    def open_service(name: str = "one", **options: Any) -> FakeService:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return FakeService(database, folder, options.pop("policy", POLICY), **{"audit": 0.2, **options})

    return open_service


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secondlook.serving.alarms.SETTLE_SECONDS", 0.0)


def damage(service: FakeService, first: int = 0) -> None:
    """Add images that look different."""
    service.add(make_stream(700, first=first, damage=3.0, audit=0.2))


def list_alarms(service: FakeService) -> list[tuple[str, bool]]:
    """Return the kind of each alarm, newest first, and whether it is open."""
    found = service.look()["alarms"]
    return [(one["kind"], one["resolved_at"] is None) for one in sorted(found, key=lambda one: -one["number"])]


def test_alarm_is_recorded_once_for_all_instances_and_restarts(watch: Open) -> None:
    one, other = watch("one"), watch("other")
    assert list_alarms(one) == []
    damage(one)
    assert list_alarms(one) == list_alarms(other) == list_alarms(watch("new")) == [("shift", True)]
    (alarm,) = one.watcher.status["alarms"]
    raised_at = one.watcher.status["monitor"]["shift"]["raised_at"]
    assert f"{raised_at:,} images" in alarm["text"]
    assert (alarm["policy"], alarm["acknowledged_by"], alarm["reset_by"]) == (POLICY.checksum, None, None)


def test_verdict_that_changes_resolves_the_alarm_once_it_stays_away(
    watch: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = watch()
    service.add(make_stream(600, audit=0.2))
    review_all(service, 0.5)
    assert list_alarms(service) == [("broken", True)]
    service.reviews.withdraw(REVIEWER.name, make_reviewer("admin"))
    assert list_alarms(service) == [("broken", True)], "another instance may know more labels"
    monkeypatch.setattr("secondlook.serving.alarms.SETTLE_SECONDS", 0.0)
    assert list_alarms(service) == [("broken", False)]
    for number, predicted in list_audits(service.database, [1]):
        service.reviews.label(number, (predicted + number % 2) % 4, make_reviewer("Bob"))
    assert list_alarms(service) == [("broken", True), ("broken", False)], "another event"


def test_new_policy_resolves_all_alarms_and_a_late_instance_raises_none(watch: Open) -> None:
    one, late = watch("one"), watch("late")
    damage(one)
    assert list_alarms(one) == [("shift", True)]
    one.decisions.deploy(make_policy(risk=0.1), 0.2)
    late.refresh = lambda: None  # type: ignore[method-assign]
    assert list_alarms(late) == [("shift", True)], "it does not know the new policy"
    one.refresh()
    assert list_alarms(one) == list_alarms(late) == [("shift", False)]


def test_first_acknowledgment_is_kept(watch: Open) -> None:
    service = watch()
    book = service.watcher.alarms
    with pytest.raises(SecondLookError, match="no open alarm"):
        book.acknowledge("shift", "Ada", None)
    damage(service)
    service.look()
    given = book.acknowledge("shift", "Ada", "the camera was moved")
    assert book.acknowledge("shift", "Bob", None) == given
    assert (given["acknowledged_by"], given["note"]) == ("Ada", "the camera was moved")
    (shown,) = service.look()["alarms"]
    assert shown == given
    with pytest.raises(SecondLookError, match="broken"):
        book.acknowledge("broken", "Ada", None)


def test_reset_starts_the_shift_alarm_anew_on_all_instances(watch: Open) -> None:
    one, other = watch("one"), watch("other")
    with pytest.raises(SecondLookError, match="no open alarm"):
        one.watcher.alarms.reset_shift("Ada")
    damage(one)
    assert list_alarms(one) == list_alarms(other) == [("shift", True)]
    images = one.watcher.status["monitor"]["images"]
    given = one.watcher.alarms.reset_shift("Ada")
    assert (given["reset_by"], given["reset_after"]) == ("Ada", images)
    assert not one.look()["monitor"]["shift"]["raised"], "without waiting for an image"
    # One instance reads the images after the reset in one block, one in two, and one reads all anew.
    rows = make_stream(400, first=700, audit=0.2)
    one.add(rows[:100])
    one.look()
    one.add(rows[100:])
    anew = watch("anew")
    reference = Monitor(POLICY, seed=1)
    reference.update(rows)
    for service in (one, other, anew):
        shift = service.look()["monitor"]["shift"]
        assert shift["log10_evidence"] == reference.describe().shift.log10_evidence
        assert (shift["raised"], service.watcher.status["monitor"]["images"]) == (False, images + len(rows))
        assert [one for _, one in list_alarms(service)] == [False]
    damage(one, first=2000)
    reference.update(make_stream(700, first=2000, damage=3.0, audit=0.2))
    raised_at = images + (reference.describe().shift.raised_at or 0)
    for service in (one, other, anew):
        assert service.look()["monitor"]["shift"]["raised_at"] == raised_at
    assert list_alarms(one) == [("shift", True), ("shift", False)]
    anew.watcher.stop()
    assert watch("anew").look()["monitor"] == anew.watcher.status["monitor"], "from the saved state"
    with one.database.write() as connection:
        connection.execute(sa.text("DELETE FROM alarms"))
    assert watch("anew").look()["monitor"]["shift"]["raised_at"] < images, "a state with unknown resets is ignored"


def test_instance_that_does_not_know_a_reset_yet_raises_no_alarm(watch: Open) -> None:
    one, late = watch("one"), watch("late")
    damage(one)
    one.look()
    late.look()
    stream = late.watcher._stream
    assert stream is not None
    one.watcher.alarms.reset_shift("Ada")
    assert stream.monitor.describe().shift.raised
    late.watcher._update_alarms()  # as if the reset came while it was reading images
    assert list_alarms(late) == [("shift", False)]


def test_reset_does_not_touch_a_broken_guarantee(watch: Open, settled: None) -> None:
    service = watch()
    service.add(make_stream(600, audit=0.2))
    damage(service, first=600)
    review_all(service, 0.5)
    assert sorted(list_alarms(service)) == [("broken", True), ("shift", True)]
    audit = service.watcher.status["monitor"]["audit"]
    service.watcher.alarms.reset_shift("Ada")
    assert sorted(list_alarms(service)) == [("broken", True), ("shift", False)]
    assert service.watcher.status["state"] == "broken"
    assert service.watcher.status["monitor"]["audit"] == audit


def test_state_of_every_stream(watch: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    service = watch(audit=1.0)
    assert service.look()["state"] == "not checked yet", "no images"
    service.add(make_stream(300, audit=1.0))
    assert service.look()["state"] == "not checked yet", "no labels"
    number, predicted = list_audits(service.database, [1])[0]
    service.reviews.label(number, predicted, REVIEWER)
    assert service.look()["state"] == "not checked yet", "0 % to 100 %"
    for number, predicted in list_audits(service.database, [1])[1:30]:
        service.reviews.label(number, predicted, REVIEWER)
    assert service.look()["state"] == "undecided"
    review_all(service, 0.0)
    assert service.look()["state"] == "holds"
    service.add(make_stream(700, first=5000, damage=3.0, audit=1.0))
    assert service.look()["state"] == "images changed"
    review_all(service, 0.9)
    assert service.look()["state"] == "broken"
    with monkeypatch.context() as failing:
        failing.setattr(service, "refresh", lambda: 1 / 0)
        assert service.look()["state"] == "problem"
    assert watch(policy=make_policy(has_reference=False)).look()["state"] == "not checked yet"


def test_windows_have_the_times_of_their_first_images(
    watch: Open, monkeypatch: pytest.MonkeyPatch, database: Any
) -> None:
    monkeypatch.setattr("secondlook.monitoring.monitor.MAX_WINDOWS", 4)
    service, at = watch(), 1_700_000_000.0
    for part in range(12):
        if part == 5:  # another policy for a while
            service.decisions.deploy(make_policy(risk=0.1), 0.2)
            service.refresh()
            service.add(make_stream(300, first=90_000, audit=0.2), at=at + 5050)
            service.decisions.deploy(POLICY, 0.2)
            service.refresh()
        service.add(make_stream(310, first=310 * part, audit=0.2), at=at + 1000 * part)
        service.look()
    times = database.fetch(sa.text("SELECT decided_at FROM decisions WHERE deployment != 2 ORDER BY number"))
    for found in (service, watch("anew")):
        timeline = found.look()["monitor"]["timeline"]
        starts = [window["start"] for window in timeline["windows"]]
        assert len(starts) < 5
        assert timeline["times"] == [times[start][0] for start in starts] + [times[-1][0]]


def test_wrong_images_have_their_reviews(watch: Open, database: Any) -> None:
    service = watch(audit=1.0)
    service.add(make_stream(50, audit=1.0))
    number, predicted = list_audits(database, [1])[3]
    service.reviews.label(number, (predicted + 1) % 4, REVIEWER)
    (wrong,) = service.look()["monitor"]["wrong_images"]
    assert (wrong["number"], wrong["reviewer"], wrong["has_image"]) == (number, "Ada", False)
    assert wrong["reviewed_at"].startswith("20")


def test_permissions_and_csrf_of_the_routes(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        made = {role: service.tokens.add(role, role) for role in ("client", "reviewer", "admin")}
        acknowledge, reset = (f"{url}/v1/alarms/{path}" for path in ("shift/acknowledge", "shift/reset"))

        def post(address: str, role: str, body: object = None) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {made[role]}", "Content-Type": "application/json"}
            reply = send(address, json.dumps(body).encode(), method="POST", **headers)
            return reply.status, reply.json

        assert send(acknowledge, b"{}").status == send(reset, b"{}").status == 401
        assert [post(acknowledge, role, {})[0] for role in made] == [403, 404, 404]
        assert [post(reset, role)[0] for role in made] == [403, 403, 404]
        assert post(acknowledge, "admin", {})[1]["error"]["code"] == "no_alarm"
        assert post(f"{url}/v1/alarms/storage/acknowledge", "admin", {})[0] == 422
        service.watcher.alarms.update(1, service.live.deployment.checksum, {"shift": "The images have changed."}, 0)
        for note in ("x" * 501, "\0", 5):
            assert post(acknowledge, "reviewer", {"note": note})[0] == 422
        status, shown = post(acknowledge, "reviewer", {"note": "seen <b>"})
        assert (status, shown["acknowledged_by"], shown["note"]) == (200, "reviewer", "seen <b>")
        assert post(reset, "reviewer")[0] == 403
        status, shown = post(reset, "admin")
        assert (status, shown["reset_by"], shown["reset_after"]) == (200, "admin", 0)
    with serve(digits.policy, tmp_path / "open") as (url, _):
        for path in ("shift/acknowledge", "shift/reset"):
            reply = send(f"{url}/v1/alarms/{path}", b"{}", Origin=url, Content_Type="application/json")
            assert (reply.status, reply.code) == (403, "csrf"), "a page of the browser without the token"
