"""Pages as HTML: templates with the header of the service, and the style sheets and scripts that they load."""

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from secondlook.serving.faults import RequestError
from secondlook.serving.sessions import set_session_cookie
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal

LINKS: tuple[tuple[str, str, Permission], ...] = (
    ("/", "Dashboard", "watch"),
    ("/review", "Review", "review"),
    ("/docs", "API", "watch"),
)
"""Address, text and required permission of the pages in the header."""
PAGES = frozenset(address for address, _, _ in LINKS)
"""Addresses of all pages but the login."""
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ONE_YEAR = 365 * 86400


def render_page(
    template: str, principal: Principal | None, *, request: Request, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a template of the folder `pages` as a response; all text is escaped."""
    html = (
        _make_environment()
        .get_template(template)
        .render(
            principal=principal,
            csrf=None if principal is None else principal.csrf,
            can_log_out=principal is not None and principal.csrf is not None and principal.name != LOCAL_NAME,
            links=LINKS,
            path=request.url.path,
            **values,
        )
    )
    response = HTMLResponse(html, status_code=status)
    set_session_cookie(request, response)
    return response


def read_static(name: str, version: str) -> Response:
    """Return a style sheet or script as a response.

    Pages ask for it with its version, so that a browser keeps it until it changes.
    """
    content, current = _load_static(name)
    caching = f"public, max-age={ONE_YEAR}, immutable" if version == current else "no-cache"
    return Response(content, media_type=MEDIA_TYPES[_suffix(name)], headers={"Cache-Control": caching})


def static_address(name: str) -> str:
    """Return the address of a style sheet or script, which changes with its content."""
    return f"/static/{name}?v={_load_static(name)[1]}"


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("secondlook.serving", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = static_address
    return environment


@cache
def _list_static() -> dict[str, Traversable]:
    """Return the files that can be loaded, by name: those of the service, and those that reports have, too."""
    folders = (files("secondlook.report") / "templates", files("secondlook.serving") / "pages" / "static")
    return {one.name: one for folder in folders for one in folder.iterdir() if _suffix(one.name) in MEDIA_TYPES}


def _load_static(name: str) -> tuple[bytes, str]:
    file = _list_static().get(name)
    if file is None:
        raise RequestError(404, "not_found", f"there is no file {name!r}.")
    content = file.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
