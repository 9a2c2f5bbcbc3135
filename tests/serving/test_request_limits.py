"""Tests of the bounds on bodies, without a server."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Form, Request
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from secondlook.serving import middleware
from secondlook.serving.middleware import MAX_FULL_BODIES, RequestLimits, find_body_limit
from secondlook.serving.options import ServiceOptions
from tests.serving.asgi import call

LIMIT = 1000


@pytest.fixture(autouse=True, scope="module")
def short_drain() -> Iterator[None]:
    """A time that tests can wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "DRAIN_SECONDS", 0.01)
        yield


def make_app(**options: Any) -> FastAPI:
    app = FastAPI()

    @app.post("/length")
    async def measure(request: Request) -> dict[str, int]:
        return {"length": len(await request.body())}

    @app.post("/v2/form")
    def read_form(text: str = Form()) -> str:
        return text

    app.add_middleware(RequestLimits, options=ServiceOptions(Path("unused"), max_body_bytes=LIMIT, **options))
    return app


@pytest.mark.parametrize(
    ("path", "is_large"),
    [
        ("/v1/decide", True),
        ("/v1/policy", True),
        ("/v1/reviews", True),
        ("/v2/models/secondlook/infer", True),
        ("/v2/models/secondlook/versions/1/infer", True),
        ("/login", False),
        ("/logout", False),
        ("/v1/review/lease", False),
        ("/v1/review/1/label", False),
        ("/v1/decide/x", False),
        ("/", False),
    ],
)
def test_only_addresses_of_images_and_files_take_large_bodies(path: str, is_large: bool) -> None:
    options = ServiceOptions(Path("unused"), max_body_bytes=10**6)
    assert find_body_limit(path, options) == (10**6 if is_large else 64 * 1024)
    assert find_body_limit(path, replace(options, max_body_bytes=LIMIT)) == LIMIT


@given(pieces=st.lists(st.binary(max_size=600), min_size=1, max_size=5))
def test_a_body_is_taken_if_its_pieces_are_within_the_limit_together(pieces: list[bytes]) -> None:
    length = sum(map(len, pieces))
    reply = call(make_app(), "POST", "/length", body=pieces)
    if length <= LIMIT:
        assert reply.json == {"length": length}
    else:
        assert (reply.status, reply.code) == (413, "body_too_large")
        assert reply.headers["connection"] == "close"


@pytest.mark.parametrize(("length", "status"), [(LIMIT, 408), (LIMIT + 1, 413), (10**30, 413)])
def test_an_announced_length_is_refused_without_reading(length: int, status: int) -> None:
    """A body that never comes shows what is waited for."""
    reply = call(make_app(body_seconds=0.05), "POST", "/length", {"Content-Length": str(length)}, body=[])
    assert reply.status == status


@pytest.mark.parametrize("target", ["/length", "/v2/form"])
def test_a_body_that_stops_arriving_is_refused(target: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    app = make_app(body_seconds=0.1)

    async def trickle() -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b"a", "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": target, "query_string": b"", "root_path": ""}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await app({**scope, "headers": encoded, "state": {}}, receive, send)
        assert sent[0]["status"] == 408
        error = json.loads(sent[1]["body"])["error"]
        assert isinstance(error, str) if target.startswith("/v2") else error["code"] == "slow_body"

    asyncio.run(trickle())


def test_a_response_that_began_is_cut_off_not_replaced() -> None:
    async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": (await receive())["body"], "more_body": True})

    limited = RequestLimits(echo, ServiceOptions(Path("unused"), max_body_bytes=LIMIT))
    reply = call(limited, "POST", "/", body=[b"x" * LIMIT, b"x"])
    assert (reply.status, reply.body) == (200, b"x" * LIMIT)


def test_all_bodies_together_are_bounded() -> None:
    """Requests that are in work hold their bodies; the next one is asked to come back, and taken afterwards."""
    goes_on = asyncio.Event()

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = RequestLimits(hold, ServiceOptions(Path("unused"), max_body_bytes=LIMIT))

    async def request() -> Any:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": bytes(LIMIT), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "http", "path": "/", "headers": []}, receive, send)
        return sent[0]

    async def fill() -> None:
        held = [asyncio.create_task(request()) for _ in range(MAX_FULL_BODIES)]
        await asyncio.sleep(0.01)
        refused = await request()
        assert refused["status"] == 429
        assert (b"retry-after", b"1") in refused["headers"]
        goes_on.set()
        assert [(await task)["status"] for task in held] == [200] * MAX_FULL_BODIES
        assert (await request())["status"] == 200

    asyncio.run(fill())
