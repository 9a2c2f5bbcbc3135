"""Watching a real server, and changing its policy: status, metrics, health, and policies that are refused."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secondlook.monitoring import Monitor, recertify
from secondlook.policies import Policy, read_policy
from secondlook.serving import Client, ServiceOptions, tokens
from secondlook.serving.database import StorageError, StorageUnavailableError
from secondlook.serving.label_files import NewLabel
from secondlook.serving.store import DecisionStore
from tests.serving.running import Digits, Server, fail_with, make_noise, read_rows, send, send_image, serve, wait_for

OPENED: dict[str, Any] = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document", "Accept": "text/html"}
"""What a browser sends that opens an address."""


def make_other_policy(digits: Digits, *, threshold: float | None = None, **changes: Any) -> Policy:
    content = json.loads(digits.policy.read_bytes())
    del content["checksum"]
    del content["version"]
    content["threshold"] = content["threshold"] + 0.01 if threshold is None else threshold
    return Policy(**(content | changes))


def put_in_force(url: str, policy: Policy | bytes, **headers: str) -> Any:
    content = policy if isinstance(policy, bytes) else policy.model_dump_json().encode()
    return send(f"{url}/v1/policy", content, Content_Type="application/json", **headers)


def test_status_and_metrics_count_decisions(server: Server, digits: Digits) -> None:
    url, service = server
    replies = [send_image(url, file, f"digit {place}") for place, file in enumerate(digits.files[:60])]
    assert {reply.status for reply in replies} == {200}
    service.watcher.look()
    status = send(f"{url}/v1/status").json
    accepted = sum(reply.json["accept"] for reply in replies)
    assert status["decisions"]["images"] == 60
    assert (status["decisions"]["accepted"], status["monitor"]["accepted"]) == (accepted, accepted)
    waiting = sum(reply.json["review"] == "waiting" for reply in replies)
    audits = sum(reply.json["accept"] and reply.json["review"] == "waiting" for reply in replies)
    assert status["reviews"] == {
        "waiting": waiting,
        "audits": audits,
        "leased": 0,
        "disputed": 0,
        "done": 0,
        "expired": 0,
    }
    assert status["throughput"]["hour"]["images"] == 60
    assert status["policy"]["checksum"] == read_policy(digits.policy).checksum
    assert status["monitor"]["in_burn_in"]
    monitor = Monitor(read_policy(digits.policy))
    monitor.update([{**reply.json, "label": reply.json["label"]} for reply in replies])
    assert status["monitor"]["shift"] == json.loads(json.dumps(monitor.describe().to_dict()))["shift"]
    assert "timeline" in status["monitor"]
    assert "timeline" not in send(f"{url}/v1/status?timeline=false").json["monitor"]
    send(f"{url}/v1/decide", b"no image", Content_Type="text/plain")
    for place in range(2):  # any number of addresses makes few metrics
        send(f"{url}/v1/decisions/unknown{place}")
        send(f"{url}/nowhere/{place}")
    service.watcher.look()
    reply = send(f"{url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in reply.body.decode().splitlines() if not line.startswith("#"))
    assert float(lines['secondlook_decisions_total{outcome="accepted"}']) == accepted
    assert float(lines['secondlook_decisions_total{outcome="rejected"}']) == 60 - accepted
    assert float(lines["secondlook_looks_total"]) == sum(one.json["looks"] for one in replies)
    assert float(lines["secondlook_batch_size_sum"]) == float(lines["secondlook_stream_images"]) == 60
    assert float(lines["secondlook_images_waiting"]) == 0
    assert float(lines['secondlook_request_seconds_count{route="/v1/decide",status="200"}']) == 60
    assert float(lines['secondlook_request_seconds_count{route="/v1/decisions/{id_:path}",status="404"}']) == 2
    assert float(lines['secondlook_request_seconds_count{route="none",status="404"}']) == 2
    assert 'route="/v1/decide",status="415"' in reply.body.decode()


def test_metrics_count_refused_requests_and_disconnected_clients(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", max_waiting=1, max_body_bytes=100_000) as (url, service):
        assert send_image(url, bytes(100_001)).status == 413
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=120) as leaving:
            leaving.sendall(b"POST /v1/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc")
        service.worker.waiting = 1
        assert send_image(url, digits.files[0]).status == 429
        assert service.metrics.read_count("overloads") == 1
        service.tokens.add("camera", "client")  # so that tokens are checked
        for _ in range(tokens.MAX_CHECKS):
            service.tokens._checks.acquire()
        assert send_image(url, digits.files[0], Authorization="Bearer sl_0_x").status == 429
        assert service.metrics.read_count("overloads") == 1, "no images were waiting for the second one"
        found = wait_for(
            lambda: set(re.findall(r'seconds_count{.*status="(\d+)"}', service.metrics.render().decode())),
            lambda found: {"413", "429", "499"} <= found,
        )
        assert "500" not in found


def test_pages_and_errors_of_failing_databases(server: Server, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    url, service = server
    failed = "the database '/secret/service.db' failed"
    monkeypatch.setattr(service.database, "write", fail_with(StorageError(failed)))
    page = send(f"{url}/", **OPENED)
    assert (page.status, "set-cookie" in page.headers) == (200, False)
    reply = put_in_force(url, make_other_policy(digits))
    assert (reply.status, reply.code) == (507, "storage_failed"), "the policy is not to blame"
    assert b"secret" not in reply.body
    assert service.live.deployment.number == 1
    monkeypatch.setattr(service.database, "read", fail_with(StorageUnavailableError(failed)))
    reply = send(f"{url}/v1/decisions/a")
    assert (reply.status, reply.code) == (503, "storage_unavailable")
    assert int(reply.headers["retry-after"]) > 0
    assert b"secret" not in reply.body


def test_health_checks_and_data_routes_start_no_session(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, service = server
    service.watcher.look()
    for path in ("/v1/status", "/v1/policy", "/metrics"):
        assert send(url + path, **OPENED).status == 200
    assert read_rows(service.options.data_dir, "SELECT * FROM sessions") == []
    for path in ("/", "/review"):
        assert "set-cookie" in send(url + path, **OPENED).headers
    assert len(read_rows(service.options.data_dir, "SELECT * FROM sessions")) == 2
    assert send(f"{url}/healthz").json == {"status": "ok"}
    service.watcher.look()
    assert send(f"{url}/readyz").json == {"status": "ready"}

    with monkeypatch.context() as broken:
        broken.setattr("secondlook.serving.watcher.CHECK_SECONDS", 0.0)
        broken.setattr(service.database, "write", fail_with(StorageError("'service.db' failed: disk is full")))
        service.watcher.look()
        reply = send(f"{url}/readyz")
        assert (reply.status, reply.code) == (503, "not_ready")
        assert "database" in reply.json["error"]["message"]
        assert "service.db" not in reply.json["error"]["message"], "everyone may read it"
        assert send(f"{url}/healthz").status == 200
        status = send(f"{url}/v1/status").json
        assert "disk is full" in status["problem"]
        assert status["policy"]["deployment"] == 1, "what is known stays"
        service.watcher.look()
    service.watcher.look()
    assert send(f"{url}/readyz").status == 200
    assert send(f"{url}/v1/status").json["problem"] is None
    events = [(vars(one)["kind"], vars(one)["state"]) for one in caplog.records if one.getMessage() == "alarm"]
    assert events == [("storage", "raised"), ("storage", "resolved")], "once each"
    with monkeypatch.context() as silent:
        silent.setattr("secondlook.serving.watcher.SILENT_SECONDS", -1.0)
        assert "did not respond" in send(f"{url}/readyz").json["error"]["message"]
    service.worker.stop()
    reply = send(f"{url}/readyz")
    assert (reply.status, reply.code) == (503, "not_ready"), "a thread has ended"


def test_policies_are_refused_or_decide_about_the_next_images(server: Server, digits: Digits) -> None:
    url, service = server
    intact = digits.policy.read_bytes()
    content = json.loads(intact)
    old = {name: value for name, value in content.items() if name != "checksum"} | {"version": 2}
    other = make_other_policy(digits, classifier={**content["classifier"], "digest": "0" * 64})
    for body, status, code, word in (
        *((broken, 400, "policy", "JSON") for broken in (b"", b"\xff\xd8", b"[1, 2]", intact[:-200], b"[" * 100_000)),
        (b'{"a": 1}', 422, "policy_changed", "checksum"),
        (json.dumps({**content, "threshold": 0.0}).encode(), 422, "policy_changed", "checksum"),
        (json.dumps(old).encode(), 422, "policy_changed", "checksum"),
        (b" " * 10_000_000 + intact, 413, "policy_too_large", "bytes"),
        (other.model_dump_json().encode(), 422, "policy", "classifier"),
    ):
        reply = put_in_force(url, body)
        assert (reply.status, reply.code) == (status, code), body[:50]
        assert word in reply.json["error"]["message"]
        assert len(reply.json["error"]["message"]) < 400
    assert len(service.decisions.list_deployments()) == service.live.deployment.number == 1
    before = send_image(url, digits.files[0], "before").json
    other = make_other_policy(digits, threshold=2.0, guarantee=None)  # accepts nothing
    reply = put_in_force(url, other)
    assert (reply.status, reply.json["checksum"], reply.json["deployment"]) == (200, other.checksum, 2)
    after = send_image(url, digits.files[0], "after").json
    assert (before["accept"], after["accept"]) == (True, False)
    assert (after["policy"], after["confidence"]) == (other.checksum, before["confidence"])
    assert send(f"{url}/v1/decisions/before").json["policy"] == before["policy"] != after["policy"]
    assert send_image(url, digits.files[0], "before").json["policy"] == before["policy"], "a repeated request"
    service.watcher.look()
    status = send(f"{url}/v1/status").json
    assert [(one["images"], one["audit"]) for one in status["deployments"]] == [(1, 0.2), (1, 0.2)]
    assert [one["guarantee"] for one in status["deployments"]] == [{"risk": 0.05, "delta": 0.1}, None]
    assert status["policy"] == {name: status["deployments"][1][name] for name in status["policy"]}
    assert status["monitor"]["images"] == 1
    file = send(f"{url}/v1/policy").body
    assert not Policy.model_validate_json(file).was_changed
    assert Policy.model_validate_json(file) == other


def test_permissions_to_watch_and_to_change_the_policy(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        made = {role: service.tokens.add(role, role) for role in ("client", "reviewer", "admin")}
        service.watcher.look()
        assert send(f"{url}/healthz").status == send(f"{url}/readyz").status == 200, "probes have no token"
        for path in ("/v1/status", "/metrics", "/v1/policy"):
            assert send(url + path).status == 401, path
            for role, token in made.items():
                assert send(url + path, Authorization=f"Bearer {token}").status == 200, (path, role)
        for role, expected in (("client", 403), ("reviewer", 403), ("admin", 200)):
            reply = put_in_force(url, make_other_policy(digits), Authorization=f"Bearer {made[role]}")
            assert reply.status == expected, role
        assert put_in_force(url, digits.policy.read_bytes()).status == 401


def test_restart_keeps_the_newest_policy(digits: Digits, tmp_path: Path) -> None:
    other = make_other_policy(digits)
    with serve(digits.policy, tmp_path / "service") as (url, _):
        first = send_image(url, digits.files[0], "first")
        put_in_force(url, other)
    with serve(digits.policy, tmp_path / "service") as (url, service):
        again = [send_image(url, digits.files[0], "first") for _ in range(2)]
        assert [reply.headers["Idempotent-Replay"] for reply in (first, *again)] == [None, "true", "true"]
        assert first.json == again[0].json == again[1].json
        assert service.live.deployment.policy.checksum == other.checksum
        assert send_image(url, digits.files[1], "second").json["policy"] == other.checksum
        service.watcher.look()
        assert send(f"{url}/v1/status").json["monitor"]["images"] == 1
    newest = make_other_policy(digits, threshold=0.5)
    newest.save(digits.policy.parent / "newest.json")
    with serve(digits.policy.parent / "newest.json", tmp_path / "service") as (_, service):
        assert service.live.deployment.policy.checksum == newest.checksum, "a file that was never in force is new"
    rows = read_rows(tmp_path / "service", "SELECT deployment FROM decisions ORDER BY number")
    assert rows == [(1,), (2,)]


def test_instances_share_a_postgresql_database(digits: Digits, tmp_path: Path, postgres_url: str) -> None:
    other = make_other_policy(digits)
    with (
        serve(digits.policy, tmp_path / "one", database=postgres_url) as (one, _),
        serve(digits.policy, tmp_path / "two", database=postgres_url) as (two, second),
    ):
        made = send_image(one, digits.files[0], "first").json
        again = send_image(two, digits.files[0], "first")
        assert (again.json, again.headers["Idempotent-Replay"]) == (made, "true")
        assert put_in_force(one, other).status == 200
        second.watcher.look()
        assert send_image(two, digits.files[1], "second").json["policy"] == other.checksum
        second.watcher.look()
        status = send(f"{two}/v1/status").json
        assert sum(minute["images"] for minute in status["throughput"]["minutes"]) == 2, "of both instances"
        assert [part["images"] for part in status["deployments"]] == [1, 1]


def test_running_service_can_be_read(server: Server, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is decided and labeled while the others are read has no label without a row."""
    url, service = server
    read = DecisionStore.iter_score_tables

    def go_on(*values: Any, **named: Any) -> Iterator[Any]:
        yield from read(*values, **named)
        id_ = f"late {len(service.decisions.find(['late 0']))}"
        send_image(url, make_noise(seed=1), id_)
        service.reviews.add_labels([NewLabel("row", id_, 1)], "Ada")

    send_image(url, make_noise(), "early")
    service.reviews.add_labels([NewLabel("row", "early", 1)], "Ada")
    monkeypatch.setattr(DecisionStore, "iter_score_tables", go_on)
    found = service.options.read_reviews()
    assert service.decisions.find(["late 0"])
    assert "early" in found.labels
    assert found.labels.keys() <= {id_ for table in found.tables for id_ in table["id"].to_pylist()}


def test_policy_made_from_the_reviews_can_be_put_in_force(digits: Digits, tmp_path: Path) -> None:
    """The whole loop in Python: decide, review, calibrate again, swap."""
    ids = [str(place) for place in range(300)]
    with serve(digits.policy, tmp_path / "service", audit=1.0) as (url, service), Client(url, timeout=240) as client:
        client.decide_many(digits.files[:300], ids)
        labels = zip(ids, digits.labels[:300], strict=True)
        service.reviews.add_labels([NewLabel("row", id_, label) for id_, label in labels], "Ada")
        found = ServiceOptions(tmp_path / "service").read_reviews()
        assert (sum(map(len, found.tables)), len(found.labels), found.left_out) == (300, 300, 0)
        made = recertify(found.policy, found.tables, found.labels).policy
        assert put_in_force(url, made).status == 200
        assert client.decide(digits.files[-1]).policy == made.checksum
        assert read_policy(digits.policy).known_classifier.digest == made.known_classifier.digest
