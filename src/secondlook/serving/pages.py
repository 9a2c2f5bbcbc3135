"""HTML pages: dashboard, review and login, with their style sheets and scripts."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from shlex import quote
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from secondlook.extension import Answer
from secondlook.serving.access import LOGIN_PAGE, PAGES, SESSION_COOKIE, check_csrf, check_site, is_foreign, require
from secondlook.serving.responses import RequestError
from secondlook.serving.review_routes import find_class_names
from secondlook.serving.service import CurrentService, Service
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal

ANSWER_MEANINGS = {
    Answer.NONE_OF_THESE: "it shows none of the classes",
    Answer.CANNOT_TELL: "you cannot identify the image",
    Answer.BAD_IMAGE: "it is unusable, for example black or blurred",
}
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)
own_site = [Depends(check_site)]


@router.get("/")
async def show_dashboard(
    request: Request, service: CurrentService, principal: Annotated[Principal, Depends(require("watch"))]
) -> Response:
    """Show the dashboard; while labeling for a policy, redirect to the review page."""
    if service.labeling is not None:
        return RedirectResponse("/review", status_code=303)
    where = "DATABASE_URL" if service.options.database else str(service.options.data_dir)  # the URL has a password
    command = f"secondlook calibrate --reviewed {quote(where)} --out next.json"
    return render_page("dashboard.html", principal, request=request, command=command)


@router.get("/review")
def show_review(
    request: Request,
    service: CurrentService,
    principal: Annotated[Principal, Depends(require("review"))],
    queue: Literal["all", "audits"] = "all",
) -> Response:
    """Show the page for reviewers, with all images or with audits only."""
    is_labeling = service.labeling is not None
    return render_page(
        "review.html",
        principal,
        request=request,
        links={} if is_labeling else PAGES,
        is_labeling=is_labeling,
        queue=queue,
        owner=f"{hash_seed(service)}/{principal.name}",
        answers=Answer.list_offered(find_class_names(service) or ()),
        meanings=ANSWER_MEANINGS,
    )


@router.get("/history")
@router.get("/reviewers")
def show_labels(
    request: Request, service: CurrentService, principal: Annotated[Principal, Depends(require("review"))]
) -> Response:
    """Show the page of all labels or of the reviewers; while labeling for a policy, redirect to the review page."""
    if service.labeling is not None:
        return RedirectResponse("/review", status_code=303)
    return render_page(f"{request.url.path[1:]}.html", principal, request=request)


def hash_seed(service: Service) -> str:
    """Return a public name of the database, so that a browser never sends labels of one service to another."""
    return hashlib.sha256(f"outbox {service.database.audit_seed}".encode()).hexdigest()[:16]


@router.get("/static/{name}")
def send_static(name: str, v: str = "") -> Response:
    """Return a style sheet or script; these are public."""
    content, version = _load_static(name)
    # Pages request it with its version, so browsers cache it until it changes.
    caching = f"public, max-age={365 * 86400}, immutable" if v == version else "no-cache"
    return Response(content, media_type=MEDIA_TYPES[PurePath(name).suffix], headers={"Cache-Control": caching})


@router.get(LOGIN_PAGE, dependencies=own_site)
def show_login(
    request: Request, service: CurrentService, target: Annotated[str, Query(alias="next")] = "/"
) -> Response:
    """Show the login page; redirect if the browser has access already."""
    # After a link on another site, the browser withholds the cookie: reload, as a page of this service.
    reload, access = is_foreign(request), service.access
    if not reload and (access.is_open or access.find_browser(request) is not None):
        return RedirectResponse(check_target(target), status_code=303)
    return _render_login(request, target, reload=reload)


@router.post(LOGIN_PAGE, dependencies=own_site)
def log_in(
    request: Request,
    service: CurrentService,
    token: Annotated[str, Form()] = "",
    target: Annotated[str, Form(alias="next")] = "/",
) -> Response:
    """Start a session with a token."""
    try:
        principal = service.tokens.check(token.strip())
    except RequestError as error:  # too many at once
        return _render_login(request, target, status=error.status, fault=f"The login failed: {error}")
    if principal is None:
        fault = "This token is not valid. Check that it is complete; it starts with sl_."
        return _render_login(request, target, status=401, fault=fault)
    service.access.start_session(request, principal.session.removeprefix("token:"))
    response = RedirectResponse(check_target(target), status_code=303)
    set_session_cookie(request, response)
    return response


@router.post("/logout", dependencies=own_site)
def log_out(request: Request, service: CurrentService, csrf: Annotated[str, Form()] = "") -> Response:
    """End a session, and release its images."""
    principal = service.access.find_browser(request)
    if principal is not None:
        check_csrf(principal, csrf)
        service.reviews.release(principal.session)
        service.access.end_session(request)
    response = RedirectResponse(LOGIN_PAGE, status_code=303)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _render_login(
    request: Request, target: str, *, status: int = 200, fault: str = "", reload: bool = False
) -> Response:
    """Return the login page; `target` is the page to open next, `fault` the error of the last attempt."""
    values: dict[str, Any] = {"target": check_target(target), "fault": fault, "reload": reload}
    return render_page("login.html", None, request=request, status=status, **values)


def check_target(address: str) -> str:
    """Return the page to open after the login, or "/" for an address outside this service."""
    is_path = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_path and address.isascii() and address.isprintable() else "/"


def render_page(
    template: str,
    principal: Principal | None,
    *,
    request: Request,
    status: int = 200,
    links: Mapping[str, tuple[str, Permission]] = PAGES,
    **values: Any,
) -> HTMLResponse:
    """Render a template of the folder `pages`; all text is escaped."""
    html = TEMPLATES.get_template(template).render(
        principal=principal,
        csrf=None if principal is None else principal.csrf,
        can_log_out=principal is not None and principal.csrf is not None and principal.name != LOCAL_NAME,
        links=links,
        path=request.url.path,
        **values,
    )
    response = HTMLResponse(html, status_code=status)
    set_session_cookie(request, response)
    return response


def set_session_cookie(request: Request, response: Response) -> None:
    """Set the cookie if this request started a session (`request.state.session_cookie`).

    Scripts cannot read it, browsers do not send it from other sites, and over TLS it is never sent unencrypted.
    """
    cookie = getattr(request.state, "session_cookie", None)
    if cookie is not None:
        secure = request.url.scheme == "https"
        response.set_cookie(SESSION_COOKIE, cookie, httponly=True, samesite="strict", secure=secure, path="/")


@cache
def _load_static(name: str) -> tuple[bytes, str]:
    """Return a style sheet or script of the service or of reports, with its version."""
    for folder in (files("secondlook.report") / "templates", files("secondlook.serving") / "pages" / "static"):
        if PurePath(name).suffix in MEDIA_TYPES and name in [file.name for file in folder.iterdir()]:
            content = (folder / name).read_bytes()
            return content, hashlib.sha256(content).hexdigest()[:16]
    raise RequestError(404, "not_found", f"there is no file {name!r}.")


TEMPLATES = Environment(
    loader=PackageLoader("secondlook.serving", "pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["static"] = lambda name: f"/static/{name}?v={_load_static(name)[1]}"
