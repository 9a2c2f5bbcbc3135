"""The web server: listens, and stops without losing what is in work."""

import errno
import gc
import ipaddress
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from secondlook.errors import ServingError
from secondlook.serving.app import create_app
from secondlook.serving.connection_limits import GuardedProtocol
from secondlook.serving.options import ServiceOptions
from secondlook.serving.request_log import configure_logging

if TYPE_CHECKING:
    from secondlook.serving.service import Service

MAX_CONNECTIONS = 512
IDLE_SECONDS = 75
"""How long a connection is kept open between two requests; longer than proxies do, so that they close it first."""
STOP_SECONDS = 60
"""How long requests in work may take when the service stops."""
ALL_ADDRESSES = ("0.0.0.0", "::")
MISSING_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that the machine does not have, such as ::1 without IPv6."""


def run_server(
    service: "Service",
    *,
    ready: Callable[[str], None] | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    quiet: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; requests in work are finished.

    Parameters
    ----------
    service
        The service, which is running. The host and port are those of its options; port 0 is any free port.
    ready
        Called with the address once requests are served.
    certificate
        PEM file with the certificate chain, to serve HTTPS; None for HTTP.
    key
        PEM file with the private key of the certificate; None if the certificate file has it.
    quiet
        Whether to log warnings and errors only, and not every request.
    """
    check_certificate(certificate, key)
    with configure_logging(quiet=quiet), bind_sockets(service.options) as sockets:
        secure = certificate is not None
        address = format_address(service.options.host, sockets[0].getsockname()[1], secure=secure)
        server = make_server(
            service, certificate=certificate, key=key, ready=partial(ready, address) if ready else None
        )
        with freeze_objects():
            server.run(sockets)


@contextmanager
def freeze_objects() -> Iterator[None]:
    """Exclude all objects of now, which stay, from garbage collection: to go through them takes a third of the loop."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def make_server(
    service: "Service",
    *,
    ready: Callable[[], None] | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Server:
    """Return the web server of a service, not yet running."""
    protocol = partial(GuardedProtocol, options=service.options, max_connections=count_connections())
    config = uvicorn.Config(
        create_app(service),
        http=protocol,  # type: ignore[arg-type]  # it is called like a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    return _Server(config, ready)


class _Server(uvicorn.Server):
    """A server that says when it is ready, and returns when a signal stopped it instead of raising the signal again."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready is not None:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # what the service holds must be closed before the process ends


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Check that the files for HTTPS can be used."""
    if certificate is None:
        if key is not None:
            raise ServingError("key= needs certificate=, the PEM file with the certificate chain.")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        files = repr(str(certificate)) if key is None else f"{str(certificate)!r} and {str(key)!r}"
        raise ServingError(
            f"the certificate cannot be used ({error.strerror or error}); expected PEM files with the certificate "
            f"chain and its private key, got {files}."
        ) from None


@contextmanager
def bind_sockets(options: ServiceOptions) -> Iterator[list[socket.socket]]:
    """Listen at all addresses of a host; only at those of this machine if the service takes everyone for local."""
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        port, missing = options.port, None
        for family, place in resolve_host(options):
            try:
                bound = stack.enter_context(socket.create_server((place, port), family=family))
            except OSError as error:
                if error.errno not in MISSING_FAMILY:
                    raise _refuse_address(options, error) from None
                missing = error
            else:
                sockets.append(bound)
                port = bound.getsockname()[1]
        if not sockets and missing is not None:
            raise _refuse_address(options, missing)
        yield sockets


def resolve_host(options: ServiceOptions) -> list[tuple[socket.AddressFamily, str]]:
    """Return the address families and addresses of a host, IPv4 first."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _refuse_address(options, error) from None
    places: list[tuple[socket.AddressFamily, str]] = sorted(
        {(family, str(address[0])) for family, *_, address in found}
    )
    for _, place in places:
        if options.is_local and not ipaddress.ip_address(place.partition("%")[0]).is_loopback:
            raise ServingError(
                f"host={options.host!r} is {place}, which other machines can reach; pass host='127.0.0.1', or "
                "that address."
            )
    return places


def format_address(host: str, port: int, *, secure: bool) -> str:
    """Return a URL of a service that can be opened on its machine."""
    name = "localhost" if host in ALL_ADDRESSES else f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}:{port}"


def count_connections() -> int:
    """Return how many connections the service takes: at most half of the files that the process may open."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files // 2))


def _refuse_address(options: ServiceOptions, error: Exception) -> ServingError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ServingError(
        f"cannot listen at host={options.host!r}, port={options.port}: {reason}; choose another port or host, or "
        "stop what uses it."
    )
