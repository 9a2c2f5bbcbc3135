"""Requests to a web application in this process, without a server."""

import asyncio
from collections.abc import Sequence
from email.message import Message as EmailMessage

from starlette.types import ASGIApp, Message, Scope

from tests.serving.running import Reply


def call(
    app: ASGIApp,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: bytes | Sequence[bytes] = b"",
    *,
    scheme: str = "http",
) -> Reply:
    """Send a request, whose body comes in one or several pieces, and return the response."""
    path, _, query = target.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "state": {},
    }
    pieces = [body] if isinstance(body, bytes) else list(body)
    sent: list[Message] = []

    async def receive() -> Message:
        if not pieces:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]  # a coroutine
    start, *bodies = sent
    received: EmailMessage[str, str] = EmailMessage()
    for name, value in start["headers"]:
        received[name.decode()] = value.decode()
    return Reply(start["status"], received, b"".join(part.get("body", b"") for part in bodies))
