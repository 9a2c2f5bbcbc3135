"""Pages as HTML: templates with the header of the service, their style sheets and scripts."""

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal

if TYPE_CHECKING:
    pass

LINKS: tuple[tuple[str, str, Permission], ...] = (
    ("/", "Dashboard", "watch"),
    ("/review", "Review", "review"),
)
"""Address, text and required permission of the pages in the header."""
PAGES = frozenset(address for address, _, _ in LINKS)
"""Addresses of all pages but the login."""
SESSION_COOKIE = "secondlook_session"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ONE_YEAR = 365 * 86400


def make_pages_router() -> APIRouter:
    """Return the route of style sheets and scripts, which everyone may read."""
    router = APIRouter(include_in_schema=False)

    @router.get("/static/{name}")
    def send_static(name: str, v: str = "") -> Response:
        content, version = _load_static(name)
        # Pages ask for it with its version, so that a browser keeps it until it changes.
        caching = f"public, max-age={ONE_YEAR}, immutable" if v == version else "no-cache"
        return Response(content, media_type=MEDIA_TYPES[PurePath(name).suffix], headers={"Cache-Control": caching})

    return router


def render_page(
    template: str, principal: Principal | None, *, request: Request, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a template of the folder `pages` as a response; all text is escaped."""
    page = _make_environment().get_template(template)
    html = page.render(
        principal=principal,
        csrf=None if principal is None else principal.csrf,
        can_log_out=principal is not None and principal.csrf is not None and principal.name != LOCAL_NAME,
        links=LINKS,
        path=request.url.path,
        **values,
    )
    response = HTMLResponse(html, status_code=status)
    set_session_cookie(request, response)
    return response


def set_session_cookie(request: Request, response: Response) -> None:
    """Add the cookie of the session that began with this request, if one did (`request.state.session_cookie`).

    Scripts cannot read it, other sites cannot make a browser send it, and over TLS it never travels in the clear.
    """
    cookie = getattr(request.state, "session_cookie", None)
    if cookie is not None:
        secure = request.url.scheme == "https"
        response.set_cookie(SESSION_COOKIE, cookie, httponly=True, samesite="strict", secure=secure, path="/")


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("secondlook.serving", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = lambda name: f"/static/{name}?v={_load_static(name)[1]}"
    return environment


@cache
def _list_static() -> dict[str, Traversable]:
    """Return the files that can be loaded, by name: those of the service, and those that reports have, too."""
    folders = (files("secondlook.report") / "templates", files("secondlook.serving") / "pages" / "static")
    return {one.name: one for folder in folders for one in folder.iterdir() if PurePath(one.name).suffix in MEDIA_TYPES}


def _load_static(name: str) -> tuple[bytes, str]:
    """Return the content of a style sheet or script, and its version."""
    file = _list_static().get(name)
    if file is None:
        raise RequestError(404, "not_found", f"there is no file {name!r}.")
    content = file.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]
