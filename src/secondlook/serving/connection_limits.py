"""Bounds on connections: their number, the size and time of headers, and how long a client may do nothing."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from secondlook.serving.faults import RequestError, encode_request_error
from secondlook.serving.options import ServiceOptions
from secondlook.serving.request_limits import list_error_headers, too_large
from secondlook.serving.security_headers import HEADERS

LOGGER = logging.getLogger(__name__)
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
            self._refuse(too_many_connections())
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
        elif self._is_idle() and self._timer is None:
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
        self._cancel_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_timer()
        self._cancel_write_timer()
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

    def _is_idle(self) -> bool:
        return not self._in_headers and not self._in_body and not self._is_responding()

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
        content = encode_request_error("", error)
        headers = HEADERS | list_error_headers(error, content)
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

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


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


def too_many_connections() -> RequestError:
    """Return the error of a connection for which there is no room at the moment."""
    return RequestError(
        503, "connections", "the service has too many connections; try again later.", headers={"Retry-After": "5"}
    )


def headers_too_large() -> RequestError:
    """Return the error of a request with too many headers, or too long ones."""
    return RequestError(
        431, "headers_too_large", f"a request may have {MAX_HEADERS} headers with {MAX_HEADER_BYTES:,} bytes in all."
    )
