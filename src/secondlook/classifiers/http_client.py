"""HTTP requests that end: one deadline and one size limit for each, whatever the server sends."""

import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPSConnection, IncompleteRead

from secondlook.errors import ClassifierError

PIECE = 65536
MAX_HEAD_BYTES = 2**20
"""Added to each size limit for the status line, the headers and what a chunked encoding adds."""


@dataclass(frozen=True)
class HttpResponse:
    """A complete response."""

    status: int
    headers: HTTPMessage
    body: bytes


class HttpClient:
    """Connections to one server, reused. Redirects are not followed, and proxies of the environment are not used."""

    def __init__(self, host: str, port: int, *, encrypted: bool, timeout: float) -> None:
        self._idle: list[_Connection] = []
        self._host, self._port, self._timeout = host, port, timeout
        self._context = ssl.create_default_context() if encrypted else None

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        max_bytes: int,
        timeout: float | None = None,
    ) -> HttpResponse:
        """Send a request and return the complete response.

        Raises TimeoutError after `timeout` in all, by default that of the client, ClassifierError for a response of
        more than `max_bytes`, and OSError or HTTPException for any other failure.
        """
        timeout = self._timeout if timeout is None else timeout
        budget = _Budget(time.monotonic() + timeout, max_bytes)
        try:
            while True:
                connection, is_reused = self._take(budget)
                try:
                    response, is_reusable = connection.exchange(method, path, headers, body, budget)
                except (ConnectionError, ssl.SSLError):
                    connection.close()
                    if is_reused:  # The server has hung up since the last request.
                        continue
                    raise
                except BaseException:
                    connection.close()
                    raise
                if is_reusable:
                    self._idle.append(connection)
                else:
                    connection.close()
                return response
        except TimeoutError as error:
            raise TimeoutError(f"no complete response within {timeout:g} seconds") from error

    def _take(self, budget: "_Budget") -> tuple["_Connection", bool]:
        """Return a connection, and whether it was used before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return _Connection(self._host, self._port, self._context, budget), False

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def __del__(self) -> None:
        self.close()


class _Budget:
    """What one request may still take: seconds, and bytes received."""

    def __init__(self, deadline: float, max_bytes: int) -> None:
        self._deadline, self._max_bytes = deadline, max_bytes
        self._bytes_left = max_bytes + MAX_HEAD_BYTES

    @property
    def seconds(self) -> float:
        """The seconds that are left; raises TimeoutError if there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def spend(self, n_bytes: int) -> None:
        """Count bytes as received."""
        self._bytes_left -= n_bytes
        if self._bytes_left < 0:
            raise ClassifierError(
                f"the server sent more than {self._max_bytes / 2**20:g} MB for one request; "
                "check the address, or lower rows_per_request=."
            )


class _Connection:
    """One connection, with http.client above and a bounded socket below."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, budget: _Budget) -> None:
        self._socket = _connect(host, port, budget)
        try:
            if context is None:
                self._http = HTTPConnection(host, port)
            else:
                self._socket.settimeout(budget.seconds)
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
                self._http = HTTPSConnection(host, port, context=context)
        except BaseException:
            self._socket.close()
            raise
        self._http.auto_open = 0  # It would connect without a deadline.

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, budget: _Budget
    ) -> tuple[HttpResponse, bool]:
        """Return the response to a request, and whether the connection can be used again."""
        bounded = _BoundedSocket(self._socket, budget)
        self._http.sock = bounded
        self._http.request(method, path, body=body, headers=dict(headers))
        response = self._http.getresponse()
        pieces = []
        # The announced length is not read at once, since memory for it would be allocated at once.
        while piece := response.read(PIECE):
            pieces.append(piece)
        if response.length:
            raise IncompleteRead(b"", response.length)
        return HttpResponse(response.status, response.headers, b"".join(pieces)), not response.will_close

    def close(self) -> None:
        self._http.close()
        self._socket.close()


def _connect(host: str, port: int, budget: _Budget) -> socket.socket:
    """Connect to the first address of a host that accepts; all attempts together are bounded."""
    failure: OSError = ConnectionError(f"{host!r} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(budget.seconds)
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


class _BoundedSocket:
    """What http.client uses of a socket, within a budget."""

    def __init__(self, connection: socket.socket, budget: _Budget) -> None:
        self._socket, self._budget = connection, budget

    def sendall(self, content: bytes) -> None:
        view = memoryview(content)
        for start in range(0, len(view), PIECE):
            self._socket.settimeout(self._budget.seconds)
            self._socket.sendall(view[start : start + PIECE])

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._socket, self._budget))

    def close(self) -> None:
        """Keep the socket open: http.client closes it before the last response is read; `_Connection` does after it."""


class _BoundedReader(io.RawIOBase):
    """The bytes of a socket, within a budget."""

    def __init__(self, connection: socket.socket, budget: _Budget) -> None:
        self._socket, self._budget = connection, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        self._socket.settimeout(self._budget.seconds)
        n_bytes = self._socket.recv_into(buffer)
        self._budget.spend(n_bytes)
        return n_bytes
