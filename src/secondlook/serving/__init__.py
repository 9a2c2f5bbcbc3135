"""Serving: run a policy as an HTTP service with a review queue and a dashboard, and call it with a client."""

from typing import TYPE_CHECKING

from secondlook.extension import lazy_attributes

if TYPE_CHECKING:
    from secondlook.serving.client import Client
    from secondlook.serving.options import ServiceOptions
    from secondlook.serving.server import serve

__all__ = ["Client", "ServiceOptions", "serve"]

# Lazy, since only the service needs the packages of the extra `serve`, not the client.
_MODULES = {"Client": "client", "ServiceOptions": "options", "serve": "server"}
__getattr__ = lazy_attributes(__name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()})
