"""Limits on the size and time of request bodies, and the security headers of responses."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError

SMALL_BODY_BYTES = 64 * 1024
LARGE_BODIES = re.compile(r"/v1/(decide|policy|reviews)|/v2/models/.+/infer")
"""Addresses that take images and files, and read them after the token was checked. All others take small forms and
JSON, which FastAPI parses before it."""
MAX_FULL_BODIES = 16
"""Number of bodies of the largest size that all requests together may hold in memory."""
DRAIN_SECONDS = 5.0
"""How long the rest of a refused body is read, so that the client gets to read why it was refused."""
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
    """Refuses bodies that are too large or too slow, and closes their connections."""

    def __init__(self, app: ASGIApp, options: ServiceOptions) -> None:
        self._app, self.options = app, options
        self.held = 0
        """Bytes of all bodies that are in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        body = _BoundedBody(self, find_body_limit(scope["path"], self.options), receive)
        has_response = False

        async def send_uncut(message: Message) -> None:
            """Send what the application says, unless it is about a body that was cut off: it cannot know why."""
            nonlocal has_response
            if body.fault is None or has_response:
                has_response = True
                await send(message)

        if read_content_length(scope["headers"]) > body.most:
            await send_error(scope, send, too_large(body.most), receive)
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
    """The body of a request; `fault` is why the rest is not read."""

    def __init__(self, limits: RequestLimits, most: int, receive: Receive) -> None:
        self.fault: RequestError | None = None
        self.length, self.most = 0, most
        self._limits, self._receive, self._is_complete = limits, receive, False
        self._deadline = asyncio.get_running_loop().time() + limits.options.body_seconds

    async def receive(self) -> Message:
        """Return the next message of the client; raise the fault if there is one."""
        if self.fault is None and self._is_complete:
            return await self._receive()  # waits for the client to leave, which may take as long as it likes
        message: Message = {}
        if self.fault is None:
            try:
                async with asyncio.timeout_at(self._deadline):
                    message = await self._receive()
                self.fault = self._count(len(message.get("body", b"")))
                self._is_complete = not message.get("more_body", False)
            except TimeoutError:
                seconds = f"{self._limits.options.body_seconds:g} seconds"
                text = f"the body did not arrive within {seconds}; send it faster, or less of it."
                self.fault = RequestError(408, "slow_body", text)
        if self.fault is not None:
            raise self.fault
        return message

    def _count(self, n_bytes: int) -> RequestError | None:
        """Count bytes that came, and return why no more may come."""
        self.length += n_bytes
        self._limits.held += n_bytes
        most_held = MAX_FULL_BODIES * self._limits.options.max_body_bytes
        if self.length > self.most:
            return too_large(self.most)
        if self._limits.held > most_held:
            text = f"the requests in work have more than {most_held:,} bytes; send this one again in a second."
            return RequestError(429, "busy", text, headers={"Retry-After": "1"})
        return None


async def send_error(scope: Scope, send: Send, error: RequestError, receive: Receive | None = None) -> None:
    """Send an error as JSON, and close the connection.

    With `receive`, the rest of the body is read first, for some seconds: closing while data arrive would reset the
    connection, and the response would be lost on its way.
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
    """Return how many bytes the body of a request to an address may have."""
    is_large = LARGE_BODIES.fullmatch(path) is not None
    return options.max_body_bytes if is_large else min(SMALL_BODY_BYTES, options.max_body_bytes)


def read_content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the length that a request announces; 0 if it does not."""
    return next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), 0)


def too_large(most: int) -> RequestError:
    """Return the error of a body above the limit."""
    return RequestError(413, "body_too_large", f"the body of this request may have at most {most:,} bytes; send less.")
