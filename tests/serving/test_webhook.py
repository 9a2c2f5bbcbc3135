"""The webhook: one request for each event, in the background, without secrets in logs."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest

from secondlook.errors import ServingError
from tests.monitoring.streams import make_policy
from tests.serving.running import Digits, send, send_image, serve, wait_for
from tests.serving.streams import FakeService, make_stream

TEXT_SECRETS = ("hunter2", "T0KEN", "aHVudGVy")


@dataclass
class Receiver:
    """A server that records requests, and answers with the given statuses, then 204."""

    statuses: list[int] = field(default_factory=list)
    requests: SimpleQueue[tuple[str, Message, Any]] = field(default_factory=SimpleQueue)
    may_answer: Event = field(default_factory=Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://ada:hunter2@127.0.0.1:{self.port}/hooks/T0KEN?key=T0KEN"

    def get(self) -> Any:
        """Wait for the next request, and return its body."""
        return self.requests.get(timeout=120)[2]


@contextmanager
def receive(*statuses: int) -> Iterator[Receiver]:
    receiver = Receiver(list(statuses))
    receiver.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.requests.put((self.path, self.headers, body))
            receiver.may_answer.wait(120)
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secondlook.serving.webhook.PAUSES", (0.0, 0.0))


def open_instance(database: Any, folder: Path, url: str) -> FakeService:
    folder.mkdir(exist_ok=True)
    return FakeService(database, folder, make_policy(), audit=0.2, webhook=url)


def test_each_event_is_sent_once_across_instances_and_restarts(database: Any, tmp_path: Path) -> None:
    with receive() as receiver:
        one, other = (open_instance(database, tmp_path / name, receiver.url) for name in ("one", "other"))
        one.add(make_stream(700, damage=3.0, audit=0.2))
        for service in (one, other, one, open_instance(database, tmp_path / "one", receiver.url)):
            service.look()
        path, headers, raised = receiver.requests.get(timeout=120)
        assert path == "/hooks/T0KEN?key=T0KEN"
        assert headers["Authorization"] == "Basic YWRhOmh1bnRlcjI="
        assert headers["Content-Type"] == "application/json"
        assert (raised["kind"], raised["state"], raised["path"]) == ("shift", "raised", "/")
        assert raised["policy"] == make_policy().checksum
        assert raised["time"].endswith("+00:00")
        assert raised["text"] == one.watcher.status["alarms"][0]["text"]
        other.watcher.alarms.reset_shift("Ada")
        for service in (one, other):
            service.look()
        resolved = receiver.get()
        assert (resolved["kind"], resolved["state"], resolved["alarm"]) == ("shift", "resolved", raised["alarm"])
        for service in (one, other):
            service.watcher.stop()
        assert receiver.requests.empty()


@pytest.mark.parametrize(
    ("statuses", "attempts"),
    [((503, 429), 3), ((503, 503, 503, 503), 3), ((404,), 1), ((302,), 1), ((204,), 1)],
)
def test_temporary_failures_are_repeated_a_few_times(
    statuses: tuple[int, ...], attempts: int, sqlite: Any, tmp_path: Path
) -> None:
    with receive(*statuses) as receiver:
        alarms = open_instance(sqlite, tmp_path, receiver.url).watcher.alarms
        for problem in ("The disk is full.", None, None):
            alarms.report_storage(problem)
        found = [receiver.get() for _ in range(attempts + 1)]
        assert [one["state"] for one in found[:attempts]] == ["raised"] * attempts
        assert found[-1]["state"] == "resolved", "in order, also after a failure"
        assert {one["kind"] for one in found} == {"storage"}
        alarms.close()
        assert receiver.requests.empty() or statuses[-1] == 503, "no redirect was followed"


def test_slow_receiver_blocks_neither_decisions_nor_the_watcher(digits: Digits, tmp_path: Path) -> None:
    with receive() as receiver:
        receiver.may_answer.clear()
        with serve(digits.policy, tmp_path / "service", webhook=receiver.url) as (url, service):
            service.watcher.alarms.update(1, service.live.deployment.checksum, {"shift": "The images changed."}, 0)
            assert receiver.get()["kind"] == "shift"
            assert send_image(url, digits.files[0]).status == 200
            service.watcher.look()
            assert send(f"{url}/v1/status").json["decisions"]["images"] == 1
            receiver.may_answer.set()


def test_unreachable_receiver_is_logged_without_secrets(
    caplog: pytest.LogCaptureFixture, sqlite: Any, tmp_path: Path
) -> None:
    with receive() as receiver:
        url = receiver.url
    service = open_instance(sqlite, tmp_path, url)
    with caplog.at_level(logging.DEBUG):
        service.add(make_stream(700, damage=3.0, audit=0.2))
        status = service.look()
        wait_for(
            lambda: [one for one in caplog.records if one.getMessage() == "webhook failed"], lambda one: len(one) == 3
        )
        service.watcher.stop()
    assert {getattr(one, "host", None) for one in caplog.records} == {None, "127.0.0.1"}
    shown = json.dumps([*(str(one.__dict__) for one in caplog.records), status, repr(service.options)])
    assert not any(secret in shown for secret in TEXT_SECRETS)


@pytest.mark.parametrize(
    "url", ["", "hooks.example.org/T0KEN", "ftp://a:hunter2@b/", "file:///etc/passwd", "http://", "http://[T0KEN"]
)
def test_other_addresses_are_refused_without_repeating_them(url: str, sqlite: Any, tmp_path: Path) -> None:
    with pytest.raises(ServingError) as caught:
        open_instance(sqlite, tmp_path, url)
    assert not any(secret in str(caught.value) for secret in TEXT_SECRETS)
