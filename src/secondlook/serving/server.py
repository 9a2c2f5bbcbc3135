"""The web application and its server, with a graceful shutdown that finishes pending requests."""

import asyncio
import errno
import gc
import ipaddress
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from secondlook import __version__
from secondlook.extension import ANY, Repair, SecondLookError, ServingError
from secondlook.serving import (
    decide_routes,
    image_routes,
    inference_routes,
    pages,
    review_routes,
    trail_routes,
    watch_routes,
)
from secondlook.serving.decision_worker import make_request_error
from secondlook.serving.middleware import MAX_HEADER_BYTES, RequestLimits, RequestLog, configure_logging
from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import ERRORS, RequestError
from secondlook.serving.service import Service, open_service

SUMMARY = "Decides whether to accept the predictions of an image classifier, and queues the others for review."
MAX_CONNECTIONS = 512
ADDRESS_SHARE = 2
"""One address may have 1 / ADDRESS_SHARE of all connections."""
IDLE_SECONDS = 75
"""How long an idle connection stays open; longer than in proxies, so that they close it first."""
STOP_SECONDS = 60
"""Time for pending requests to finish when the service stops."""


def serve(
    policy: str | Path,
    options: ServiceOptions,
    *,
    classifier: object = None,
    device: str = "auto",
    ready: Callable[[str], None] | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    quiet: bool = False,
) -> None:
    """Serve a policy until SIGTERM or SIGINT, then finish pending requests.

    Parameters
    ----------
    policy
        The policy file. If the service has already replaced it with a newer policy, the newer one stays in force.
    options
        Limits, storage, and the address.
    classifier
        The classifier of the policy; see `load_policy`.
    device
        Device of the classifier: "auto", "cpu", "cuda" or "cuda:N"; see `collect`.
    ready
        Called with the address once the service accepts requests.
    certificate
        PEM file with the certificate chain, to serve HTTPS; None for HTTP.
    key
        PEM file with the private key; None if the certificate file contains it.
    quiet
        Whether to log only warnings and errors, instead of every request.
    """
    opened = open_service(policy, options, classifier=classifier, device=device)
    with configure_logging(quiet=quiet), opened as service:
        run_server(service, ready=ready, certificate=certificate, key=key)


def run_server(
    service: Service, *, ready: Callable[[str], None] | None, certificate: Path | None, key: Path | None
) -> None:
    """Run the web server of a started service; see `serve`. Port 0 is any free port."""
    check_certificate(certificate, key)
    with bind_sockets(service.options) as sockets:
        server = make_server(service, certificate=certificate, key=key)
        # Freeze startup objects so that the garbage collector skips them: it took a third of the loop's time.
        gc.collect()
        gc.freeze()
        if ready is not None:  # the sockets listen already
            port = sockets[0].getsockname()[1]
            ready(format_address(service.options.host, port, secure=certificate is not None))
        try:
            server.run(sockets)
        finally:
            gc.unfreeze()


def create_app(service: Service) -> FastAPI:
    """Return the application of a service."""
    # No docs pages of FastAPI: they load scripts from other hosts.
    app = FastAPI(
        title="secondlook", summary=SUMMARY, version=__version__, responses=ERRORS, docs_url=None, redoc_url=None
    )
    app.state.service = service
    only_services = (decide_routes, inference_routes, trail_routes, watch_routes) if service.labeling is None else ()
    for routes in (*only_services, review_routes, image_routes, pages):
        app.include_router(routes.router)
    for kind in (SecondLookError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle_error)
    # The last added middleware runs first.
    app.add_middleware(RequestLimits, options=service.options)
    app.add_middleware(RequestLog, metrics=service.metrics)
    return app


async def handle_error(request: Request, error: Exception) -> Response:
    """Return an error as JSON, in the format of the route's protocol."""
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method"}.get(error.status_code, "invalid")
        error = RequestError(error.status_code, code, f"{error.detail.rstrip('.')}.", headers=error.headers)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        error = RequestError(422, "invalid", f"{'.'.join(map(str, first['loc']))}: {first['msg'].rstrip('.')}.")
    made = make_request_error(error)
    content = made.encode(request.url.path)
    return Response(content, status_code=made.status, media_type="application/json", headers=made.headers)


def make_server(service: Service, *, certificate: Path | None = None, key: Path | None = None) -> uvicorn.Server:
    """Return the web server of a service, not yet running."""
    config = uvicorn.Config(
        create_app(service),
        http=_Connection,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=count_connections(),
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # it would contain query strings
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    return _Server(config, service)


class _Connection(H11Protocol):
    """A connection, closed if it stays silent or its address has too many; h11 limits headers, chunks and trailers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        addresses = [(getattr(one, "client", None) or ("",))[0] for one in (self, *self.connections)]
        if addresses.count(addresses[0]) > 1 + max(1, count_connections() // ADDRESS_SHARE):  # it is listed twice
            transport.close()
        else:  # ended by the first bytes
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)


class _Server(uvicorn.Server):
    """A server that returns after a signal, instead of raising it again, and when labeling is over."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def on_tick(self, counter: int) -> bool:
        labeling = self._service.labeling
        return await super().on_tick(counter) or (labeling is not None and labeling.is_over)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # close the service before the process ends


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Check that the files for HTTPS are usable."""
    if certificate is None:
        if key is not None:
            repair = Repair("pass {certificate}, the PEM file with the certificate chain", certificate=ANY)
            raise ServingError("has no certificate", argument="key", repair=repair)
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        fault = f"cannot be used ({error.strerror or error}); expected PEM files with the chain and its key"
        raise ServingError(fault, argument="certificate", value=str(certificate)) from None


@contextmanager
def bind_sockets(options: ServiceOptions) -> Iterator[list[socket.socket]]:
    """Listen on all addresses of a host, IPv4 first; raise an error if a local host name has a public address."""
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        port = options.port
        try:
            found = socket.getaddrinfo(options.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            places = sorted({(family, str(address[0])) for family, *_, address in found})
            for number, (family, place) in enumerate(places, start=1):
                if options.is_local and not ipaddress.ip_address(place.partition("%")[0]).is_loopback:
                    repair = Repair("pass {host}, or that address", host="127.0.0.1")
                    raise ServingError(f"is public ({place})", argument="host", value=options.host, repair=repair)
                try:
                    bound = stack.enter_context(socket.create_server((place, port), family=family))
                except OSError as error:
                    is_missing = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # e.g. ::1 without IPv6
                    if not is_missing or (number == len(places) and not sockets):
                        raise
                else:
                    sockets.append(bound)
                    port = bound.getsockname()[1]
        except (OSError, UnicodeError) as error:
            fault = f"cannot be used with port {options.port}: {getattr(error, 'strerror', None) or error}"
            advice = "choose another port or host, or stop the program that uses it"
            raise ServingError(fault, argument="host", value=options.host, repair=advice) from None
        yield sockets


def format_address(host: str, port: int, *, secure: bool) -> str:
    """Return a URL of a service that works on its own machine."""
    name = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}:{port}"


def count_connections() -> int:
    """Return the connection limit of the service: at most half of the process's open file limit."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files // 2))
