"""Tests of the log: one line of JSON per request, and what unexpected exceptions become."""

import json
import logging
import re
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from secondlook.serving.middleware import JsonFormatter, RequestLog, configure_logging
from secondlook.serving.service_metrics import ServiceMetrics
from secondlook.serving.tokens import Principal
from tests.serving.asgi import call


@pytest.fixture
def app() -> FastAPI:
    made = FastAPI()

    @made.get("/fine")
    @made.get("/healthz")
    def succeed(request: Request) -> None:
        request.state.principal = Principal("Anna", "admin", "session")

    @made.get("/broken")
    @made.get("/v2/broken")
    def fail() -> None:
        raise ValueError("the secret reason")

    made.add_middleware(RequestLog, metrics=ServiceMetrics())
    return made


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """A function that returns what was logged, as it would be written."""
    caplog.set_level(logging.INFO)
    formatter = JsonFormatter()
    ours = "secondlook.serving.middleware"
    return lambda: [json.loads(formatter.format(record)) for record in caplog.records if record.name == ours]


def test_a_request_is_a_line(app: FastAPI, lines: Any) -> None:
    reply = call(app, "GET", "/fine?token=secret", {"Authorization": "Bearer secret"})
    (line,) = lines()
    assert reply.headers["x-request-id"] == line["id"]
    assert line.pop("ms") >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    expected = {"method": "GET", "path": "/fine", "status": 200, "principal": "Anna"}
    assert line == {"level": "info", "event": "request", "id": line["id"], **expected}


def test_what_other_packages_add_to_records_is_left_out(
    app: FastAPI, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_record(*values: Any, **named: Any) -> logging.LogRecord:
        record = logging.LogRecord(*values, **named)
        record._added = "by Ray, for example"
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", make_record)
    call(app, "GET", "/fine")
    assert [name for name in lines()[0] if name.startswith("_")] == []


def test_health_checks_are_not_logged(app: FastAPI, lines: Any) -> None:
    assert call(app, "GET", "/healthz").status == 200
    assert lines() == []


def test_an_unexpected_exception_is_an_error_without_details(app: FastAPI, lines: Any) -> None:
    reply, of_protocol = call(app, "GET", "/broken"), call(app, "GET", "/v2/broken")
    assert (reply.status, reply.code) == (500, "internal")
    assert isinstance(of_protocol.json["error"], str)
    assert b"secret" not in reply.body
    exception, request, *_ = lines()
    assert "the secret reason" in exception["exception"]
    assert exception["id"] == request["id"] == reply.headers["x-request-id"]
    assert (exception["level"], request["level"], request["status"]) == ("error", "error", 500)


def test_a_client_that_leaves_is_no_error(lines: Any) -> None:
    async def read(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ClientDisconnect

    async def ignore(_message: Message) -> None: ...

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    import asyncio

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(RequestLog(read, ServiceMetrics())(scope, nothing, ignore))
    (line,) = lines()
    assert (line["level"], line["status"]) == ("info", None)


def test_a_response_that_began_is_not_continued_by_an_error(lines: Any) -> None:
    async def break_off(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise ValueError

    assert call(RequestLog(break_off, ServiceMetrics()), "GET", "/").body == b"a"
    assert [line["event"] for line in lines()] == ["exception", "request"]


def test_all_that_happens_in_a_service_is_json() -> None:
    code = """
import logging, threading, warnings
from secondlook.serving.middleware import configure_logging
with configure_logging():
    warnings.warn("two\\nlines")
    logging.getLogger("python_multipart").warning("from %s", "elsewhere")
    logging.getLogger("secondlook.serving").info("ours")
    thread = threading.Thread(target=lambda: 1 / 0, name="worker")
    thread.start()
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    warning, other, own, ended = map(json.loads, done.stderr.splitlines())
    assert warning["level"] == "warning"
    assert "UserWarning: two\nlines" in warning["event"]
    assert (other["event"], own["event"]) == ("from elsewhere", "ours")
    assert (ended["level"], ended["ended_thread"]) == ("error", "worker")
    assert "ZeroDivisionError" in ended["exception"]


def test_logging_is_as_it_was_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    root, hook, show = logging.getLogger(), threading.excepthook, warnings.showwarning
    handlers = list(root.handlers)
    with configure_logging(quiet=True), configure_logging():
        logging.getLogger("secondlook").info("told")
    assert (root.handlers, threading.excepthook, warnings.showwarning) == (handlers, hook, show)
    assert json.loads(capsys.readouterr().err)["event"] == "told"


def test_lines_are_printable_ascii_whatever_a_client_sends() -> None:
    try:
        raise ValueError("\x1b[31m\x7f\n")
    except ValueError as error:
        values: dict[str, Any] = {"levelname": "ERROR", "msg": "x\ny\u2028", "path": "\x1b\x7fé\udcff"}
        record = logging.makeLogRecord({**values, "exc_info": (ValueError, error, None)})
    line = JsonFormatter().format(record)
    assert re.fullmatch(r"[\x20-\x7e]+", line)
    assert json.loads(line)["path"] == "\x1b\x7fé\udcff"
    assert "ValueError" in json.loads(line)["exception"]
