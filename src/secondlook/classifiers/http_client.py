"""HTTP client with a deadline and a size limit for each request, and credentials that are never stored or printed."""

import base64
import io
import os
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPSConnection, IncompleteRead
from urllib.parse import unquote

from secondlook.errors import ANY, ClassifierError, Repair

AUTHORIZATION = "Authorization"
URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)", re.IGNORECASE)
HOST_AND_PORT = re.compile(r"(\[[^\]@]*\]|[^:@\[\]]*)(:[0-9]*)?")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
HIDDEN = "***"
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
    """Connections to one server, reused. Redirects are not followed, and proxies of the environment are not used.

    `headers` are sent with every request; their values are secret.
    """

    def __init__(
        self, host: str, port: int, *, encrypted: bool, timeout: float, headers: Mapping[str, str] | None = None
    ) -> None:
        self._idle: list[_Connection] = []
        self._host, self._port, self._timeout = host, port, timeout
        self._headers = dict(headers or {})
        self._context = ssl.create_default_context() if encrypted else None

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
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
        headers = {"User-Agent": "secondlook", **(headers or {}), **self._headers}
        try:
            while True:
                connection, is_reused = self._take(budget)
                is_reusable = False
                try:
                    response, is_reusable = connection.exchange(method, path, headers, body, budget)
                except (ConnectionError, ssl.SSLError):
                    if not is_reused:  # otherwise, the server has hung up since the last request
                        raise
                else:
                    return response
                finally:
                    if is_reusable:
                        self._idle.append(connection)
                    else:
                        connection.close()
        except TimeoutError as error:
            raise TimeoutError(f"no complete response within {timeout:g} seconds") from error

    def hide_secrets(self, text: str) -> str:
        """Return a text without the values of the secret headers, which a server may repeat in its response."""
        values = self._headers.values()
        secrets = {part for value in values for part in (value, value.rpartition(" ")[2]) if part}
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

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
                f"the server sent more than {self._max_bytes / 2**20:g} MB for one request",
                repair=Repair("check the address, or lower {rows_per_request}", rows_per_request=ANY),
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
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, budget: _Budget
    ) -> tuple[HttpResponse, bool]:
        """Return the response to a request, and whether the connection can be used again."""
        bounded = _BoundedSocket(self._socket, budget)
        self._http.sock = bounded
        self._http.request(method, path, body=body, headers=headers)
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
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            failure = error
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


def split_credentials(text: str) -> tuple[str, str | None]:
    """Return a spec without the user name and password of its URL, and the authorization that they stand for."""
    found = URL.match(text)
    if found is None:
        return text, None
    credentials, at, host = found["authority"].rpartition("@")
    if not HOST_AND_PORT.fullmatch(host):
        # The text is not repeated: what looks like a port may be the start of a password that contains a slash.
        raise ClassifierError(
            "the URL of a remote model has an invalid host or port (not shown, since it may contain a password); "
            "expected http://HOST:PORT/..., with '/', '?', '#' and '@' percent-encoded in a user name or password."
        )
    if not at:
        return text, None
    user, _, password = credentials.partition(":")
    token = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
    return f"{text[: found.start('authority')]}{host}{text[found.end() :]}", f"Basic {token}"


def read_header_from_env(variable: str, spec: str) -> tuple[str, str]:
    """Return the name and the value of the HTTP header that an environment variable holds."""
    line = os.environ.get(variable)
    if not line:
        raise ClassifierError(
            f"of {spec!r} is not set",
            argument="header_from_env",
            value=variable,
            repair="set this environment variable to a whole header, such as 'Authorization: Bearer TOKEN'",
        )
    name, colon, value = line.partition(":")
    if not colon:
        raise ClassifierError(
            f"the environment variable {variable!r} of {spec!r} does not hold a header; "
            "expected a name and a value, such as 'Authorization: Bearer TOKEN'."
        )
    return name.strip(), value.strip()


def merge_headers(groups: Iterable[Mapping[str, str]], spec: str) -> dict[str, str]:
    """Return the headers of all groups; messages show their names only."""
    merged: dict[str, str] = {}
    for name, value in ((name, value) for group in groups for name, value in group.items()):
        if not HEADER_NAME.fullmatch(str(name)) or not HEADER_VALUE.fullmatch(str(value)):
            raise ClassifierError(
                f"a header of {spec!r} is invalid (not shown, since it may be secret); expected a name of letters, "
                "digits and hyphens, and a value of one line."
            )
        if str(name).lower() in (known.lower() for known in merged):
            raise ClassifierError(
                f"duplicate header {name!r} for {spec!r}",
                repair=Repair("give it once, in the URL or in {headers}", headers=ANY),
            )
        merged[str(name)] = str(value)
    return merged
