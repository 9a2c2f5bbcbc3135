"""Access control: tokens for programs, sessions for browsers, and protection against cross-site requests."""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from secondlook.extension import ServingError
from secondlook.serving.database import Database, StorageError, sessions
from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal, TokenFile

LOGGER = logging.getLogger(__name__)
LOGIN_PAGE = "/login"
PAGES: dict[str, tuple[str, Permission]] = {
    "/": ("Dashboard", "watch"),
    "/review": ("Review", "review"),
    "/history": ("History", "review"),
    "/reviewers": ("Reviewers", "review"),
}
"""Name and required permission of every page except the login, by address."""
SESSION_COOKIE = "secondlook_session"
CSRF_HEADER = "X-CSRF-Token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)
SESSION_SECONDS = 12 * 3600.0
LONGEST_COOKIE = 200


class Access:
    """Access checks of one instance.

    Without tokens, a service on loopback is open to everyone on its machine. Adding the first token closes it until
    the next start: removing the last token does not reopen the service.

    Browser sessions are rows of the database, so they survive a restart. Only the sha256 of each cookie is stored, so
    a copy of the database grants no access.
    """

    def __init__(self, options: ServiceOptions, tokens: TokenFile, database: Database) -> None:
        self.tokens, self._database = tokens, database
        self._checks: dict[str, asyncio.Task[Principal | None]] = {}
        """Running checks by token."""
        self._may_be_open = options.is_local

    @property
    def is_open(self) -> bool:
        """Whether everyone on this machine has full access."""
        if self._may_be_open and self.tokens.read():
            self._may_be_open = False
        return self._may_be_open

    async def authenticate(self, request: Request) -> Principal | None:
        """Return the sender of a request; None if unknown."""
        credentials = request.headers.get("authorization")
        if credentials is not None:
            scheme, _, token = credentials.partition(" ")
            if scheme.lower() != "bearer":
                return None
            return self.tokens.recall(token.strip()) or await self._check_token(token.strip())
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

    async def _check_token(self, token: str) -> Principal | None:
        """Check a token in a thread, since argon2 takes milliseconds; simultaneous requests share the check."""
        if token not in self._checks:
            self._checks[token] = asyncio.create_task(run_in_threadpool(self.tokens.check, token))
            self._checks[token].add_done_callback(lambda _: self._checks.pop(token))
        return await asyncio.shield(self._checks[token])

    def find_browser(self, request: Request) -> Principal | None:
        """Return the user logged in by a cookie; None if the session has ended or its token was removed."""
        cookie = request.cookies.get(SESSION_COOKIE, "")
        if len(cookie) > LONGEST_COOKIE:
            return None
        digest, token_id = _digest(cookie), cookie.partition(".")[0]
        is_live = (sessions.c.digest == digest) & (sessions.c.expires_at >= time.time())
        found = self._database.fetch(sa.select(sessions.c.csrf).where(is_live))
        if not found:
            return None
        session = _name_owner(digest), found[0].csrf
        if token_id == LOCAL_NAME:
            return Principal(LOCAL_NAME, "admin", *session) if self.is_open else None
        record = self.tokens.read().get(token_id)
        return None if record is None else Principal(record.name, record.role, *session)

    def start_session(self, request: Request, token_id: str) -> tuple[str, str]:
        """Start a session, and return its name and CSRF token; it ends when the token behind it is removed."""
        cookie, csrf = f"{token_id}.{secrets.token_urlsafe(32)}", secrets.token_urlsafe(32)
        digest, now = _digest(cookie), time.time()
        with self._database.write() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires_at < now))
            connection.execute(sa.insert(sessions).values(digest=digest, csrf=csrf, expires_at=now + SESSION_SECONDS))
        request.state.session_cookie = cookie
        return _name_owner(digest), csrf

    def end_session(self, request: Request) -> None:
        """End the session of a browser."""
        with self._database.write() as connection:
            is_own = sessions.c.digest == _digest(request.cookies[SESSION_COOKIE])
            connection.execute(sa.delete(sessions).where(is_own))

    async def _admit_locally(self, request: Request) -> Principal | None:
        """Admit a program or browser on this machine; a browser gets a session, which owns its leases."""
        if opens_page(request):
            if is_foreign(request):
                return None  # the browser withheld its cookie; the login page makes it try again
            if request.url.path in PAGES:
                try:
                    session = await run_in_threadpool(self.start_session, request, LOCAL_NAME)
                    return Principal(LOCAL_NAME, "admin", *session)
                except StorageError as error:  # without a session, the page can still show the reason
                    LOGGER.warning("session not stored", extra={"reason": str(error)})
        if request.method not in SAFE_METHODS and ("origin" in request.headers or "sec-fetch-site" in request.headers):
            raise _make_csrf_error()  # a page in a browser
        return Principal(LOCAL_NAME, "admin", LOCAL_NAME)


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).hexdigest()


def _name_owner(digest: str) -> str:
    """Return the name under which a session holds leases in the review queue."""
    return f"browser:{digest[:32]}"


def require(permission: Permission) -> Callable[[Request], Awaitable[Principal]]:
    """Return a route dependency that checks a permission and returns the sender of the request."""

    async def check_permission(request: Request) -> Principal:
        check_site(request)
        principal: Principal | None = await request.app.state.service.access.authenticate(request)
        if principal is None:
            raise _ask_for_token(request)
        request.state.principal = principal
        if not principal.may(permission):
            raise RequestError(403, "permission", f"role {principal.role!r} may not {permission}; use another token.")
        return principal

    return check_permission


def _ask_for_token(request: Request) -> RequestError:
    if opens_page(request):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        location = f"{LOGIN_PAGE}?next={quote(target, safe='')}"
        return RequestError(303, "login", "log in first.", headers={"Location": location})
    fault = "the token is wrong" if "authorization" in request.headers else "the request has no token"
    message = f"{fault}; send the header 'Authorization: Bearer TOKEN' with a token of this service."
    return RequestError(401, "token", message, headers={"WWW-Authenticate": 'Bearer realm="secondlook"'})


def check_binding(options: ServiceOptions, tokens: TokenFile) -> None:
    """Check that a service reachable from other machines has a token."""
    if not options.is_local and not tokens.read():
        repair = "create one first with 'secondlook token add NAME --role admin --data-dir DIR'"
        fault = "is reachable from other machines, but the service has no token"
        raise ServingError(fault, argument="host", value=options.host, repair=repair)


def check_site(request: Request) -> None:
    """Refuse requests from pages of other sites, except links, which change nothing."""
    if is_foreign(request) and not (request.method == "GET" and is_navigation(request)):
        raise RequestError(403, "cross_site", "the request comes from another site; use the pages of this service.")


def check_csrf(principal: Principal, given: str) -> None:
    """Check that a change comes from a page of this session: other sites cannot read its CSRF token."""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), (principal.csrf or "").encode()):
        raise _make_csrf_error()


def _make_csrf_error() -> RequestError:
    return RequestError(403, "csrf", f"the header {CSRF_HEADER} is missing or outdated; reload the page.")


def check_local_host(request: Request) -> None:
    """Check that a request to a service without tokens is addressed to this machine.

    With DNS rebinding, an attacker's host name resolves to 127.0.0.1, and the page passes as one of this service. A
    request through a proxy may come from another machine.
    """
    if LOOPBACK_HOST.fullmatch(request.headers.get("host", "")) is None:
        raise RequestError(400, "host", "without tokens, the address must be localhost or 127.0.0.1; add a token.")
    if "x-forwarded-for" in request.headers or "forwarded" in request.headers:
        raise RequestError(403, "proxy", "a service without tokens cannot be used through a proxy; add a token.")


def is_foreign(request: Request) -> bool:
    """Whether the browser reports that a page of another origin sent the request."""
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # the latter: another port or subdomain
        return True
    origin = request.headers.get("origin")
    return origin is not None and not is_own_origin(origin, request.headers.get("host", ""))


def is_own_origin(origin: str, host: str) -> bool:
    """Whether the origin of a page is the host of the request. The scheme may differ behind a proxy."""
    scheme, _, place = origin.lower().partition("://")
    default = {"http": "80", "https": "443"}.get(scheme)
    return bool(default and place) and place.removesuffix(f":{default}") == host.lower().removesuffix(f":{default}")


def is_navigation(request: Request) -> bool:
    """Whether a browser opens the address as a page, instead of embedding or fetching it."""
    mode, target = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")
    return mode in (None, "navigate") and target in (None, "document")


def opens_page(request: Request) -> bool:
    """Whether a browser opens a page, instead of a program reading data."""
    accepts = request.headers.get("accept", "")
    return request.method == "GET" and "text/html" in accepts and is_navigation(request)
