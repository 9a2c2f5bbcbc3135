"""Who may do what: tokens of programs, sessions of browsers, and defenses against requests that other sites make."""

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from secondlook.extension import ServingError
from secondlook.serving.database import Database, StorageError, sessions
from secondlook.serving.options import ServiceOptions
from secondlook.serving.pages import PAGES, SESSION_COOKIE, render_page, set_session_cookie
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal, TokenFile, TokenFileError

if TYPE_CHECKING:
    from secondlook.serving.service import Service

LOGGER = logging.getLogger(__name__)
LOGIN_PAGE = "/login"
WRONG_TOKEN = "This token is not valid. Check that it is complete; it begins with sl_."
ADD_TOKEN = "secondlook token add NAME --role admin --data-dir DIR"
"""The command that makes a token, whoever starts the service."""
CSRF_HEADER = "X-CSRF-Token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
"""What browsers say of requests by pages of other origins; "same-site" is another port or subdomain."""
DEFAULT_PORTS = {"http": "80", "https": "443"}
LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)
SESSION_SECONDS = 12 * 3600.0
LONGEST_COOKIE = 200


@dataclass(frozen=True)
class Session:
    """A browser that is logged in."""

    digest: str
    token_id: str
    """The token that it logged in with: the session ends when that is removed."""
    csrf: str = field(repr=False)

    @property
    def owner(self) -> str:
        """What owns the leases of images in review."""
        return f"browser:{self.digest[:32]}"


class SessionStore:
    """Browsers that are logged in: rows of the database, so that a restart logs nobody out.

    The database has only the sha256 of each cookie, so a copy of it lets nobody in.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def start(self, request: Request, token_id: str) -> Session:
        """Begin a session of whoever has a token; the response to the request gets its cookie."""
        cookie = f"{token_id}.{secrets.token_urlsafe(32)}"
        session = Session(_digest(cookie), token_id, secrets.token_urlsafe(32))
        now = time.time()
        values = {"digest": session.digest, "csrf": session.csrf, "expires_at": now + SESSION_SECONDS}
        with self._database.write() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires_at < now))
            connection.execute(sa.insert(sessions).values(values))
        request.state.session_cookie = cookie
        return session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, if it has not ended."""
        if len(cookie) > LONGEST_COOKIE:
            return None
        is_live = (sessions.c.digest == _digest(cookie)) & (sessions.c.expires_at >= time.time())
        for row in self._database.fetch(sa.select(sessions).where(is_live)):
            return Session(row.digest, cookie.partition(".")[0], row.csrf)
        return None

    def end(self, cookie: str) -> None:
        """End the session of a cookie."""
        with self._database.write() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.digest == _digest(cookie)))


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).hexdigest()


class Access:
    """The checks of one instance.

    Without any token, a service on loopback is open to everyone on its machine. It closes when the first token is
    added, and stays closed until it is started again: removing the last token does not reopen the service.
    """

    def __init__(self, options: ServiceOptions, tokens: TokenFile, sessions: SessionStore) -> None:
        self.tokens, self.sessions = tokens, sessions
        self._may_be_open = options.is_local

    @property
    def is_open(self) -> bool:
        """Whether everyone on this machine may do everything."""
        if self._may_be_open and self.tokens.list():
            self._may_be_open = False
        return self._may_be_open

    def require(self, permission: Permission) -> Callable[[Request], Awaitable[Principal]]:
        """Return a dependency for routes that need a permission; it returns who sends the request."""

        async def check_permission(request: Request) -> Principal:
            check_site(request)
            with hide_token_errors():
                principal = await self._authenticate(request)
            if principal is None:
                raise _ask_for_token(request)
            request.state.principal = principal
            if not principal.may(permission):
                raise RequestError(
                    403,
                    "permission",
                    f"the role {principal.role!r} may not {permission}; use the token of somebody who may.",
                )
            return principal

        return check_permission

    async def _authenticate(self, request: Request) -> Principal | None:
        credentials = request.headers.get("authorization")
        if credentials is not None:
            scheme, _, token = credentials.partition(" ")
            if scheme.lower() != "bearer":
                return None
            # Argon2 would block the event loop for milliseconds; a token that was checked before does not need it.
            return self.tokens.recall(token.strip()) or await run_in_threadpool(self.tokens.check, token.strip())
        is_open = self.is_open
        if is_open:
            check_local_host(request)
        if SESSION_COOKIE in request.cookies:
            found = await run_in_threadpool(self.find_browser, request)
            if found is not None:
                if request.method not in SAFE_METHODS:
                    check_csrf(found, request.headers.get(CSRF_HEADER, ""))
                return found
        return await self._admit_locally(request) if is_open else None

    def find_browser(self, request: Request) -> Principal | None:
        """Return who is logged in by a cookie, if its session has not ended and its token was not removed."""
        session = self.sessions.find(request.cookies.get(SESSION_COOKIE, ""))
        if session is None:
            return None
        if session.token_id == LOCAL_NAME:
            return Principal(LOCAL_NAME, "admin", session.owner, session.csrf) if self.is_open else None
        record = self.tokens.find(session.token_id)
        return None if record is None else Principal(record.name, record.role, session.owner, session.csrf)

    async def _admit_locally(self, request: Request) -> Principal | None:
        """Let a program or browser of this machine in; a browser that opens a page gets a session.

        The sessions make two browser profiles two owners of leases.
        """
        if opens_page(request):
            if is_foreign(request):
                return None  # its cookie was withheld; the login page makes the browser ask again
            if request.url.path in PAGES:
                return await run_in_threadpool(self._start_local_session, request)
        if request.method not in SAFE_METHODS and ("origin" in request.headers or "sec-fetch-site" in request.headers):
            raise _make_csrf_error()  # a page in a browser
        return Principal(LOCAL_NAME, "admin", LOCAL_NAME)

    def _start_local_session(self, request: Request) -> Principal:
        """Start the session of a page; it is shown without one if that cannot be stored, since it tells why."""
        try:
            session = self.sessions.start(request, LOCAL_NAME)
        except StorageError as error:
            LOGGER.warning("session not stored", extra={"reason": str(error)})
            return Principal(LOCAL_NAME, "admin", LOCAL_NAME)
        return Principal(LOCAL_NAME, "admin", session.owner, session.csrf)


def make_access_router(service: "Service") -> APIRouter:
    """Return the routes to log in and out."""
    router = APIRouter(include_in_schema=False, dependencies=[Depends(check_site)])
    access = service.access

    @router.get(LOGIN_PAGE)
    def show_login(request: Request, target: Annotated[str, Query(alias="next")] = "/") -> Response:
        # A link on another site makes the browser withhold the cookie: ask again, as a page of this service.
        reload = is_foreign(request)
        with hide_token_errors():
            if not reload and (access.is_open or access.find_browser(request) is not None):
                return RedirectResponse(check_target(target), status_code=303)
        return _render_login(request, target, reload=reload)

    @router.post(LOGIN_PAGE)
    def log_in(
        request: Request, token: Annotated[str, Form()] = "", target: Annotated[str, Form(alias="next")] = "/"
    ) -> Response:
        try:
            with hide_token_errors():
                principal = access.tokens.check(token.strip())
        except RequestError as error:  # too many at once
            return _render_login(request, target, status=error.status, fault=f"The login failed: {error}")
        if principal is None:
            return _render_login(request, target, status=401, fault=WRONG_TOKEN)
        access.sessions.start(request, principal.session.removeprefix("token:"))
        response = RedirectResponse(check_target(target), status_code=303)
        set_session_cookie(request, response)
        return response

    @router.post("/logout")
    def log_out(request: Request, csrf: Annotated[str, Form()] = "") -> Response:
        with hide_token_errors():
            principal = access.find_browser(request)
        if principal is not None:
            check_csrf(principal, csrf)
            service.reviews.release(principal.session)
            access.sessions.end(request.cookies[SESSION_COOKIE])
        response = RedirectResponse(LOGIN_PAGE, status_code=303)
        response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
        return response

    return router


def _render_login(
    request: Request, target: str, *, status: int = 200, fault: str = "", reload: bool = False
) -> Response:
    """Return the login page; `target` is opened afterwards, and `fault` says what went wrong before."""
    values = {"target": check_target(target), "fault": fault, "reload": reload}
    return render_page("login.html", None, request=request, status=status, **values)


def check_target(address: str) -> str:
    """Return the page to open after logging in: one of this service, whatever a link says."""
    is_path = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_path and address.isascii() and address.isprintable() else "/"


@contextmanager
def hide_token_errors() -> Iterator[None]:
    """Let nobody in if the tokens cannot be read; only the log says why."""
    try:
        yield
    except TokenFileError as error:
        LOGGER.error("tokens", extra={"reason": str(error)})
        raise RequestError(
            503, "tokens", "the tokens of the service cannot be read; tell whoever runs the service."
        ) from None


def _ask_for_token(request: Request) -> RequestError:
    if opens_page(request):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        location = f"{LOGIN_PAGE}?next={quote(target, safe='')}"
        return RequestError(303, "login", "log in first.", headers={"Location": location})
    message = "the token is wrong" if "authorization" in request.headers else "the request has no token"
    return RequestError(
        401,
        "token",
        f"{message}; send the header 'Authorization: Bearer TOKEN' with a token of this service.",
        headers={"WWW-Authenticate": 'Bearer realm="secondlook"'},
    )


def check_binding(options: ServiceOptions, tokens: TokenFile) -> None:
    """Check that a service that others can reach has a token."""
    if not options.is_local and not tokens.list():
        raise ServingError(
            "can be reached by other machines, and the service has no token, so everyone could use it",
            argument="host",
            value=options.host,
            repair=f"make one first with {ADD_TOKEN!r}",
        )


def check_site(request: Request) -> None:
    """Refuse requests that pages of other sites make; links to pages are fine, since they change nothing."""
    if is_foreign(request) and not (request.method == "GET" and is_navigation(request)):
        raise RequestError(
            403, "cross_site", "a page of another site made this request; only the pages of this service may."
        )


def check_csrf(principal: Principal, given: str) -> None:
    """Check that a change comes from a page of this session: other sites cannot read what the page was given."""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), (principal.csrf or "").encode()):
        raise _make_csrf_error()


def _make_csrf_error() -> RequestError:
    return RequestError(403, "csrf", f"the header {CSRF_HEADER} is missing or outdated; reload the page.")


def check_local_host(request: Request) -> None:
    """Check that a service without tokens is addressed as this machine.

    A page of an attacker's site can make the browser resolve its own name to 127.0.0.1 (DNS rebinding) and would then
    be taken for a page of this service; and what comes through a proxy is not of this machine.
    """
    if not is_loopback(request.headers.get("host", "")):
        raise RequestError(
            400,
            "host",
            "a service without tokens must be addressed as localhost or 127.0.0.1; to use another name, add a token "
            "with 'secondlook token add'.",
        )
    if "x-forwarded-for" in request.headers or "forwarded" in request.headers:
        raise RequestError(
            403,
            "proxy",
            "a service without tokens cannot be used through a proxy; add one with 'secondlook token add'.",
        )


def is_loopback(host: str) -> bool:
    """Whether a Host header, with or without a port, is this machine."""
    return LOOPBACK_HOST.fullmatch(host) is not None


def is_foreign(request: Request) -> bool:
    """Whether a browser says that a page of another origin makes the request."""
    if request.headers.get("sec-fetch-site") in FOREIGN_SITES:
        return True
    origin = request.headers.get("origin")
    return origin is not None and not is_own_origin(origin, request.headers.get("host", ""))


def is_own_origin(origin: str, host: str) -> bool:
    """Whether the origin of a page is the host that the request goes to. The scheme may differ behind a proxy."""
    scheme, _, place = origin.lower().partition("://")
    default = DEFAULT_PORTS.get(scheme)
    return bool(default and place) and place.removesuffix(f":{default}") == host.lower().removesuffix(f":{default}")


def is_navigation(request: Request) -> bool:
    """Whether a browser opens the address in a window of its own, rather than embeds or fetches it."""
    mode, target = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")
    return mode in (None, "navigate") and target in (None, "document")


def opens_page(request: Request) -> bool:
    """Whether a browser opens a page, rather than a program reads data."""
    accepts = request.headers.get("accept", "")
    return request.method == "GET" and "text/html" in accepts and is_navigation(request)
