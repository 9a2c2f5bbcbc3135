"""Who may do what: tokens of programs, sessions of browsers, and defenses against requests that other sites make."""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from secondlook.errors import ServingError
from secondlook.serving.database import StorageError
from secondlook.serving.faults import RequestError
from secondlook.serving.options import ServiceOptions
from secondlook.serving.pages import PAGES
from secondlook.serving.sessions import SESSION_COOKIE, SessionStore, announce_cookie
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal, TokenFile, TokenFileError

LOGGER = logging.getLogger(__name__)
LOGIN_PAGE = "/login"
CSRF_HEADER = "X-CSRF-Token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
"""What browsers say of requests by pages of other origins; "same-site" is another port or subdomain."""
DEFAULT_PORTS = {"http": "80", "https": "443"}
LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


class Access:
    """The checks of one instance.

    Without any token, a service on loopback is open to everyone on its machine. It closes when the first token is
    added, and stays closed until it is started again: whoever removes all tokens does not mean to let everyone in.
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
            principal = await self.identify(request)
            if not principal.may(permission):
                raise RequestError(
                    403,
                    "permission",
                    f"the role {principal.role!r} may not {permission}; use the token of somebody who may.",
                )
            return principal

        return check_permission

    async def identify(self, request: Request) -> Principal:
        """Return who sends a request; raises `RequestError` if it cannot be told, or if another site makes it."""
        check_site(request)
        with hide_token_errors():
            principal = await self._authenticate(request)
        if principal is None:
            raise self._ask_for_token(request)
        request.state.principal = principal
        return principal

    async def _authenticate(self, request: Request) -> Principal | None:
        credentials = request.headers.get("authorization")
        if credentials is not None:
            return await self._check_credentials(credentials)
        is_open = self.is_open
        if is_open:
            check_local_host(request)
        has_cookie = SESSION_COOKIE in request.cookies
        found = await run_in_threadpool(self.find_browser, request) if has_cookie else None
        if found is not None:
            check_csrf(request, found)
            return found
        return await self._admit_locally(request) if is_open else None

    async def _check_credentials(self, credentials: str) -> Principal | None:
        scheme, _, token = credentials.partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token.strip()
        # Argon2 would block the event loop for milliseconds; a token that was checked before does not need it.
        return self.tokens.recall(token) or await run_in_threadpool(self.tokens.check, token)

    def find_browser(self, request: Request) -> Principal | None:
        """Return who is logged in by a cookie, if its session has not ended and its token was not removed."""
        session = self.sessions.find(request.cookies.get(SESSION_COOKIE, ""))
        if session is None:
            return None
        owner = f"browser:{session.digest[:32]}"
        if session.token_id == LOCAL_NAME:
            return Principal(LOCAL_NAME, "admin", owner, session.csrf) if self.is_open else None
        record = self.tokens.find(session.token_id)
        return None if record is None else Principal(record.name, record.role, owner, session.csrf)

    async def _admit_locally(self, request: Request) -> Principal | None:
        """Let a program or browser of this machine in; a browser that opens a page gets a session.

        The sessions make two browser profiles two owners of leases.
        """
        if opens_page(request):
            if is_foreign(request):
                return None  # its cookie was withheld; the login page makes the browser ask again
            if request.url.path in PAGES:
                return await run_in_threadpool(self._start_local_session, request)
        if request.method not in SAFE_METHODS and is_browser(request):
            raise csrf_error()
        return Principal(LOCAL_NAME, "admin", LOCAL_NAME)

    def _start_local_session(self, request: Request) -> Principal:
        """Start the session of a page; it is shown without one if that cannot be stored, since it tells why."""
        try:
            cookie, session = self.sessions.start(LOCAL_NAME)
        except StorageError as error:
            LOGGER.warning("session not stored", extra={"reason": str(error)})
            return Principal(LOCAL_NAME, "admin", LOCAL_NAME)
        announce_cookie(request, cookie)
        return Principal(LOCAL_NAME, "admin", f"browser:{session.digest[:32]}", session.csrf)

    def _ask_for_token(self, request: Request) -> RequestError:
        if opens_page(request):
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            location = f"{LOGIN_PAGE}?next={quote(target, safe='')}"
            return RequestError(303, "login", "log in first.", headers={"Location": location})
        has_token = "authorization" in request.headers
        message = "the token is wrong" if has_token else "the request has no token"
        return RequestError(
            401,
            "token",
            f"{message}; send the header 'Authorization: Bearer TOKEN' with a token of this service.",
            headers={"WWW-Authenticate": 'Bearer realm="secondlook"'},
        )


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


def check_binding(options: ServiceOptions, tokens: TokenFile) -> None:
    """Check that a service that others can reach has a token."""
    if not options.is_local and not tokens.list():
        raise ServingError(
            f"host={options.host!r} can be reached by other machines, and the service has no token, so everyone could "
            "use it; make one first with 'secondlook token add'."
        )


def check_site(request: Request) -> None:
    """Refuse requests that pages of other sites make; links to pages are fine, since they change nothing."""
    if is_foreign(request) and not (request.method == "GET" and is_navigation(request)):
        raise RequestError(
            403, "cross_site", "a page of another site made this request; only the pages of this service may."
        )


def check_csrf(request: Request, principal: Principal) -> None:
    """Check that a change comes from a page of this session: other sites cannot read what the page was given."""
    given = request.headers.get(CSRF_HEADER, "")
    if request.method not in SAFE_METHODS and not is_csrf_token(principal, given):
        raise csrf_error()


def is_csrf_token(principal: Principal, given: str) -> bool:
    """Compare in constant time what a page sent with what it was given."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), (principal.csrf or "").encode())


def csrf_error() -> RequestError:
    """Return the error of a change that does not come from a page of its session."""
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
    scheme, separator, place = origin.lower().partition("://")
    default = DEFAULT_PORTS.get(scheme)
    if not separator or not place or default is None:
        return False
    return place.removesuffix(f":{default}") == host.lower().removesuffix(f":{default}")


def is_browser(request: Request) -> bool:
    """Whether a page in a browser makes the request."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers


def is_navigation(request: Request) -> bool:
    """Whether a browser opens the address in a window of its own, rather than embeds or fetches it."""
    mode, target = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")
    return mode in (None, "navigate") and target in (None, "document")


def opens_page(request: Request) -> bool:
    """Whether a browser opens a page, rather than a program reads data."""
    accepts = request.headers.get("accept", "")
    return request.method == "GET" and "text/html" in accepts and is_navigation(request)
