"""What every request passes: bounds on its body, and the log with one line of JSON per request."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Form, Request
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from secondlook.serving import ServiceOptions, middleware
from secondlook.serving.middleware import JsonFormatter, RequestLimits, RequestLog, configure_logging
from secondlook.serving.service_metrics import ServiceMetrics
from tests.serving.running import call, exchange
from tests.serving.streams import make_reviewer

LIMIT = 1000
START = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.fixture(autouse=True, scope="module")
def short_drain() -> Iterator[None]:
    """A time that tests can wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "DRAIN_SECONDS", 0.01)
        yield


def make_options(**options: Any) -> ServiceOptions:
    return ServiceOptions(Path("unused"), **{"max_body_bytes": LIMIT, **options})


def make_limited_app(**options: Any) -> FastAPI:
    app = FastAPI()

    @app.post("/length")
    async def measure(request: Request) -> dict[str, int]:
        return {"length": len(await request.body())}

    @app.post("/v2/form")
    def read_form(text: str = Form()) -> str:
        return text

    app.add_middleware(RequestLimits, options=make_options(**options))
    return app


class TestLimits:
    @given(pieces=st.lists(st.binary(max_size=600), min_size=1, max_size=5))
    def test_body_is_accepted_if_all_chunks_are_within_the_limit(self, pieces: list[bytes]) -> None:
        length = sum(map(len, pieces))
        reply = call(make_limited_app(), "POST", "/length", body=pieces)
        if length <= LIMIT:
            assert reply.json == {"length": length}
        else:
            assert (reply.status, reply.code, reply.headers["connection"]) == (413, "body_too_large", "close")

    @pytest.mark.parametrize("target", ["/length", "/v2/form"])
    def test_slow_body_and_too_large_content_length_are_refused(self, target: str) -> None:
        """A missing body triggers the deadline."""
        for length, status in ((LIMIT, 408), (LIMIT + 1, 413), (10**30, 413)):
            headers = {"Content-Length": str(length)}
            assert call(make_limited_app(body_seconds=0.05), "POST", "/length", headers, body=[]).status == status

        async def trickle() -> Message:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b"a", "more_body": True}

        form = {"Content-Type": "application/x-www-form-urlencoded"}
        reply = asyncio.run(exchange(make_limited_app(body_seconds=0.1), "POST", target, trickle, form))
        assert reply.status == 408
        error = reply.json["error"]
        assert isinstance(error, str) if target.startswith("/v2") else error["code"] == "slow_body"

    def test_started_response_is_truncated_not_replaced(self) -> None:
        async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            while True:
                await send({"type": "http.response.body", "body": (await receive())["body"], "more_body": True})

        reply = call(RequestLimits(echo, make_options()), "POST", "/", body=[b"x" * LIMIT, b"x"])
        assert (reply.status, reply.body) == (200, b"x" * LIMIT)

    def test_total_size_of_bodies_is_limited(self) -> None:
        """Pending requests hold their bodies; the next one is refused, and accepted afterwards."""
        goes_on, held = asyncio.Event(), asyncio.Semaphore(0)

        async def hold(_scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            held.release()
            await goes_on.wait()
            await send(START)
            await send({"type": "http.response.body", "body": b""})

        async def receive() -> Message:
            return {"type": "http.request", "body": bytes(LIMIT), "more_body": False}

        async def fill() -> None:
            app = RequestLimits(hold, make_options())
            sent = [asyncio.create_task(exchange(app, "POST", "/", receive)) for _ in range(middleware.MAX_FULL_BODIES)]
            for _ in sent:
                await held.acquire()
            refused = await exchange(app, "POST", "/", receive)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            goes_on.set()
            assert {(await task).status for task in sent} == {200}
            assert (await exchange(app, "POST", "/", receive)).status == 200

        asyncio.run(fill())


@pytest.fixture
def app() -> FastAPI:
    made = FastAPI()

    @made.get("/fine")
    @made.get("/healthz")
    def succeed(request: Request) -> None:
        request.state.principal = make_reviewer("Anna")

    @made.get("/broken")
    @made.get("/v2/broken")
    def fail() -> None:
        raise ValueError("the secret reason")

    made.add_middleware(RequestLog, metrics=ServiceMetrics())
    return made


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """A function that returns the formatted log lines."""
    caplog.set_level(logging.INFO)
    formatter = JsonFormatter()
    return lambda: [json.loads(formatter.format(one)) for one in caplog.records if one.name == middleware.__name__]


class TestLog:
    def test_request_is_one_log_line(self, app: FastAPI, lines: Any) -> None:
        factory = logging.getLogRecordFactory()

        def add(*values: Any, **named: Any) -> logging.LogRecord:
            record = factory(*values, **named)
            record._added = "by Ray, for example"
            return record

        logging.setLogRecordFactory(add)
        try:
            assert call(app, "GET", "/healthz").status == 200  # which is not logged
            reply = call(app, "GET", "/fine?token=secret", {"Authorization": "Bearer secret"})
        finally:
            logging.setLogRecordFactory(factory)
        (line,) = lines()
        assert reply.headers["x-request-id"] == line["id"]
        assert line.pop("ms") >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
        expected = {"method": "GET", "path": "/fine", "status": 200, "principal": "Anna"}
        assert line == {"level": "info", "event": "request", "id": line["id"], **expected}

    def test_an_unexpected_exception_is_an_error_without_details(self, app: FastAPI, lines: Any) -> None:
        reply, of_protocol = call(app, "GET", "/broken"), call(app, "GET", "/v2/broken")
        assert (reply.status, reply.code) == (500, "internal")
        assert isinstance(of_protocol.json["error"], str)
        assert b"secret" not in reply.body
        exception, request, *_ = lines()
        assert "the secret reason" in exception["exception"]
        assert exception["id"] == request["id"] == reply.headers["x-request-id"]
        assert (exception["level"], request["level"], request["status"]) == ("error", "error", 500)

    def test_disconnected_clients_and_truncated_responses(self, lines: Any) -> None:
        async def read(_scope: Scope, _receive: Receive, _send: Send) -> None:
            raise ClientDisconnect

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        asyncio.run(RequestLog(read, ServiceMetrics())(scope, None, None))  # type: ignore[arg-type]
        (line,) = lines()
        assert (line["level"], line["status"]) == ("info", None)

        async def break_off(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send(START)
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            raise ValueError

        assert call(RequestLog(break_off, ServiceMetrics()), "GET", "/").body == b"a"
        assert [line["event"] for line in lines()[1:]] == ["exception", "request"]

    def test_all_log_output_of_a_running_service_is_json(self, capsys: pytest.CaptureFixture[str]) -> None:
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
        root, hook, show = logging.getLogger(), threading.excepthook, warnings.showwarning
        handlers = list(root.handlers)
        with configure_logging(quiet=True), configure_logging():
            logging.getLogger("secondlook").info("told")
        assert (root.handlers, threading.excepthook, warnings.showwarning) == (handlers, hook, show)
        assert json.loads(capsys.readouterr().err)["event"] == "told"

    def test_log_lines_are_printable_ascii_for_any_input(self) -> None:
        values: dict[str, Any] = {"levelname": "ERROR", "msg": "x\ny\u2028", "path": "\x1b\x7fé\udcff"}
        error = ValueError("\x1b[31m\x7f\n")
        line = JsonFormatter().format(logging.makeLogRecord({**values, "exc_info": (ValueError, error, None)}))
        assert re.fullmatch(r"[\x20-\x7e]+", line)
        assert json.loads(line)["path"] == "\x1b\x7fé\udcff"
        assert "ValueError" in json.loads(line)["exception"]
