"""HTTP client with a deadline and a size limit for each request, and credentials that are never stored or printed."""

import io
import socket
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Retry, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, InvalidHeader, LocationParseError, ProtocolError
from urllib3.exceptions import TimeoutError as HttpTimeoutError

from secondlook.errors import ANY, ClassifierError, Repair

PIECE = 65536
MAX_CONNECTIONS = 64
LONGEST_RETRY_AFTER = 60.0
MAX_RESPONSE_BYTES = 32 * 2**20
"""Largest response, with its headers; enough for 32 images x 21,843 classes as JSON."""


class HttpClient:
    """Connections to one server, without redirects and proxies; `headers`, sent with all requests, are secret."""

    def __init__(
        self, host: str, port: int, *, encrypted: bool, timeout: float, headers: Mapping[str, str] | None = None
    ) -> None:
        context = {"ssl_context": ssl.create_default_context()} if encrypted else {}
        make_pool: Any = HTTPSConnectionPool if encrypted else HTTPConnectionPool
        try:
            self._pool: HTTPConnectionPool = make_pool(host, port, maxsize=MAX_CONNECTIONS, **context)
        except LocationParseError as error:
            raise ClassifierError(f"{host!r} is not the name of a host; check the address.") from error
        self._pool.ConnectionCls = _EncryptedConnection if encrypted else _Connection
        self._timeout, self._headers = timeout, dict(headers or {})

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> BaseHTTPResponse:
        """Send a request and return the complete response, without decompressing its `data`.

        Raises TimeoutError after `timeout` in total (by default, that of the client), ClassifierError for a response
        of more than `MAX_RESPONSE_BYTES`, and OSError or HTTPException for any other failure.
        """
        timeout = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        settings: dict[str, Any] = {"retries": False, "redirect": False, "decode_content": False}
        settings["headers"] = {"User-Agent": "secondlook", **(headers or {}), **self._headers}
        is_repeated = False
        while True:
            left = Timeout(max(0.001, deadline - time.monotonic()))
            try:
                return self._pool.urlopen(method, path, body, timeout=left, **settings)
            except HTTPError as error:
                causes = (error.__cause__, *reversed(error.args))  # the wrapped error of the standard library
                cause = next((one for one in causes if isinstance(one, OSError | HTTPException)), None)
                if isinstance(cause or error, TimeoutError | HttpTimeoutError):
                    raise TimeoutError(f"no complete response within {timeout:g} seconds") from error
                # The server may have closed a kept connection since the last request.
                is_kept = isinstance(error, ProtocolError) and self._pool.num_requests > self._pool.num_connections
                if is_repeated or not is_kept or not isinstance(cause, ConnectionError):
                    raise cause or ConnectionError(str(error)) from error
                is_repeated = True

    def hide_secrets(self, text: str) -> str:
        """Remove the values of secret headers from a text; a server may repeat them in its response."""
        secrets = {part for value in self._headers.values() for part in (value, value.rpartition(" ")[2]) if part}
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    @staticmethod
    def parse_retry_after(response: BaseHTTPResponse) -> float:
        """Return the seconds of the Retry-After header, at most `LONGEST_RETRY_AFTER`; 0 without the header."""
        try:
            return min(Retry().get_retry_after(response) or 0.0, LONGEST_RETRY_AFTER)
        except InvalidHeader:
            return 0.0

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()


class _BoundedReader(io.RawIOBase):
    """Reads a socket with a deadline for all bytes, and a size limit."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._raw = connection, connection.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + (connection.gettimeout() or 0)
        self._bytes_left = MAX_RESPONSE_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int | None:  # type: ignore[override]
        self._socket.settimeout(_compute_seconds(self._deadline))
        n_bytes = self._raw.readinto(buffer)
        self._bytes_left -= n_bytes or 0
        if self._bytes_left < 0:
            raise _too_large()
        return n_bytes

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedReader(sock))

    def begin(self) -> None:
        super().begin()
        if (self.length or 0) > MAX_RESPONSE_BYTES:  # its memory would be allocated at once
            raise _too_large()


class _Connection(HTTPConnection):
    response_class = _BoundedResponse

    def send(self, data: Any) -> None:
        """Send in pieces, because on an encrypted connection each piece has a separate timeout."""
        if self.sock is None:
            self.connect()
        seconds = self.sock.gettimeout()
        deadline, view = time.monotonic() + (seconds or 0), memoryview(data)
        for start in range(0, len(view), PIECE):
            self.sock.settimeout(_compute_seconds(deadline))
            super().send(view[start : start + PIECE])
        self.sock.settimeout(seconds)


class _EncryptedConnection(_Connection, HTTPSConnection):
    pass


def _compute_seconds(deadline: float) -> float:
    """Return the seconds until the deadline; raise TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _too_large() -> ClassifierError:
    repair = Repair("check the address, or lower {rows_per_request}", rows_per_request=ANY)
    return ClassifierError(f"the server sent more than {MAX_RESPONSE_BYTES >> 20} MB for one request", repair=repair)
