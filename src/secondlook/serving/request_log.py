"""The log of the service: one JSON object per line, without bodies, tokens, cookies or queries."""

import json
import logging
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secondlook.serving.request_limits import SECURITY_HEADERS, send_error
from secondlook.serving.responses import RequestError
from secondlook.serving.service_metrics import ServiceMetrics

LOGGER = logging.getLogger(__name__)
LOGGERS = ("secondlook", "uvicorn")
LONGEST_PATH = 500
CLIENT_LEFT = 499
"""Status by which requests are counted whose client left before they were sent; as in the logs of nginx."""
QUIET_PATHS = ("/healthz", "/readyz", "/metrics")
"""What other programs ask every few seconds; it is logged only if it fails."""
STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"color_message", "message", "asctime"}
"""What every record has; the others were given as `extra=`."""
_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class RequestLog:
    """Logs and counts every request once it was responded to, and turns unexpected exceptions into an error.

    Every response, an error too, gets the id of its request and the security headers that it does not have.
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
                given = message.get("headers", [])
                names = {name.lower() for name, _ in given}
                missing = [header for header in _ENCODED_HEADERS if header[0] not in names]
                message["headers"] = [*given, *missing, (b"x-request-id", id_.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            has_left = True
        except Exception as error:  # whatever fails, the client gets an error and the service goes on
            LOGGER.error("exception", exc_info=error, extra={"id": id_})
            if status is None:  # else the server closes the connection, and the client sees that something is missing
                message = f"the request failed for an unexpected reason; the log of the service has it under id {id_}."
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
        "path": path[:LONGEST_PATH],
        "status": status,  # null if the client left before a response
        "ms": round(seconds * 1000, 2),
        "principal": None if principal is None else principal.name,
    }
    LOGGER.log(logging.ERROR if failed else logging.INFO, "request", extra=fields)


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of printable ASCII, whatever a client sent."""

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
    """Write what happens in a service to stderr: all of it, or only what is worrying.

    That is the log of the service and of its web server, what is worrying in those of other packages, Python's
    warnings, and exceptions that end a thread.
    """
    root, loggers = logging.getLogger(), [logging.getLogger(name) for name in LOGGERS]
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
