"""Bounds on requests: size and time of bodies and headers, number of connections, and how long a client may idle."""

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError

LOGGER = logging.getLogger(__name__)
SMALL_BODY_BYTES = 64 * 1024
LARGE_BODIES = re.compile(r"/v1/(decide|policy|reviews)|/v2/models/.+/infer")
"""Addresses that take images and files, and read them after the token was checked. All others take small forms and
JSON, which FastAPI parses before it."""
MAX_FULL_BODIES = 16
"""Number of bodies of the largest size that all requests together may hold in memory."""
HEADER_SECONDS = 10.0
"""Time in which the first line and the headers of a request must arrive."""
WRITE_SECONDS = 60.0
"""How long a client may leave a response unread."""
DRAIN_SECONDS = 5.0
"""How long the rest of a refused body is read, so that the client gets to read why it was refused."""
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_PIPELINED = 32
"""Number of requests that a client may send before it got the responses to those before."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # "no-referrer" would hide from the service that a form is its own
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Tell browsers what a page may do: load and send nothing but to this service. A response keeps those of its own."""


class RequestLimits:
    """Refuses bodies that are too large or too slow; the connection is closed, since the rest would have to be read."""

    def __init__(self, app: ASGIApp, options: ServiceOptions) -> None:
        self._app = app
        self.options = options
        self.max_held = MAX_FULL_BODIES * options.max_body_bytes
        self.held = 0
        """Bytes of all bodies that are in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        most = find_body_limit(scope["path"], self.options)
        if read_content_length(scope["headers"]) > most:
            await send_error(scope, send, too_large(most))
            return
        request = _BoundedRequest(self, most, receive, send)
        try:
            await self._app(scope, request.receive, request.send)
        except RequestError as error:
            if error is not request.fault:
                raise
        finally:
            self.held -= request.length
        if request.fault is not None and not request.has_response:
            await send_error(scope, send, request.fault)


class _BoundedRequest:
    """A request whose body is bounded; `fault` is why it may not go on."""

    def __init__(self, limits: RequestLimits, most: int, receive: Receive, send: Send) -> None:
        self.fault: RequestError | None = None
        self.length = 0
        self.has_response = False
        self._limits, self._most, self._receive, self._send = limits, most, receive, send
        self._is_complete = False
        self._deadline: float | None = None

    async def receive(self) -> Message:
        """Return the next message of the client; raise the fault if there is one."""
        if self.fault is not None:
            raise self.fault
        if self._is_complete:
            return await self._receive()  # waits for the client to leave, which may take as long as it likes
        limits, seconds = self._limits, self._limits.options.body_seconds
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {seconds:g} seconds; send it faster, or less of it."
            self.fault = RequestError(408, "slow_body", text)
            raise self.fault from None
        length = len(message.get("body", b""))
        self.length += length
        limits.held += length
        self._is_complete = not message.get("more_body", False)
        if self.length > self._most:
            self.fault = too_large(self._most)
            raise self.fault
        if limits.held > limits.max_held:
            text = f"the requests in work have more than {limits.max_held:,} bytes; send this one again in a second."
            self.fault = RequestError(429, "busy", text, headers={"Retry-After": "1"})
            raise self.fault
        return message

    async def send(self, message: Message) -> None:
        """Send what the application says, unless it is about a body that was cut off: it cannot know why."""
        if self.fault is None or self.has_response:
            self.has_response = True
            await self._send(message)


async def send_error(scope: Scope, send: Send, error: RequestError) -> None:
    """Send an error as JSON, and close the connection."""
    content = error.encode(scope["path"])
    headers = list_error_headers(error, content).items()
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content})


def list_error_headers(error: RequestError, content: bytes) -> dict[str, str]:
    """Return the headers of an error after which the connection is closed."""
    about = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
    return about | error.headers


def find_body_limit(path: str, options: ServiceOptions) -> int:
    """Return how many bytes the body of a request to an address may have."""
    is_large = LARGE_BODIES.fullmatch(path) is not None
    return options.max_body_bytes if is_large else min(SMALL_BODY_BYTES, options.max_body_bytes)


def read_content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the length that a request announces; 0 if it does not."""
    return next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), 0)


def too_large(most: int) -> RequestError:
    """Return the error of a body above the limit."""
    return RequestError(413, "body_too_large", f"the body of this request may have at most {most:,} bytes; send less.")


class GuardedProtocol(HttpToolsProtocol):
    """A connection that cannot be held, and whose headers cannot take memory, for longer than it takes to serve it.

    What uvicorn does not bound by itself: the number of connections, the time and size of headers, the number of
    requests behind one another, the time of a body that nobody reads, and that of a response that the client does not
    read.
    """

    def __init__(self, *args: Any, options: ServiceOptions, max_connections: int, **values: Any) -> None:
        super().__init__(*args, **values)
        self._options = options
        self._max_connections = max_connections
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._in_body = False
        self._received = 0
        self._discarding = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take a connection, if there are not too many."""
        super().connection_made(transport)
        excess = len(self.connections) - self._max_connections
        if excess > self._max_connections:
            transport.abort()
        elif excess > 0:
            message = "the service has too many connections; try again later."
            self._refuse(RequestError(503, "connections", message, headers={"Retry-After": "5"}))
        else:
            self._set_timer(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Parse data, if they do not exceed the limits."""
        if self._discarding:
            return
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self._discarding:
            return
        if self._in_headers and self._received > MAX_HEADER_BYTES:
            self._refuse(headers_too_large())
        elif self._in_body and self._received > 2 * self._options.max_body_bytes + MAX_HEADER_BYTES:
            self._refuse(too_large(self._options.max_body_bytes))  # of what comes between the bytes of the body
        elif not (self._in_headers or self._in_body or self._is_responding()) and self._timer is None:
            self._set_timer(HEADER_SECONDS)  # blank lines are not the beginning of a request

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        super().on_message_begin()
        self._in_headers, self._received = True, 0
        if self._timer is None:
            self._set_timer(HEADER_SECONDS)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, if there are not too many."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise headers_too_large()

    def on_headers_complete(self) -> None:
        """Start to serve a request."""
        self._in_headers, self._in_body, self._received = False, True, 0
        self._cancel_timer()
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            self._discarding = True
            self.transport.abort()
        self.cycle.transport = _CycleTransport(self)  # type: ignore[assignment]  # has what the cycle calls

    def on_message_complete(self) -> None:
        """Note that the body of a request is complete."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete and not self._discarding:
            self._set_timer(DRAIN_SECONDS)  # the rest of a body that nobody waits for

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or whose headers are too many."""
        if len(self.headers or ()) > MAX_HEADERS:
            self._refuse(headers_too_large())
        else:
            self._refuse(RequestError(400, "http", "the request is not valid HTTP/1.1."))

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was not used for long."""
        self.close()

    def pause_writing(self) -> None:
        """Wait for the client to read, but not for ever."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection; what the client has not read by then is dropped."""
        self.transport.close()
        self.loop.call_later(DRAIN_SECONDS, self.transport.abort)

    def close_after_response(self) -> None:
        """Close the connection so that the client gets to read the response, even if it is still sending.

        Closing while data arrive would reset the connection, and the response would be lost on its way.
        """
        if not self._in_body:
            self.close()
            return
        self._discarding = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(DRAIN_SECONDS)

    def _is_responding(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _refuse(self, error: RequestError) -> None:
        """Respond to what the application cannot respond to, and close the connection."""
        LOGGER.warning("refused", extra={"status": error.status, "code": error.code})
        if self._is_responding():
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        content = error.encode("")
        headers = SECURITY_HEADERS | list_error_headers(error, content)
        head = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + head.encode() + b"\r\n" + content)
        self._in_body = True
        self.close_after_response()

    def _set_timer(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self._in_headers and not self._discarding:
            seconds = f"{HEADER_SECONDS:g}"
            self._refuse(RequestError(408, "slow_headers", f"the headers did not arrive within {seconds} seconds."))
        else:
            self.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _CycleTransport:
    """The transport as a request and its response use it: closing it lets the client read the response first."""

    def __init__(self, protocol: GuardedProtocol) -> None:
        self._protocol = protocol
        self.is_closing = protocol.transport.is_closing

    def write(self, data: bytes) -> None:
        if not self.is_closing():  # the client may be gone, and only the last of its requests is told
            self._protocol.transport.write(data)

    def close(self) -> None:
        self._protocol.close_after_response()


def headers_too_large() -> RequestError:
    """Return the error of a request with too many headers, or too long ones."""
    return RequestError(
        431, "headers_too_large", f"a request may have {MAX_HEADERS} headers with {MAX_HEADER_BYTES:,} bytes in all."
    )
