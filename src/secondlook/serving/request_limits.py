"""Bounds on the bodies of requests: their size, alone and together, and the time in which they arrive."""

import asyncio
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secondlook.serving.faults import RequestError, encode_request_error
from secondlook.serving.options import ServiceOptions

SMALL_BODY_BYTES = 64 * 1024
LARGE_BODIES = re.compile(r"/v1/(decide|policy|reviews)|/v2/models/.+/infer")
"""Addresses that take images and files, and read them after the token was checked. All others take small forms and
JSON, which FastAPI parses before it."""
MAX_FULL_BODIES = 16
"""Number of bodies of the largest size that all requests together may hold in memory."""


class RequestLimits:
    """Refuses bodies that are too large or too slow; the connection is closed, since the rest would have to be read."""

    def __init__(self, app: ASGIApp, options: ServiceOptions) -> None:
        self._app = app
        self._options = options
        self._held = _HeldBytes(MAX_FULL_BODIES * options.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = find_body_limit(scope["path"], self._options)
        if read_content_length(scope["headers"]) > most:
            await send_error(scope, send, too_large(most))
            return
        body = _BoundedBody(receive, most, self._options.body_seconds, self._held)
        response = _GuardedResponse(send, body)
        try:
            await self._app(scope, body.receive, response.send)
        except RequestError as error:
            if error is not body.fault:
                raise
        finally:
            body.release()
        if body.fault is not None and not response.started:
            await send_error(scope, send, body.fault)


class _HeldBytes:
    """The bytes of all bodies that are in memory."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0


class _BoundedBody:
    """What a client sends; `fault` is why it may not go on."""

    def __init__(self, receive: Receive, most: int, seconds: float, held: _HeldBytes) -> None:
        self.fault: RequestError | None = None
        self._receive = receive
        self._most, self._seconds = most, seconds
        self._held = held
        self._length = 0
        self._complete = False
        self._deadline: float | None = None

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()  # waits for the client to leave, which may take as long as it likes
        if self.fault is None:
            message = await self._receive_in_time()
            if message is not None:
                return message
        assert self.fault is not None, "nothing came in time"
        raise self.fault

    async def _receive_in_time(self) -> Message | None:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.fault = too_slow(self._seconds)
            return None
        length = len(message.get("body", b""))
        self._length += length
        self._held.now += length
        self._complete = not message.get("more_body", False)
        if self._length > self._most:
            self.fault = too_large(self._most)
            return None
        if self._held.now > self._held.most:
            self.fault = too_many(self._held.most)
            return None
        return message

    def release(self) -> None:
        """Forget the body, when its request is over."""
        self._held.now -= self._length


class _GuardedResponse:
    """Drops what the application says about a body that was cut off: it cannot know why."""

    def __init__(self, send: Send, body: _BoundedBody) -> None:
        self.started = False
        self._send = send
        self._body = body

    async def send(self, message: Message) -> None:
        if self._body.fault is None or self.started:
            self.started = True
            await self._send(message)


async def send_error(scope: Scope, send: Send, error: RequestError) -> None:
    """Send an error as JSON, and close the connection."""
    content = encode_request_error(scope["path"], error)
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


def too_many(most: int) -> RequestError:
    """Return the error of a body for which there is no room at the moment."""
    return RequestError(
        429,
        "busy",
        f"the requests in work have more than {most:,} bytes; send this one again in a second.",
        headers={"Retry-After": "1"},
    )


def too_slow(seconds: float) -> RequestError:
    """Return the error of a body that takes too long."""
    return RequestError(
        408,
        "slow_body",
        f"the body did not arrive within {seconds:g} seconds; send it faster, or less of it.",
    )
