"""Labels that the server has not confirmed: they survive a closed tab, and belong to one reviewer and one tab."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from secondlook.serving.service import Service
from tests.serving.running import Digits, make_digits, serve, wait_for
from tests_browser.test_review_page import (
    DESKTOP,
    LOGIN_ADVICE,
    READ_UNSENT,
    Reviewer,
    clear_reviews,
    fill,
    lease,
    open_page,
    read_labels,
    wait_until,
)

NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })"
"""As in a page that was loaded without HTTPS from another machine."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def filled(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    with serve(digits.policy, tmp_path_factory.mktemp("outbox") / "service") as (url, service):
        fill(url, 20)
        yield url, service


@pytest.fixture
def queue(filled: tuple[str, Service]) -> tuple[str, Service]:
    clear_reviews(filled[1])
    return filled


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    yield context
    context.close()


def stall(route: Route) -> None:
    """Never respond."""


def close(page: Page) -> str:
    """Close a tab although it warns; returns the kind of the warning."""
    with page.expect_event("dialog") as dialog, page.expect_event("close"):
        page.on("dialog", lambda one: one.accept())
        page.close(run_before_unload=True)
    return dialog.value.type


@pytest.mark.parametrize("has_locks", [True, False])
def test_labels_of_a_closed_tab_are_sent_at_the_next_visit(
    browser: Browser, queue: tuple[str, Service], context: BrowserContext, has_locks: bool
) -> None:
    url, service = queue
    if not has_locks:
        context.add_init_script(NO_LOCKS)
    context.route("**/label", stall)
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        for key in "2047":
            anna.press(key)
        expect(page.locator("#saving")).to_have_text("4 not saved yet")
        assert close(page) == "beforeunload"
    context.unroute("**/label")
    sent: list[str] = []
    context.on("request", lambda request: sent.append(request.url) if request.url.endswith("/label") else None)
    with open_page(browser, url, context=context) as page:
        ben = Reviewer(page, service.reviews)
        ben.wait_until_saved()
        anna.check()
        assert sent == [f"{url}/v1/review/{number}/label" for number in anna.order]
        assert ben.look().number not in anna.given


def test_another_tab_sends_only_what_a_closed_one_has_left(
    browser: Browser, queue: tuple[str, Service], context: BrowserContext
) -> None:
    url, service = queue
    sent: list[str] = []
    with open_page(browser, url, context=context) as one:
        anna = Reviewer(one, service.reviews)
        anna.look()
        one.route("**/label", stall)
        anna.press("3")
        with open_page(browser, url, context=context) as other:
            other.on("request", lambda request: sent.append(request.url) if request.url.endswith("/label") else None)
            ben = Reviewer(other, service.reviews)
            ben.look()
            locks = "navigator.locks.query().then((found) => found.pending.length === 1)"
            wait_until(other, locks)
            assert sent == []
            assert len(other.evaluate(READ_UNSENT)) == 1
            assert close(one) == "beforeunload"
            ben.wait_until_saved()
            assert sent == [f"{url}/v1/review/{anna.order[0]}/label"]
            anna.check()


def test_label_of_a_reserved_image_lets_others_go_first(
    browser: Browser, queue: tuple[str, Service], context: BrowserContext
) -> None:
    url, service = queue
    allowed = ("Failed to load",)
    context.route("**/label", lambda route: route.abort())
    with open_page(browser, url, context=context, allowed=allowed) as page:
        anna = Reviewer(page, service.reviews)
        anna.press("3")
        expect(page.locator("#saving")).to_have_text("1 not saved yet")
        close(page)
    context.unroute("**/label")
    (reserved,) = anna.order
    lease(service, reserved, "her last login", time.time() + 1000)
    with open_page(browser, url, context=context, allowed=allowed) as page:
        anna.page = page
        expect(page.locator("#notice-text")).to_contain_text("reserved for your last login")
        anna.press("4")
        wait_for(lambda: read_labels(service.reviews) == {anna.order[1]: 4})
        expect(page.locator("#saving")).to_have_text("1 not saved yet")
        lease(service, reserved, None, None)
        anna.wait_until_saved()
        anna.check()


def log_in(page: Page, token: str) -> None:
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_url("**/review")


def test_labels_are_never_sent_under_another_name(
    browser: Browser, digits: Digits, tmp_path: Path, context: BrowserContext
) -> None:
    with serve(digits.policy, tmp_path / "service", lease_seconds=3.0) as (url, service):
        fill(url, 12)
        tokens = {name: service.tokens.add(name, "reviewer") for name in ("anna", "ben")}
        context.route("**/label", lambda route: route.abort())
        allowed = (LOGIN_ADVICE, "status of 409", "Failed to load")
        with open_page(browser, url, context=context, allowed=allowed) as page:
            log_in(page, tokens["anna"])
            anna = Reviewer(page, service.reviews)
            anna.press("5")
            wait_until(page, f"({READ_UNSENT})().then((unsent) => unsent.length === 1)")
            close(page)
        context.unroute("**/label")
        context.clear_cookies()
        with open_page(browser, url, context=context, allowed=allowed) as page:
            log_in(page, tokens["ben"])
            Reviewer(page, service.reviews).look()
            assert len(page.evaluate(READ_UNSENT)) == 1
            assert read_labels(service.reviews) == {}
        context.clear_cookies()
        with open_page(browser, url, context=context, allowed=allowed) as page:
            log_in(page, tokens["anna"])
            anna.page = page
            wait_for(lambda: read_labels(service.reviews))
            anna.wait_until_saved()
            anna.check()
            assert service.reviews.read(anna.order[0]).reviewer == "anna"
