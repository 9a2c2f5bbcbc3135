"""Tests of access control: tokens, browser sessions, and cross-site requests."""

import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from importlib.resources import files
from pathlib import Path
from typing import Annotated
from unittest.mock import MagicMock, Mock
from urllib.parse import quote, urlencode

import pytest
import sqlalchemy as sa
from fastapi import Depends, FastAPI, Request, Response

from secondlook.errors import SecondLookError
from secondlook.serving import ServiceOptions, pages, serve, tokens
from secondlook.serving.access import SESSION_COOKIE, Access, require
from secondlook.serving.database import open_database, sessions
from secondlook.serving.middleware import RequestLog
from secondlook.serving.server import handle_error
from secondlook.serving.service_metrics import ServiceMetrics
from secondlook.serving.tokens import Permission, Principal, Role
from tests.serving.running import Reply, call

HOST = {"Host": "localhost:8000"}
PAGE = {**HOST, "Accept": "text/html,*/*", "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
OWN = {**HOST, "Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
FOREIGN = {**HOST, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
LINK = {**PAGE, "Sec-Fetch-Site": "cross-site"}
PERMISSIONS: tuple[Permission, ...] = ("decide", "review", "watch", "administer")


class Site:
    """An application with a page and a route that changes something for each permission."""

    def __init__(self, data_dir: Path, host: str = "127.0.0.1") -> None:
        options = ServiceOptions(data_dir, host=host)
        self.tokens = options.open_tokens()
        self.database = open_database(data_dir)
        self.access = Access(options, self.tokens, self.database)
        self.reviews, self.live, self.labeling = Mock(), MagicMock(), None
        self.changes: list[Principal] = []
        self.app = FastAPI()
        self.app.state.service = self
        self.app.include_router(pages.router)
        self.app.add_exception_handler(SecondLookError, handle_error)
        self.app.add_middleware(RequestLog, metrics=ServiceMetrics())
        for permission in PERMISSIONS:
            self._add_routes(permission)

    def _add_routes(self, permission: Permission) -> None:
        required = Depends(require(permission))

        @self.app.get(f"/{permission}")
        def show(request: Request, principal: Annotated[Principal, required]) -> Response:
            return pages.render_page("login.html", principal, request=request, target="/", fault="", reload=False)

        @self.app.api_route(f"/{permission}", methods=["POST", "PUT", "DELETE"])
        def change(principal: Annotated[Principal, required]) -> dict[str, str]:
            self.changes.append(principal)
            return {"name": principal.name, "role": principal.role, "session": principal.session}

    def get(self, target: str, headers: dict[str, str] = HOST) -> Reply:
        return call(self.app, "GET", target, headers)

    def post(self, target: str, headers: dict[str, str] = HOST, method: str = "POST") -> Reply:
        return call(self.app, method, target, headers)

    def log_in(self, token: str, target: str = "/", **options: str) -> Reply:
        return self.send_form("/login", OWN, token=token, next=target, **options)

    def send_form(self, target: str, headers: dict[str, str], *, scheme: str = "http", **fields: str) -> Reply:
        headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return call(self.app, "POST", target, headers, urlencode(fields).encode(), scheme=scheme)

    def browser(self, name: str, role: Role = "reviewer") -> tuple[dict[str, str], str]:
        """Log in; returns the header with the cookie, and the CSRF token."""
        cookie = {"Cookie": read_cookie(self.log_in(self.tokens.add(name, role)))}
        return cookie, read_csrf(self.get("/watch", {**PAGE, **cookie}))


def read_cookie(reply: Reply) -> str:
    (morsel,) = SimpleCookie(reply.headers["set-cookie"]).values()
    return f"{morsel.key}={morsel.value}"


def read_csrf(reply: Reply) -> str:
    found = re.search(rb'<meta name="csrf-token" content="([\w-]+)">', reply.body)
    assert found is not None
    return found[1].decode()


def bearer(token: str) -> dict[str, str]:
    return {**HOST, "Authorization": f"Bearer {token}"}


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hashes cost does not matter here."""
    monkeypatch.setattr(tokens, "HASH_PASSES", 1)
    monkeypatch.setattr(tokens, "HASH_KIB", 8)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service on loopback, without tokens at first."""
    made = Site(tmp_path)
    yield made
    made.database.close()


class TestTokens:
    @pytest.mark.parametrize("role", ["client", "reviewer", "admin"])
    def test_token_grants_the_permissions_of_its_role(self, site: Site, role: Role) -> None:
        allowed = {
            "client": {"decide", "watch"},
            "reviewer": {"review", "watch"},
            "admin": {"decide", "review", "watch", "administer"},
        }[role]
        headers = bearer(site.tokens.add("Anna", role))
        replies = {permission: site.post(f"/{permission}", headers) for permission in PERMISSIONS}
        assert {permission for permission, reply in replies.items() if reply.status == 200} == allowed
        refused = [reply for reply in replies.values() if reply.status != 200]
        assert {(reply.status, reply.code) for reply in refused} <= {(403, "permission")}

    @pytest.mark.parametrize("given", [None, "Bearer x", "Bearer", "Basic QTpi", "Bearer sl_000000000000_x", ""])
    def test_missing_and_wrong_tokens_are_refused(self, site: Site, given: str | None) -> None:
        site.tokens.add("Anna", "admin")
        reply = site.post("/watch", HOST if given is None else {**HOST, "Authorization": given})
        assert (reply.status, reply.code) == (401, "token")
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert site.get("/watch", {**OWN, "Accept": "application/json"}).status == 401, "data do not lead to the login"
        assert site.changes == []

    def test_damaged_token_file_refuses_all_requests(self, site: Site) -> None:
        headers = bearer(site.tokens.add("Anna", "admin"))
        site.tokens.path.write_text("{")
        replies = [*(site.post("/watch", each) for each in (headers, HOST))]
        replies += [site.get(target, PAGE) for target in ("/login", "/watch")]
        assert {(reply.status, reply.code) for reply in replies} == {(503, "tokens")}
        assert all(str(site.tokens.path).encode() not in reply.body for reply in replies)
        assert site.log_in(headers["Authorization"].removeprefix("Bearer ")).status == 503


class TestBrowsers:
    def test_login_sets_a_safe_cookie_and_returns_to_the_page(self, site: Site) -> None:
        token = site.tokens.add("Anna", "reviewer")
        reply = site.get("/review?a=1&b=2", PAGE)
        assert (reply.status, reply.headers["location"]) == (303, f"/login?next={quote('/review?a=1&b=2', safe='')}")
        login = site.get(reply.headers["location"], PAGE)
        assert b'value="/review?a=1&amp;b=2"' in login.body
        done = site.log_in(token, "/review?a=1&b=2")
        assert (done.status, done.headers["location"]) == (303, "/review?a=1&b=2")
        page = site.get("/review", {**PAGE, "Cookie": read_cookie(done)})
        assert page.status == 200
        assert b"Anna" in page.body
        attributes = done.headers["set-cookie"].lower()
        assert {"httponly", "samesite=strict", "path=/"} <= set(attributes.split("; "))
        assert "secure" not in attributes
        assert "secure" in site.log_in(token, scheme="https").headers["set-cookie"].lower().split("; ")

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
    def test_changes_need_the_csrf_token_and_the_same_origin(self, site: Site, method: str) -> None:
        anna, csrf = site.browser("Anna")
        ben, csrf_of_ben = site.browser("Ben")
        for given in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": csrf_of_ben}, {"X-CSRF-Token": "é"}):
            reply = site.post("/review", {**OWN, **anna, **given}, method)
            assert (reply.status, reply.code) == (403, "csrf")
        for headers in (
            *({"Sec-Fetch-Site": fetched} for fetched in ("cross-site", "same-site")),
            *({"Origin": origin} for origin in ("http://localhost:9000", "null")),
            {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
        ):
            reply = site.post("/review", {**HOST, **anna, "X-CSRF-Token": csrf, **headers}, method)
            assert (reply.status, reply.code) == (403, "cross_site")
        assert site.changes == []
        assert site.post("/review", {**OWN, **anna, "X-CSRF-Token": csrf}, method).json["name"] == "Anna"
        assert site.post("/review", {**OWN, **ben, "X-CSRF-Token": csrf_of_ben}, method).json["name"] == "Ben"

    def test_other_sites_can_link_to_pages_but_not_embed_them(self, site: Site) -> None:
        cookie, _ = site.browser("Anna")
        for destination in ("iframe", "image", "script"):
            mode = "navigate" if destination == "iframe" else "no-cors"
            embedded = {**LINK, "Sec-Fetch-Dest": destination, "Sec-Fetch-Mode": mode}
            assert site.get("/review", embedded).code == "cross_site"
        reply = site.get("/review", LINK)  # browsers withhold the cookie from such a request
        assert reply.status == 303
        login = reply.headers["location"]
        assert b'http-equiv="refresh"' in site.get(login, LINK).body
        assert b'http-equiv="refresh"' not in site.get(login, PAGE).body
        again = site.get(login, {**PAGE, "Sec-Fetch-Site": "same-origin", **cookie})
        assert (again.status, again.headers["location"]) == (303, "/review"), "whoever is logged in sees the page"

    def test_login_page_reports_a_wrong_token_and_other_sites_cannot_log_in(self, site: Site) -> None:
        token = site.tokens.add("Anna", "reviewer")
        reply = site.log_in("sl_000000000000_x", "/review")
        assert reply.status == 401
        assert "set-cookie" not in reply.headers
        assert b'role="alert"' in reply.body
        assert b'value="/review"' in reply.body
        assert site.send_form("/login", FOREIGN, token=token).code == "cross_site"

    def test_logging_out_ends_the_session(self, site: Site) -> None:
        cookie, csrf = site.browser("Anna")
        assert site.send_form("/logout", {**OWN, **cookie}, csrf="x").code == "csrf"
        assert site.get("/review", {**PAGE, **cookie}).status == 200
        assert not site.reviews.release.called
        assert site.send_form("/logout", {**OWN, **cookie}, csrf=csrf).headers["location"] == "/login"
        assert site.get("/review", {**PAGE, **cookie}).status == 303
        site.reviews.release.assert_called_once()

    def test_a_session_ends_after_twelve_hours_or_with_its_token(self, site: Site) -> None:
        cookie, _ = site.browser("Anna")
        for seconds, status in ((12 * 3600 - 60, 200), (120, 303)):
            with site.database.write() as connection:  # as if so much time had passed
                earlier = sessions.c.expires_at - seconds
                connection.execute(sa.update(sessions).values(expires_at=earlier))
            assert site.get("/review", {**PAGE, **cookie}).status == status
        cookie, _ = site.browser("Ben")
        site.tokens.remove("Ben")
        assert site.get("/review", {**PAGE, **cookie}).status == 303
        site.tokens.add("Ben", "admin")
        assert site.get("/review", {**PAGE, **cookie}).status == 303, "it does not return with the name"
        for value in ("", "x", "local.x", "é", "x" * 5000, '"a\\042b"'):
            assert site.get("/review", {**PAGE, "Cookie": f"{SESSION_COOKIE}={value}"}).status == 303

    def test_session_survives_a_restart_without_storing_its_cookie(self, site: Site, tmp_path: Path) -> None:
        cookie, csrf = site.browser("Anna")
        site.database.close()
        value = cookie["Cookie"].partition("=")[2].encode()
        assert all(value not in file.read_bytes() for file in tmp_path.iterdir())
        again = Site(tmp_path)
        assert again.post("/review", {**OWN, **cookie, "X-CSRF-Token": csrf}).status == 200
        again.database.close()


class TestOpenService:
    def test_local_programs_have_full_access_and_other_sites_none(self, site: Site) -> None:
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"):
            for permission in PERMISSIONS:
                made = site.post(f"/{permission}", {"Host": host}).json
                assert made == {"name": "local", "role": "admin", "session": "local"}
        assert {site.post(f"/{permission}", FOREIGN).code for permission in PERMISSIONS} == {"cross_site"}
        assert site.get("/watch", FOREIGN).code == "cross_site"
        for header in ("X-Forwarded-For", "Forwarded"):
            assert site.post("/watch", {**HOST, header: "203.0.113.7"}).code == "proxy"
        # The browser withheld the cookie; a new one would make the open pages of the old session useless.
        reply = site.get("/review", LINK)
        assert (reply.status, "set-cookie" in reply.headers) == (303, False)
        assert b'http-equiv="refresh"' in site.get(reply.headers["location"], LINK).body

    def test_two_browsers_own_separate_leases_and_need_their_csrf_tokens(self, site: Site) -> None:
        owners = []
        for _ in range(2):
            page = site.get("/review", PAGE)
            cookie = {"Cookie": read_cookie(page)}
            assert "set-cookie" not in site.get("/review", {**PAGE, **cookie}).headers
            for headers in (OWN, {**OWN, **cookie}, {**OWN, **cookie, "X-CSRF-Token": "x"}):
                assert site.post("/decide", headers).code == "csrf"
            headers = {**OWN, **cookie, "X-CSRF-Token": read_csrf(page)}
            owners += [site.post("/review", headers).json["session"] for _ in range(2)]
        assert owners[0] == owners[1] != owners[2] == owners[3]

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "10.0.0.1", "localhost.evil.example",
         "127.0.0.1@evil.example", "evil.example@127.0.0.1", "127.0.0.1 evil.example", "[::1", "0.0.0.0"],
    )  # fmt: skip
    def test_a_rebound_name_is_refused(self, site: Site, host: str) -> None:
        own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        for headers in ({"Host": host}, own):
            reply = site.post("/decide", headers)
            assert (reply.status, reply.code) in {(400, "host"), (403, "cross_site")}
        assert site.post("/decide", {"Host": host}).code == site.get("/watch", {**PAGE, "Host": host}).code == "host"
        assert site.changes == []

    def test_token_or_public_address_closes_the_service_permanently(self, site: Site, tmp_path: Path) -> None:
        page = site.get("/review", PAGE)
        headers = {**OWN, "Cookie": read_cookie(page), "X-CSRF-Token": read_csrf(page)}
        assert site.post("/review", headers).status == 200
        public = Site(tmp_path, host="0.0.0.0")
        assert public.post("/decide").code == "token", "nobody is local on another address, even without tokens"
        public.database.close()
        site.tokens.add("Anna", "reviewer")
        assert site.post("/review", headers).status == 401
        assert site.post("/decide").code == "token"
        site.tokens.remove("Anna")
        assert site.post("/decide").code == "token"


class TestBinding:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "a.org", "", "127.1.2.3", "::1", "localhost"])
    def test_public_address_requires_a_token(self, tmp_path: Path, host: str) -> None:
        """The policy is read after the token was checked."""
        options, is_local = ServiceOptions(tmp_path, host=host), host in ("127.1.2.3", "::1", "localhost")
        with pytest.raises(SecondLookError, match="missing" if is_local else "secondlook token add"):
            serve(tmp_path / "missing.json", options)
        options.open_tokens().add("Anna", "admin")
        with pytest.raises(SecondLookError, match="missing"):
            serve(tmp_path / "missing.json", options)


@pytest.mark.parametrize(
    ("own", "origins"),
    [
        (True, [("http://localhost:8000", "localhost:8000"), ("https://a.example", "a.example"),
                ("https://a.example", "a.example:443"), ("https://A.example", "a.EXAMPLE")]),
        (False, [("http://a.example:443", "a.example"), ("https://a.example:8443", "a.example"),
                 ("http://localhost:8000", "127.0.0.1:8000"), ("https://evil.example", "localhost:8000"),
                 ("null", "null"), ("file://", ""), ("http://", "")]),
    ],
)  # fmt: skip
def test_tokens_work_only_on_pages_of_the_same_host(site: Site, own: bool, origins: list[tuple[str, str]]) -> None:
    headers = bearer(site.tokens.add("Anna", "admin"))
    for origin, host in origins:
        reply = site.post("/watch", {**headers, "Origin": origin, "Host": host})
        assert (reply.status, own or reply.code) == ((200, True) if own else (403, "cross_site"))


@pytest.mark.parametrize(
    "given",
    ["/review", "/review?a=b", "https://evil.example", "//evil.example", "/\\evil.example", "", "/\r\nSet-Cookie: a=b",
     "javascript:alert(1)"],
)  # fmt: skip
def test_login_redirects_only_to_pages_of_this_service(site: Site, given: str) -> None:
    opened = given if given.startswith("/review") else "/"
    assert site.get(f"/login?next={quote(given, safe='')}", PAGE).headers["location"] == opened  # nothing to ask
    assert site.log_in(site.tokens.add("Anna", "reviewer"), given).headers["location"] == opened


def test_every_response_has_the_security_headers(site: Site) -> None:
    site.tokens.add("Anna", "reviewer")
    replies = [site.get("/login", PAGE), site.get("/review", PAGE), site.post("/review"), site.get("/nowhere")]
    for reply in replies:
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_browsers_cache_static_files_until_they_change(site: Site) -> None:
    site.tokens.add("Anna", "reviewer")
    addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', site.get("/login", PAGE).body.decode())
    assert [address.partition("?")[0] for address in addresses] == [
        f"/static/{name}" for name in ("logo.svg", "design.css", "service.css", "logo.svg")
    ]
    for address in addresses:
        reply = site.get(address)
        expected = "image/svg+xml" if ".svg" in address else "text/css; charset=utf-8"
        assert reply.headers["content-type"] == expected
        assert "immutable" in reply.headers["cache-control"]
        assert site.get(address.partition("?")[0]).headers["cache-control"] == "no-cache"
    for name in ("x.css", "base.html", "..%2Fbase.html", "../pages.py", "report.html"):
        assert site.get(f"/static/{name}").status == 404, "nothing else can be read"


def test_no_page_has_inline_scripts_or_styles() -> None:
    found = [page for page in (files("secondlook.serving") / "pages").iterdir() if page.name.endswith(".html")]
    assert found
    for page in found:
        inline = r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)|https?://(?!.*</(code|pre)>)"
        assert not re.search(inline, page.read_text(encoding="utf-8").partition("#}")[2]), page.name
