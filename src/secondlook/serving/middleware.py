"""Middleware: the log, security headers, and limits on the size and time of request bodies.

The log has one JSON object per line, without bodies, tokens, cookies or queries.
"""

import asyncio
import itertools
import json
import logging
import re
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.service_metrics import ServiceMetrics

MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of the request line and all headers."""
SMALL_BODY_BYTES = 64 * 1024
LARGE_BODIES = re.compile(r"/v1/(decide|policy|reviews)|/v2/models/.+/infer")
"""Paths that receive images and files, and read them after checking the token. All others receive small forms and
JSON, which FastAPI parses before the check."""
MAX_FULL_BODIES = 16
"""Memory limit of all request bodies together, in bodies of the largest size."""
DRAIN_SECONDS = 5.0
"""How long to read the rest of a refused body, so that the client receives the error."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with "no-referrer", forms of the service would have the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Restrict pages to resources and requests of this service. Headers set by a response take precedence."""
LOGGER = logging.getLogger(__name__)
CLIENT_LEFT = 499
"""Status counted for clients that disconnect before a response, as in nginx logs."""
QUIET_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths polled every few seconds; only failures are logged."""
STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"color_message", "message", "asctime"}
"""Fields of every log record; all others come from `extra=`."""


class RequestLimits:
    """Refuses headers that are too large, and bodies that are too large or too slow; closes their connections."""

    def __init__(self, app: ASGIApp, options: ServiceOptions) -> None:
        self._app, self.options = app, options
        self.held = 0
        """Bytes of all request bodies in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        body = _BoundedBody(self, find_body_limit(scope["path"], self.options), receive)
        has_response = False

        async def send_uncut(message: Message) -> None:
            """Send a message, except errors of the application about a truncated body: it does not know the cause."""
            nonlocal has_response
            if body.fault is None or has_response:
                has_response = True
                await send(message)

        parts = (scope["raw_path"], scope["query_string"], *itertools.chain.from_iterable(scope["headers"]))
        if sum(map(len, parts)) > MAX_HEADER_BYTES:  # the web server limits only incomplete headers
            message = f"the headers of this request may have at most {MAX_HEADER_BYTES:,} bytes; send less."
            await send_error(scope, send, RequestError(400, "headers_too_large", message), receive)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > body.most:
            await send_error(scope, send, make_body_size_error(body.most), receive)
            return
        try:
            await self._app(scope, body.receive, send_uncut)
        except RequestError as error:
            if error is not body.fault:
                raise
        finally:
            self.held -= body.length
        if body.fault is not None and not has_response:
            await send_error(scope, send, body.fault, receive)


class _BoundedBody:
    """The body of a request; `fault` is the reason to stop reading it."""

    def __init__(self, limits: RequestLimits, most: int, receive: Receive) -> None:
        self.fault: RequestError | None = None
        self.length, self.most = 0, most
        self._limits, self._receive, self._is_complete = limits, receive, False
        self._deadline = asyncio.get_running_loop().time() + limits.options.body_seconds

    async def receive(self) -> Message:
        """Return the next message of the client; raise the fault if there is one."""
        if self.fault is not None:
            raise self.fault
        if self._is_complete:
            return await self._receive()  # waits until the client disconnects, without a deadline
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            seconds = self._limits.options.body_seconds
            self.fault = RequestError(408, "slow_body", f"the body took over {seconds:g} seconds; send it faster.")
            raise self.fault from None
        self._is_complete = not message.get("more_body", False)
        n_bytes = len(message.get("body", b""))
        self.length += n_bytes
        self._limits.held += n_bytes
        if self.length > self.most:
            self.fault = make_body_size_error(self.most)
        elif self._limits.held > MAX_FULL_BODIES * self._limits.options.max_body_bytes:
            text = "the pending requests have too many bytes; send this one again in a second."
            self.fault = RequestError(429, "busy", text, headers={"Retry-After": "1"})
        if self.fault is not None:
            raise self.fault
        return message


async def send_error(scope: Scope, send: Send, error: RequestError, receive: Receive | None = None) -> None:
    """Send an error as JSON, and close the connection.

    With `receive`, read the rest of the body first, for a few seconds: closing while data arrives resets the
    connection, and the client loses the response.
    """
    content = error.encode(scope["path"])
    about = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
    encoded = [(name.lower().encode(), value.encode()) for name, value in (about | error.headers).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while receive is not None and (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


def find_body_limit(path: str, options: ServiceOptions) -> int:
    """Return the maximum size of a request body for a path, in bytes."""
    is_large = LARGE_BODIES.fullmatch(path) is not None
    return options.max_body_bytes if is_large else min(SMALL_BODY_BYTES, options.max_body_bytes)


def make_body_size_error(most: int) -> RequestError:
    """Return the error for a body above the limit."""
    return RequestError(413, "body_too_large", f"the body of this request may have at most {most:,} bytes; send less.")


class RequestLog:
    """Logs and counts every request after its response, and turns unexpected exceptions into an HTTP error.

    Every response, including errors, gets a request id and the security headers.
    """

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        start, id_, status, has_left = time.perf_counter(), uuid.uuid4().hex[:16], None, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = id_
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            has_left = True
        except Exception as error:  # the client gets an error, and the service keeps running
            LOGGER.error("exception", exc_info=error, extra={"id": id_})
            if status is None:  # otherwise the server closes the connection, and the client sees a truncated response
                message = f"the request failed unexpectedly; see the log of the service for request id {id_}."
                await send_error(scope, send_with_headers, RequestError(500, "internal", message))
        finally:
            seconds = time.perf_counter() - start
            _log_request(scope, id_, status, seconds)
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.count_request(route, status or (CLIENT_LEFT if has_left else 500), seconds)


def _log_request(scope: Scope, id_: str, status: int | None, seconds: float) -> None:
    path, failed = scope["path"], status is not None and status >= 500
    if path in QUIET_PATHS and not failed:
        return
    principal = scope.get("state", {}).get("principal")
    fields = {
        "id": id_,
        "method": scope["method"],
        "path": path[:500],
        "status": status,  # null if the client disconnected before a response
        "ms": round(seconds * 1000, 2),
        "principal": None if principal is None else principal.name,
    }
    LOGGER.log(logging.ERROR if failed else logging.INFO, "request", extra=fields)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of printable ASCII, also for hostile input."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        fields |= {
            name: value for name, value in record.__dict__.items() if name not in STANDARD_FIELDS and name[0] != "_"
        }
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(fields, default=str)


@contextmanager
def configure_logging(*, quiet: bool = False) -> Iterator[None]:
    """Log to stderr: the service and its web server at level INFO, or WARNING with `quiet`.

    This includes warnings of other packages and of Python, and exceptions that end a thread.
    """
    root, loggers = logging.getLogger(), [logging.getLogger(name) for name in ("secondlook", "uvicorn")]
    before = root.handlers, [logger.level for logger in loggers], threading.excepthook
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root.handlers = [handler]
    for logger in loggers:
        logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.captureWarnings(True)
    threading.excepthook = lambda raised: LOGGER.error(
        "exception", exc_info=raised.exc_value, extra={"ended_thread": getattr(raised.thread, "name", None)}
    )
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers, levels, threading.excepthook = before
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
