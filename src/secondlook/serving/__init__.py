"""Serving: a policy becomes an HTTP service with a review queue and a dashboard, and the client of such a service."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes

if TYPE_CHECKING:
    from secondlook.serving.client import Client, ServedDecision
    from secondlook.serving.faults import RequestError
    from secondlook.serving.options import ServiceOptions
    from secondlook.serving.request_log import configure_logging
    from secondlook.serving.reviewed_service import read_reviewed_service
    from secondlook.serving.server import run_server
    from secondlook.serving.service import Service, open_service
    from secondlook.serving.tokens import TokenFile, open_tokens

__all__ = [
    "Client",
    "RequestError",
    "ServedDecision",
    "Service",
    "ServiceOptions",
    "TokenFile",
    "configure_logging",
    "open_service",
    "open_tokens",
    "read_reviewed_service",
    "run_server",
]

# The service needs the packages of an extra, which the client does not.
_MODULES = {
    "Client": "client",
    "RequestError": "faults",
    "ServedDecision": "client",
    "Service": "service",
    "ServiceOptions": "options",
    "TokenFile": "tokens",
    "configure_logging": "request_log",
    "open_service": "service",
    "open_tokens": "tokens",
    "read_reviewed_service": "reviewed_service",
    "run_server": "server",
}
__getattr__ = lazy_attributes(__name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()})
