"""Logging in and out in a browser, and what a page of another site can do."""

import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from secondlook.serving.access import SESSION_COOKIE
from secondlook.serving.service import Service
from tests.serving.running import make_digits, send_image, serve
from tests_browser.conftest import FLAGS
from tests_browser.test_page import CONTRAST

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    """A service, which has no token yet."""
    digits = make_digits(tmp_path_factory.mktemp("digits"))
    with serve(digits.policy, tmp_path_factory.mktemp("service")) as (url, service):
        send_image(url, digits.files[0])
        yield url, service


@pytest.fixture(scope="module")
def token(running: tuple[str, Service]) -> str:
    return running[1].tokens.add("Dr. Anna-Maria Beispiel <b>", "reviewer")


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=DESKTOP)
    yield made
    made.close()


@pytest.fixture
def evil(running: tuple[str, Service]) -> Iterator[str]:
    """A site of somebody else, whose page tries everything that a page can."""
    url = running[0]
    content = f"""<!doctype html><title>evil</title><a href="{url}/review">link</a>
        <form id="decide" method="post" action="{url}/v1/decide" enctype="text/plain"><input name="a" value="b"></form>
        <form id="logout" method="post" action="{url}/logout"></form>
        <iframe src="{url}/login"></iframe><img id="embedded" src="{url}/static/service.css">"""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


def log_in(page: Page, url: str, token: str) -> None:
    page.goto(f"{url}/review")
    expect(page.get_by_label("Access token")).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/review")


def test_another_site_can_do_nothing_to_an_open_service(
    context: BrowserContext, running: tuple[str, Service], evil: str
) -> None:
    """It comes first: the first token closes the service."""
    url, _ = running
    page = context.new_page()
    for form, code in (("decide", "cross_site"), ("logout", "cross_site")):
        page.goto(evil)
        page.evaluate(f"document.getElementById('{form}').submit()")
        page.wait_for_url(f"{url}/**")
        expect(page.locator("body")).to_contain_text(code)
    page.goto(evil)
    readable = """async (address) => {
        const attempt = (path, options) => fetch(address + path, options).then(() => "read", () => "unreadable");
        return [await attempt("/v1/status"), await attempt("/v1/decide", { method: "POST", body: "x" })];
    }"""
    assert page.evaluate(readable, url) == ["unreadable", "unreadable"]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_page_can_be_read(
    browser: Browser, running: tuple[str, Service], token: str, viewport: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    page, messages = context.new_page(), list[str]()
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(f"{running[0]}/review")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    expect(page.get_by_label("Access token")).to_be_focused()
    page.get_by_text("I have no token").click()
    for text in ("h1", "p", "label", "button", "summary", "pre"):
        assert page.evaluate(CONTRAST, text) >= 4.5, text
    assert page.locator("button").first.bounding_box()["height"] >= 44  # type: ignore[index]
    assert messages == []
    context.close()


def test_log_in_and_out_by_keyboard(context: BrowserContext, running: tuple[str, Service], token: str) -> None:
    url, page = running[0], context.new_page()
    page.goto(f"{url}/review")
    expect(page.get_by_label("Access token")).to_be_focused()
    page.keyboard.type("sl_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    expect(page.get_by_label("Access token")).to_be_focused()
    log_in(page, url, token)
    expect(page.locator("header")).to_contain_text("Dr. Anna-Maria Beispiel <b>")
    assert page.evaluate("document.cookie") == ""
    (cookie,) = context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (SESSION_COOKIE, True, "Strict")
    page.get_by_role("button", name="Log out").press("Enter")
    page.wait_for_url(f"{url}/login")
    assert context.cookies() == []
    context.add_cookies([cookie])  # type: ignore[list-item]  # what was read is what can be added
    page.goto(f"{url}/review")
    expect(page).to_have_title("Log in · secondlook")


def test_a_link_on_another_site_opens_the_page_of_somebody_who_is_logged_in(
    context: BrowserContext, running: tuple[str, Service], token: str, evil: str
) -> None:
    url, page = running[0], context.new_page()
    log_in(page, url, token)
    page.goto(evil)
    page.get_by_text("link").click()
    page.wait_for_url(f"{url}/review")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def test_another_site_can_neither_embed_a_page_nor_log_anybody_out(
    context: BrowserContext, running: tuple[str, Service], token: str, evil: str
) -> None:
    url, page = running[0], context.new_page()
    log_in(page, url, token)
    page.goto(evil)
    (frame,) = (one for one in page.frames if one != page.main_frame)
    assert frame.locator("form").count() == 0
    page.evaluate("document.getElementById('logout').submit()")
    page.wait_for_url(f"{url}/logout")
    page.goto(f"{url}/review")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def test_log_in_over_plain_http(browser: Browser, running: tuple[str, Service], token: str) -> None:
    """From another machine, browsers tell which site makes a request only by its origin."""
    url = running[0].replace("127.0.0.1", "service.example")
    flags = [*FLAGS.split(), "--host-resolver-rules=MAP service.example 127.0.0.1"]
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    elsewhere = browser.browser_type.launch(executable_path=chromium, args=flags)
    page = elsewhere.new_page()
    headers: list[dict[str, str]] = []
    page.on("request", lambda request: headers.append(request.all_headers()) if request.method == "POST" else None)
    log_in(page, url, token)
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{url}/login")
    assert [(one["origin"], "sec-fetch-site" in one) for one in headers][:1] == [(url, False)]
    elsewhere.close()


def test_pages_keep_their_files(context: BrowserContext, running: tuple[str, Service], token: str) -> None:
    url, page = running[0], context.new_page()
    page.goto(f"{url}/login")
    fetched: list[str] = []
    page.on("response", lambda reply: None if reply.request.resource_type == "document" else fetched.append(reply.url))
    page.goto(f"{url}/login?next=/review")
    sizes = page.evaluate("performance.getEntriesByType('resource').map((one) => one.transferSize)")
    assert sizes
    assert set(sizes) == {0}
    assert all(address.startswith(url) for address in fetched)
