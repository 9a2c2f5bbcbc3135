"""Routes to log in and out, and those of style sheets and scripts, which everyone may read."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from secondlook.serving.access import (
    LOGIN_PAGE,
    Access,
    check_site,
    csrf_error,
    hide_token_errors,
    is_csrf_token,
    is_foreign,
)
from secondlook.serving.faults import RequestError
from secondlook.serving.pages import read_static, render_page
from secondlook.serving.sessions import SESSION_COOKIE, announce_cookie, set_session_cookie

if TYPE_CHECKING:
    from secondlook.serving.service import Service

WRONG_TOKEN = "This token is not valid. Check that it is complete; it begins with sl_."


def make_access_router(service: "Service") -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)
    access = service.access

    @router.get("/static/{name}")
    def send_static(name: str, v: str = "") -> Response:
        return read_static(name, v)

    @router.get(LOGIN_PAGE, dependencies=[Depends(check_site)])
    def show_login(request: Request, target: Annotated[str, Query(alias="next")] = "/") -> Response:
        # A link on another site makes the browser withhold the cookie: ask again, as a page of this service.
        reload = is_foreign(request)
        with hide_token_errors():
            if not reload and (access.is_open or access.find_browser(request) is not None):
                return RedirectResponse(check_target(target), status_code=303)
        return render_login(request, target, reload=reload)

    @router.post(LOGIN_PAGE, dependencies=[Depends(check_site)])
    def log_in(
        request: Request, token: Annotated[str, Form()] = "", target: Annotated[str, Form(alias="next")] = "/"
    ) -> Response:
        return start_session(access, request, token.strip(), target)

    @router.post("/logout", dependencies=[Depends(check_site)])
    def log_out(request: Request, csrf: Annotated[str, Form()] = "") -> Response:
        return end_session(access, request, csrf, on_end=service.reviews.release)

    return router


def start_session(access: Access, request: Request, token: str, target: str) -> Response:
    """Log a browser in, or say on the login page why not."""
    try:
        with hide_token_errors():
            principal = access.tokens.check(token)
    except RequestError as error:  # too many at once
        return render_login(request, target, status=error.status, fault=f"The login failed: {error}")
    if principal is None:
        return render_login(request, target, status=401, fault=WRONG_TOKEN)
    cookie, _ = access.sessions.start(principal.session.removeprefix("token:"))
    announce_cookie(request, cookie)
    response = RedirectResponse(check_target(target), status_code=303)
    set_session_cookie(request, response)
    return response


def end_session(access: Access, request: Request, csrf: str, on_end: Callable[[str], None]) -> Response:
    """Log a browser out; `on_end` is told what owned its leases."""
    with hide_token_errors():
        principal = access.find_browser(request)
    if principal is not None:
        if not is_csrf_token(principal, csrf):
            raise csrf_error()
        on_end(principal.session)
        access.sessions.end(request.cookies[SESSION_COOKIE])
    response = RedirectResponse(LOGIN_PAGE, status_code=303)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response


def render_login(
    request: Request, target: str, *, status: int = 200, fault: str = "", reload: bool = False
) -> Response:
    """Return the login page; `target` is opened afterwards, and `fault` says what went wrong before."""
    values = {"target": check_target(target), "fault": fault, "reload": reload}
    return render_page("login.html", None, request=request, status=status, **values)


def check_target(address: str) -> str:
    """Return the page to open after logging in: one of this service, whatever a link says."""
    is_path = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_path and address.isascii() and address.isprintable() else "/"
