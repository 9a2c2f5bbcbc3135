"""The review page in a browser: keyboard, two reviewers, undo, a killed server, phone, screen reader, hostile texts."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, expect

from secondlook.extension import Answer
from secondlook.policies import read_policy
from secondlook.serving.database import open_database
from secondlook.serving.service import Service
from secondlook.serving.store import ReviewStore, StoredDecision
from stress.server_process import ServerProcess
from tests.serving.running import Digits, make_digits, make_noise, send, serve
from tests_browser.test_page import CONTRAST

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=alert(1)>"
TEXTS = (
    *("#done", "#done span", "#title b", "#title span", "#votes", ".tile b", ".tile small", ".choice .name"),
    *(
        ".choice .share",
        ".choice .tag",
        "#answers .name",
        "#confirm-text",
        "#last",
        "#undo span",
        "#skip span",
        "#notice p",
    ),
)
FORM = "multipart/form-data; boundary=--cut"
READ_UNSENT = """() => new Promise((resolve) => {
  const request = indexedDB.open("secondlook", 1);
  request.onsuccess = () => {
    const all = request.result.transaction("outbox").objectStore("outbox").getAll();
    all.onsuccess = () => { request.result.close(); resolve(all.result); };
  };
})"""
"""Read what the page has not sent yet."""
LOGIN_ADVICE = "Password forms should have"
"""What Chromium says about a form without a user name."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits"))


def fill(url: str, rejected: int, *, first: int = 0, name: str = "scan") -> None:
    """Send noise until so many images wait for review."""
    found = 0
    for start in range(first, first + 4000, 60):
        parts = b""
        for seed in range(start, start + 60):
            head = f'----cut\r\nContent-Disposition: form-data; name="image"; filename="{name}-{seed}.png"\r\n\r\n'
            parts += head.encode() + make_noise(16, seed) + b"\r\n"
        reply = send(f"{url}/v1/decide", parts + b"----cut--\r\n", Content_Type=FORM)
        found += sum(not one["accept"] for one in reply.json["decisions"])
        if found >= rejected:
            return


class Reviewer:
    """A person at the page, who knows what the server should have got."""

    def __init__(self, page: Page, reviews: ReviewStore) -> None:
        self.page = page
        self.reviews = reviews
        self.given: dict[int, int] = {}
        """The label that was given to each image, by its number."""
        self.order: list[int] = []

    def look(self) -> StoredDecision:
        """Wait until an image is on the screen, and return it."""
        shown = "#work:not([hidden]) #stage:not(.changed) #picture img"
        wait_until(self.page, f"document.querySelector('{shown}')?.naturalWidth > 0")
        address = self.page.get_attribute("#picture img", "src") or ""
        found = re.fullmatch(r"/v1/review/(\d+)/image", address)
        assert found, address
        return self.reviews.read(int(found[1]))

    def look_after(self, before: StoredDecision) -> StoredDecision:
        """Wait until another image is on the screen, and return it."""
        wait_until(self.page, f"!document.querySelector('#picture img')?.src.endsWith('/{before.number}/image')")
        return self.look()

    def press(self, key: str) -> None:
        """Press Enter or the digit that is the class, and remember the class."""
        item = self.look()
        self.page.keyboard.press(key)
        self.given[item.number] = item.label if key == "Enter" else int(key)
        self.order.append(item.number)

    def wait_until_ahead(self, count: int) -> None:
        """Wait until so many images without a label have arrived, the one on the screen among them."""
        given = json.dumps([f"/v1/review/{number}/image" for number in self.given])
        is_complete = "one.responseStatus === 200 && one.decodedBodySize > 0"
        arrived = f"performance.getEntriesByType('resource').filter((one) => {is_complete})"
        images = f"{arrived}.map((one) => new URL(one.name).pathname).filter((path) => path.endsWith('/image'))"
        wait_until(self.page, f"new Set({images}.filter((path) => !{given}.includes(path))).size >= {count}")

    def wait_until_saved(self) -> None:
        """Wait until nothing waits in the page."""
        wait_until(self.page, f"({READ_UNSENT})().then((unsent) => unsent.length === 0)")

    def check(self) -> None:
        """Compare the database with what was pressed."""
        assert read_labels(self.reviews) == self.given


def wait_until(page: Page, condition: str) -> None:
    """Wait for a condition in the page; what waits inside of it would need `eval`, which the page forbids."""
    deadline = time.monotonic() + 60
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(10)


def read_labels(reviews: ReviewStore) -> dict[int, int]:
    done = [item for block in reviews.iter_items(["done"]) for item in block]
    return {item.number: item.reviewed_label for item in done if item.reviewed_label is not None}


@contextmanager
def open_page(
    browser: Browser, url: str, *, allowed: tuple[str, ...] = (), context: BrowserContext | None = None
) -> Iterator[Page]:
    """Open the review page; messages of the console and requests to elsewhere fail the test."""
    own = context or browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    page = own.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else faults.append(request.url))
    in_work: set[Request] = set()
    page.on("request", lambda request: in_work.add(request))
    page.on("requestfinished", lambda request: in_work.discard(request))
    page.on("requestfailed", lambda request: in_work.discard(request))
    page.add_init_script("performance.setResourceTimingBufferSize(100000)")
    page.goto(f"{url}/review")
    yield page
    deadline = time.monotonic() + 5
    while (
        in_work and not page.is_closed() and time.monotonic() < deadline
    ):  # the server shall not lease images to a page that is gone
        page.wait_for_timeout(10)
    page.close()
    if context is None:
        own.close()
    assert [fault for fault in faults if not any(one in fault for one in allowed)] == []


@pytest.fixture(scope="module")
def filled(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    """A server with many images; tests leave some."""
    with serve(digits.policy, tmp_path_factory.mktemp("review") / "service") as (url, service):
        fill(url, 54)
        yield url, service


def clear_reviews(service: Service) -> None:
    """Remove all labels and leases."""
    import sqlalchemy as sa

    from secondlook.serving.database import events, reviews

    nothing = ("label", "reviewer", "reviewed_at", "comment", "lease_owner", "lease_until")
    values = dict.fromkeys(nothing) | {"skips": 0, "urgent": False, "label_count": 0, "latest": 0}
    with service.database.write() as connection:
        connection.execute(sa.delete(events))
        connection.execute(sa.update(reviews).values(**values))


@pytest.fixture
def queue(filled: tuple[str, Service]) -> tuple[str, Service]:
    """The server, with no label and no lease."""
    clear_reviews(filled[1])
    return filled


def test_fifty_images_by_keyboard(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    keys = ["0", "1", "2", "9", "5"]
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        for place in range(50):
            anna.press(keys[place % len(keys)])
        anna.wait_until_saved()
        anna.check()
        assert len(anna.given) == 50
        items = [service.reviews.read(number) for number in anna.order]
        assert [item.confidence for item in items] == sorted(item.confidence for item in items)
        waiting = service.reviews.counts().waiting
        expect(page.locator("#done")).to_have_text(f"50 of {50 + waiting} done · {waiting} waiting")
        assert re.fullmatch(r"[\d.]+ per minute · about .* left", page.inner_text("#pace"))
        assert page.inner_text("#last").startswith("Labeled ")


def let_views_agree(context: BrowserContext) -> None:
    """Let all views show the predicted class, in all images that are leased from now on."""

    def change(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        for item in body["items"]:
            for view in item["views"]:
                view["label"] = item["label"]
        route.fulfill(response=response, json=body)

    context.route("**/v1/review/lease", change)


def test_key_means_the_same_class_on_every_image(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        for digit in "831":
            anna.look()
            choices = [str(digit) for digit in range(10)]
            assert page.locator("#likely .name").all_inner_texts() == choices
            assert page.locator("#likely kbd").all_inner_texts() == choices
            anna.press(digit)
        anna.wait_until_saved()
        anna.check()


def test_enter_confirms_only_a_class_that_all_views_show(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        assert len({view[1] for view in item.views}) > 1
        expect(page.locator("#confirm")).to_be_hidden()
        assert page.locator(".choice.predicted").count() == 0
        page.keyboard.press("Enter")
        expect(page.locator("#live")).to_contain_text("the views disagree")
        assert anna.look() == item
        let_views_agree(context)
        page.reload()
        anna.look()
        expect(page.locator("#confirm")).to_be_visible()
        anna.press("Enter")
        anna.wait_until_saved()
        anna.check()
        assert anna.given == {item.number: item.label}
    context.close()


def hide_predictions(body: Any) -> Any:
    """Return leased images as if all were audits."""
    shown = ("id", "number", "name", "image", "skips")
    return body | {"items": [{name: item[name] for name in shown} for item in body["items"]]}


def test_many_classes_are_searched_browsed_and_get_keys_when_chosen(
    browser: Browser, queue: tuple[str, Service]
) -> None:
    url, service = queue
    names = ["zebra", *(f"breed {place}" for place in range(1, 9)), "ant", *(f"kind {place}" for place in range(90))]
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    context.route("**/v1/review/classes", lambda route: route.fulfill(json={"classes": names}))
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        assert page.locator("#likely .name").count() > 3, "the likeliest classes"
        assert page.locator("#likely kbd").count() == 0
        page.keyboard.press("/")
        expect(page.locator("#query")).to_be_focused()
        options = page.locator("#found [role=option]")
        assert options.all_inner_texts()[::99] == ["ant", "zebra"], "all by name"
        page.keyboard.press("Enter")
        assert anna.look() == item, "nothing was chosen"
        page.keyboard.type("nothing")
        expect(page.locator("#found")).to_have_text("No such class")
        page.keyboard.press("Enter")
        assert anna.look() == item, "nothing was chosen"
        page.fill("#query", "Zeb")
        expect(page.locator("#found [aria-selected=true]")).to_have_text("zebra")
        assert page.get_attribute("#query", "aria-activedescendant") == "found-0"
        page.keyboard.press("Enter")
        second = anna.look_after(item)
        page.keyboard.press("/")
        assert options.all_inner_texts()[:2] == ["zebra", "ant"], "the most recent one first"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        third = anna.look_after(second)
        keys = page.locator("#likely li:has(kbd)")
        assert sorted(keys.all_inner_texts()) == sorted(text for text in keys.all_inner_texts() if text[0] in "12")
        page.keyboard.press("1")
        fourth = anna.look_after(third)
        page.reload()
        assert anna.look() == fourth
        page.keyboard.press("2")
        anna.look_after(fourth)
        anna.wait_until_saved()
        context.route("**/v1/review/lease", lambda route: route.fulfill(json=hide_predictions(route.fetch().json())))
        page.reload()
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            anna.look()
            page.keyboard.press("/")
            box = page.locator("#found").bounding_box()
            assert box is not None
            assert min(box["x"], box["y"]) >= 0
            assert box["x"] + box["width"] <= size["width"]
            assert box["y"] + box["height"] <= size["height"]
            page.keyboard.press("Escape")
        assert read_labels(service.reviews) == {item.number: 0, second.number: 9, third.number: 0, fourth.number: 9}
    context.close()


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_audits_are_blind_and_come_between_other_images(
    browser: Browser, digits: Digits, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    with serve(digits.policy, tmp_path / "service", audit=1.0) as (url, service):
        for file in digits.files[:12]:
            send(f"{url}/v1/decide", file, Content_Type="image/png")
        fill(url, 12)
        context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        with open_page(browser, url, context=context) as page:
            anna, kinds = Reviewer(page, service.reviews), []
            for place in range(6):
                item = anna.look()
                kinds.append(item.audit)
                assert page.locator("#views").is_hidden() == item.audit
                assert ("confidence" in page.inner_text("#title")) == (not item.audit)
                if item.audit:
                    assert "%" not in page.inner_text("#work")
                    assert "accepted" not in page.inner_text("#work")
                    assert "predicted" not in page.inner_text("#live")
                    assert page.locator("#confirm:visible, .choice.predicted, .choice .tag").count() == 0
                    page.keyboard.press("Enter")
                    expect(page.locator("#live")).to_contain_text("hidden")
                    assert anna.look() == item
                    if folder := os.environ.get("SCREENSHOTS"):
                        page.screenshot(path=Path(folder) / f"audit-{size['width']}-{scheme}-{place}.png")
                anna.press(str(place))
            assert kinds == [False, False, True] * 2
            anna.wait_until_saved()
            anna.check()
            waiting = service.reviews.counts().audits
            page.goto(f"{url}/")
            page.get_by_role("link", name=f"Review {waiting} audits").click()
            for left in range(waiting, 0, -1):
                expect(page.locator("#done")).to_have_text(f"{left} waiting")
                assert anna.look().audit
                anna.press("0")
                anna.wait_until_saved()
            expect(page.locator("#empty-title")).to_have_text("All done")
            anna.check()
            assert service.reviews.counts().waiting > 0
            page.get_by_role("navigation", name="Review queues").get_by_text("All").click()
            assert not anna.look().audit
        context.close()


def test_something_else_than_a_class_by_key_and_mouse(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        page.keyboard.press("?")
        expect(page.get_by_role("row", name="C Cannot tell")).to_be_visible()
        page.keyboard.press("Escape")
        group = page.get_by_role("group", name="Instead of a class")
        for answer in Answer:
            page.keyboard.press(answer.text[0])
            following = anna.look_after(item)
            expect(page.locator("#live")).to_contain_text(f"Labeled {answer.text}.")
            assert page.inner_text("#last") == f"Labeled {answer.text}."
            anna.wait_until_saved()
            assert read_labels(service.reviews) == {item.number: answer}
            page.keyboard.press("u")
            assert anna.look_after(following).number == item.number
            expect(page.locator("#last")).to_contain_text(f"It was labeled {answer.text}.")
            group.get_by_role("button", name=re.compile(f"^{answer.text}$", re.IGNORECASE)).click()
            following = anna.look_after(item)
            expect(page.locator("#stage")).to_be_focused()
            anna.wait_until_saved()
            assert read_labels(service.reviews) == {item.number: answer}
            page.reload()  # the server knows what to undo
            anna.look()
            page.keyboard.press("u")
            assert anna.look_after(following).number == item.number
            anna.wait_until_saved()
        assert read_labels(service.reviews) == {}


def test_page_says_why_an_image_was_rejected(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    with serve(digits.limited_policy, tmp_path / "service") as (url, service):
        for file in digits.files[:60]:
            send(f"{url}/v1/decide", file, Content_Type="image/png")
        with open_page(browser, url) as page:
            anna, told = Reviewer(page, service.reviews), set()
            for _ in range(service.reviews.counts().waiting):
                item = anna.look()
                told.add(item.rejection)
                expect(page.locator("#title span")).to_have_text(re.compile(f"· not accepted: {item.rejection}$"))
                anna.press("0")
            anna.wait_until_saved()
    assert told == {"unsure", "unfamiliar"}


def test_undo_takes_labels_and_skips_back_in_turn(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        first = anna.look()
        anna.press("3")
        second = anna.look()
        page.keyboard.press("s")
        third = anna.look()
        anna.press("0")
        anna.wait_until_saved()
        page.keyboard.press("u")
        assert anna.look().number == third.number
        page.keyboard.press("u")
        assert anna.look().number == second.number
        page.keyboard.press("u")
        assert anna.look().number == first.number
        assert "It was labeled 3" in page.inner_text("#last")
        page.keyboard.press("u")
        expect(page.locator("#live")).to_contain_text("to undo")
        anna.wait_until_saved()
        assert read_labels(service.reviews) == {}
        anna.given.clear()
        assert anna.look().number == first.number
        anna.press("4")
        assert anna.look().number == second.number
        assert service.reviews.read(second.number).skips == 0
        anna.press("0")
        anna.wait_until_saved()
        anna.check()


def test_undo_works_after_the_page_was_loaded_again(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        anna.press("3")
        current = anna.look().number
        anna.wait_until_saved()
        page.reload()
        assert anna.look().number == current, "the images are still the reviewer's"
        page.keyboard.press("u")
        wait_until(page, f"document.querySelector('#picture img')?.src.endsWith('/{anna.order[0]}/image')")
        anna.wait_until_saved()
        assert read_labels(service.reviews) == {}


def test_keys_that_are_held_and_double_clicks_mean_one_image(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        first = anna.look()
        page.keyboard.down("2")
        for _ in range(5):
            page.keyboard.down("2")  # a repeat
        page.keyboard.up("2")
        second = anna.look()
        page.locator(".choice").nth(2).dblclick()
        third = anna.look()
        page.keyboard.press("7")
        anna.wait_until_saved()
        assert read_labels(service.reviews) == {first.number: 2, second.number: 2, third.number: 7}


def test_key_for_an_image_that_is_not_there_yet_is_ignored(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    blocked = True
    held: list[Callable[[], None]] = []
    context.route("**/image", lambda route: held.append(route.continue_) if blocked else route.continue_())
    with open_page(browser, url, context=context) as page:
        expect(page.locator("#picture")).to_contain_text("Loading")
        page.keyboard.press("1")
        expect(page.locator("#live")).to_contain_text("still loading")
        blocked = False
        for proceed in held:
            proceed()
        anna = Reviewer(page, service.reviews)
        anna.press("2")
        anna.wait_until_saved()
        anna.check()
    context.close()


def test_two_reviewers_at_once_share_the_queue(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    total = service.reviews.counts().waiting
    with open_page(browser, url) as one, open_page(browser, url) as other:
        anna, ben = Reviewer(one, service.reviews), Reviewer(other, service.reviews)
        for place in range(total - 8):
            (anna if place % 3 else ben).press(str(place % 9 + 1))
        deadline = time.monotonic() + 60
        while len(anna.given) + len(ben.given) < total:
            assert time.monotonic() < deadline, "some images are never shown"
            for reviewer in (anna, ben):
                if reviewer.page.locator("#work").is_visible():
                    reviewer.press("0")
                    reviewer.wait_until_saved()
            one.wait_for_timeout(20)
        assert not set(anna.given) & set(ben.given)
        assert len(anna.given) + len(ben.given) == total
        assert len(ben.given) > total / 4
        assert read_labels(service.reviews) == anna.given | ben.given
        expect(one.locator("#empty-title")).to_have_text("All done")
        expect(other.locator("#empty-title")).to_have_text("All done")
        ben.page.keyboard.press("u")
        assert ben.look().number == ben.order[-1]
        ben.wait_until_saved()
        expect(one.locator("#empty-title")).to_contain_text("other reviewers")


def test_new_images_appear_by_themselves(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service") as (url, service), open_page(browser, url) as page:
        expect(page.locator("#empty-title")).to_have_text("All done")
        assert not page.locator("#empty-undo").is_visible()
        fill(url, 1)
        anna = Reviewer(page, service.reviews)
        anna.press("0")
        anna.wait_until_saved()
        anna.check()


def lease(service: Service, number: int, owner: str | None, until: float | None) -> None:
    """Lease an image to somebody."""
    import sqlalchemy as sa

    from secondlook.serving.database import reviews

    with service.database.write() as connection:
        change = {"lease_owner": owner, "lease_until": until}
        connection.execute(sa.update(reviews).where(reviews.c.number == number).values(**change))


def give_to_another(service: Service, number: int) -> None:
    """Lease an image to somebody else, as if nothing was heard of its reviewer for long."""
    lease(service, number, "ben", time.time() + 60)


def test_lease_that_was_lost_is_told_and_the_other_label_kept(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url, allowed=("status of 409",)) as page:
        anna = Reviewer(page, service.reviews)
        lost = anna.look()
        give_to_another(service, lost.number)
        page.keyboard.press("2")
        expect(page.locator("#notice-text")).to_contain_text("was not saved")
        expect(page.locator("#notice-text")).to_contain_text("another reviewer")
        anna.press("0")
        anna.wait_until_saved()
        anna.check()
        page.click("#notice-close")
        expect(page.locator("#notice")).to_be_hidden()


def test_page_of_a_proxy_in_the_place_of_a_response_saves_nothing(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        context.route("**/label", lambda route: route.fulfill(status=200, content_type="text/html", body="<p>Log in"))
        anna.press("2")
        expect(page.locator("#saving")).to_have_text("1 not saved yet")
        assert read_labels(service.reviews) == {}
        context.unroute("**/label")
        anna.wait_until_saved()
        anna.check()
    context.close()


def test_key_is_not_taken_for_an_image_that_has_just_replaced_another(
    browser: Browser, queue: tuple[str, Service]
) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        lost = anna.look()
        give_to_another(service, lost.number)
        # The key comes in the moment in which the page hears of it.
        page.evaluate("""() => new MutationObserver((_, observer) => {
          observer.disconnect();
          document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "2", code: "Digit2", bubbles: true }));
        }).observe(document.querySelector("#picture"), { childList: true })""")
        page.evaluate("window.dispatchEvent(new Event('online'))")
        following = anna.look_after(lost)
        expect(page.locator("#notice-text")).to_contain_text("another reviewer")
        anna.wait_until_saved()
        assert read_labels(service.reviews) == {}
        assert anna.look().number == following.number
        anna.press("2")
        anna.wait_until_saved()
        anna.check()


def test_views_are_loaded_again_after_a_failure(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    context.route("**/views/*", lambda route: route.abort(), times=12)
    with open_page(browser, url, context=context, allowed=("Failed to load",)) as page:
        anna = Reviewer(page, service.reviews)
        while all(view[1] == item.label for item in [anna.look()] for view in item.views):
            anna.press("Enter")
        loaded = "(tiles => tiles.length > 0 && tiles.every((one) => one.naturalWidth === 16 && !one.hidden))"
        wait_until(page, f"{loaded}([...document.querySelectorAll('.tile img')])")
    context.close()


def test_killed_server_loses_and_doubles_nothing(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    data = tmp_path / "service"
    with ServerProcess(digits.policy, data) as server:
        fill(server.url, 40)
        database = open_database(data)
        with open_page(browser, server.url, allowed=("Failed to load resource", "ERR_")) as page:
            anna = Reviewer(page, ReviewStore(database, 300))
            for round_ in range(2):
                for key in ("0", "2"):
                    anna.press(key)
                anna.wait_until_ahead(7)  # all that are leased: without the server, only these can be shown
                anna.press("3")
                server.kill()  # perhaps with labels on their way
                for key in ("4", "0"):
                    anna.press(key)
                page.keyboard.press("u")
                assert anna.look().number == anna.order[-1]
                anna.press("5")
                anna.press("6")
                page.keyboard.press("u")
                assert anna.look().number == anna.order[-1]
                del anna.given[anna.order[-1]]
                expect(page.locator("#notice-text")).to_contain_text("does not respond")
                expect(page.locator("#saving")).to_contain_text("not saved yet")
                assert {one["number"] for one in page.evaluate(READ_UNSENT)} <= set(anna.given)
                server.start()
                anna.wait_until_saved()
                expect(page.locator("#notice")).to_be_hidden()
                expect(page.locator("#saving")).to_be_hidden()
                assert len(anna.given) == 5 * (round_ + 1)
                anna.check()
        database.close()


def test_labels_that_wait_survive_loading_the_page_again(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    with open_page(browser, url, context=context, allowed=("Failed to load",)) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        anna = Reviewer(page, service.reviews)
        context.route("**/label", lambda route: route.abort())
        for key in ("2", "0"):
            anna.press(key)
        expect(page.locator("#saving")).to_have_text("2 not saved yet")
        assert read_labels(service.reviews) == {}
        context.unroute("**/label")
        page.reload()
        anna.wait_until_saved()
        anna.check()
    context.close()


def test_label_whose_response_is_lost_is_sent_again_and_counts_once(
    browser: Browser, queue: tuple[str, Service]
) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    with open_page(browser, url, context=context, allowed=("Failed to load",)) as page:
        anna = Reviewer(page, service.reviews)
        anna.look()
        lost: list[str] = []

        def lose_response(route: Route) -> None:
            route.fetch()
            lost.append(route.request.url)
            route.abort()

        context.route(re.compile("/(label|undo|skip)$"), lose_response, times=3)
        anna.press("2")
        anna.press("3")
        anna.look()
        page.keyboard.press("s")
        page.keyboard.press("u")
        anna.press("4")
        anna.wait_until_saved()
        assert len(lost) == 3
        anna.check()
        context.route(re.compile("/label$"), lose_response, times=1)
        anna.press("5")
        deadline = time.monotonic() + 60
        while len(lost) < 4:
            assert time.monotonic() < deadline, "the label is never sent"
            page.wait_for_timeout(10)
        page.keyboard.press("u")
        anna.wait_until_saved()
        del anna.given[anna.order[-1]]
        anna.check()
    context.close()


def test_page_goes_on_after_a_new_login(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", lease_seconds=5.0) as (url, service):
        fill(url, 12)
        token = service.tokens.add("anna", "reviewer")
        context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
        with open_page(browser, url, context=context, allowed=("Failed to load", LOGIN_ADVICE)) as page:
            page.fill("#token", token)
            page.keyboard.press("Enter")
            page.wait_for_url("**/review")
            anna = Reviewer(page, service.reviews)
            anna.press("2")
            anna.wait_until_saved()
            context.clear_cookies()
            anna.press("3")
            expect(page.locator("#notice-text")).to_contain_text("Log in again")
            expect(page.locator("#saving")).to_have_text("1 not saved yet")
            with context.expect_page() as opened:
                page.click("#notice-link")
            login = opened.value
            login.fill("#token", token)
            login.keyboard.press("Enter")
            login.wait_for_url("**/review")
            login.close()
            anna.wait_until_saved()
            expect(page.locator("#notice")).to_be_hidden()
            anna.press("4")
            anna.wait_until_saved()
            anna.check()
            assert {service.reviews.read(number).reviewer for number in anna.given} == {"anna"}
        context.close()


def test_views_that_disagree_are_beside_the_image(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        while all(view[1] == item.label for view in item.views):
            anna.press("Enter")
            item = anna.look()
        differing = [view for view in item.views if view[1] != item.label]
        tiles = page.locator("#view-list .tile")
        expect(tiles).to_have_count(len(differing))
        assert sorted(tiles.locator("b").all_inner_texts()) == sorted(str(view[1]) for view in differing)
        assert f"Of {len(item.views)} views" in page.inner_text("#votes")
        wait_until(page, "[...document.querySelectorAll('.tile img')].every((one) => one.naturalWidth === 16)")
        page.keyboard.press("v")
        expect(tiles).to_have_count(len(item.views))
        tiles.first.click()
        expect(page.locator("#title")).to_contain_text("view: ")
        assert "/views/" in str(page.get_attribute("#picture img", "src"))
        tiles.first.click()
        assert anna.look().number == item.number
        anna.press("0")
        anna.wait_until_saved()
        anna.check()


def test_small_images_are_enlarged_smoothly_and_zoomed_by_key(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        Reviewer(page, service.reviews).look()
        image = page.locator("#picture img")

        def measure() -> float:
            box = image.bounding_box()
            assert box is not None
            return box["width"]

        frame = page.locator("#picture").bounding_box()
        assert frame is not None
        fitting = measure()
        assert fitting == pytest.approx(min(frame["width"], frame["height"]), abs=1)
        assert image.evaluate("image => getComputedStyle(image).imageRendering") == "auto"
        page.keyboard.press("p")
        assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
        assert measure() == fitting // 16 * 16
        page.keyboard.press("p")
        for key, factor, level in (("z", 2, "2×"), ("z", 4, "4×"), ("x", 2, "2×"), ("z", 4, "4×"), ("z", 1, "Fit")):
            page.keyboard.press(key)
            assert measure() == pytest.approx(factor * fitting, rel=1e-3)
            expect(page.locator("[data-zoom][aria-pressed=true]")).to_have_text(level)
        page.get_by_role("button", name="2×").click()
        expect(page.locator("#stage")).to_be_focused()
        before = page.evaluate("document.querySelector('#picture').scrollTop")
        page.keyboard.press("ArrowDown")
        wait_until(page, f"document.querySelector('#picture').scrollTop > {before}")
        page.keyboard.press("f")
        assert measure() == pytest.approx(fitting, rel=1e-3)
        image.dblclick()
        assert measure() == pytest.approx(2 * fitting, rel=1e-3)
        image.dblclick()
        assert measure() == pytest.approx(fitting, rel=1e-3)


def test_keys_can_be_turned_off(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("2")
        page.uncheck("#use-keys")
        page.click("#keys .button")
        page.keyboard.press("3")
        page.keyboard.press("Enter")
        assert anna.look().number == item.number
        page.reload()
        assert anna.look().number == item.number
        page.keyboard.press("3")
        assert anna.look().number == item.number, "it is remembered"
        page.focus("#skip")
        page.keyboard.press("Enter")
        assert anna.look().number != item.number, "buttons work"


def test_phone_has_everything_at_the_thumb(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    let_views_agree(context)
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        first = anna.look()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for place in ("#undo", "#skip", "#confirm"):
            box = page.locator(place).bounding_box()
            assert box is not None
            assert box["height"] >= 44, place
            assert box["y"] > PHONE["height"] / 2, place
            assert box["y"] + box["height"] <= PHONE["height"], place
        heights = page.locator(".choice").evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
        assert min(heights) >= 44
        image = page.locator("#picture img").bounding_box()
        assert image is not None
        assert image["width"] > 200
        page.tap("#confirm")
        second = anna.look_after(first)
        page.tap(".choice >> nth=2")
        following = anna.look_after(second)
        page.tap("#undo")
        assert anna.look_after(following).number == second.number
        page.tap(".choice >> nth=1")
        third = anna.look_after(second)
        page.tap("#skip")
        anna.look_after(third)
        anna.wait_until_saved()
        assert read_labels(service.reviews) == {
            first.number: first.label,
            second.number: 1,
        }
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1280, 1440])
def test_page_fits_the_width_with_enough_contrast(
    browser: Browser, queue: tuple[str, Service], width: int, scheme: str
) -> None:
    url, service = queue
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        anna.press("2")
        anna.look()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for place in TEXTS:
            if page.locator(place).count() and page.locator(place).first.is_visible():
                assert page.evaluate(CONTRAST, place) >= 4.5, place
        if width >= 1280:
            box = page.locator("#actions").bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 844, "everything is on one screen"
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"review-{width}-{scheme}.png")
        anna.wait_until_saved()
    context.close()


# Controls without a name, references to nothing, duplicate ids, lists without items and images without texts.
DEFECTS = """() => {
  const visible = (one) => one.checkVisibility();
  const all = (selector) => [...document.querySelectorAll(selector)].filter(visible);
  const name = (one) => one.ariaLabel || one.labels?.[0]?.textContent || one.textContent || one.title;
  const nameless = all("button, a, input, summary, [role=option]").filter((one) => !name(one)?.trim());
  const references = ["aria-labelledby", "aria-controls", "aria-describedby", "for"];
  const lost = references.flatMap((kind) => [...document.querySelectorAll(`[${kind}]`)]
    .filter((one) => one.getAttribute(kind).split(" ").some((id) => !document.getElementById(id))));
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  const twice = ids.filter((id, place) => ids.indexOf(id) < place);
  const images = all("img").filter((one) => !one.hasAttribute("alt"));
  const headings = all("h1, h2, h3").map((one) => Number(one.tagName[1]));
  const jumps = headings.filter((level, place) => level > (headings[place - 1] ?? 0) + 1);
  return [...nameless, ...lost, ...images].map((one) => one.outerHTML).concat(twice, jumps.map(String));
}"""


def test_screen_readers_get_names_roles_and_announcements(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    let_views_agree(context)
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        assert page.evaluate(DEFECTS) == []
        expect(page.locator("#live")).to_contain_text(f"predicted {item.label}")
        assert page.get_attribute("#live", "aria-live") == "polite"
        assert page.get_attribute("#picture img", "alt") == f"The image to review, {item.name}"
        snapshot = page.locator("main").aria_snapshot()
        for text in ('heading "Review" [level=1]', 'heading "What does the image show?"', "figure", "progressbar"):
            assert text in snapshot, snapshot
        assert f'button "Confirm the predicted class: {item.label}"' in snapshot
        label, share = item.likely[1]
        assert re.search(rf'button "{label} <?{max(1, round(100 * share))}.%"', snapshot), snapshot
        anna.press(str(label))
        following = anna.look()
        expect(page.locator("#live")).to_contain_text(f"Labeled {label}.")
        expect(page.locator("#live")).to_contain_text(f"predicted {following.label}")
        expect(page.locator("#stage")).to_be_focused()
        context.route("**/v1/review/classes", lambda route: route.fulfill(json={"classes": [*map(str, range(20))]}))
        page.reload()
        anna.look()
        assert 'combobox "Search all classes"' in page.locator("main").aria_snapshot()
        page.fill("#query", "1")
        assert page.evaluate(DEFECTS) == []
        assert 'listbox "Classes"' in page.locator("main").aria_snapshot()
    context.close()


def test_everything_is_reached_by_tab_with_a_visible_focus(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    let_views_agree(context)
    with open_page(browser, url, context=context) as page:
        anna = Reviewer(page, service.reviews)
        anna.press("0")
        anna.wait_until_saved()
        page.reload()
        anna.look()
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
        assert {"show-adjust", "comment", "escalate", "undo", "skip", "confirm", "show-keys"} <= set(reached)
        assert reached.count("choice predicted") == 1
    context.close()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_long_class_names_differ_to_the_last_word(
    browser: Browser, digits: Digits, tmp_path: Path, viewport: dict[str, int]
) -> None:
    start = "trailer truck, tractor trailer, articulated lorry, sulphur-crested cockatoo, Kakatoe galerita, type"
    (tmp_path / "digits.onnx").write_bytes((digits.policy.parent / "digits.onnx").read_bytes())
    names = tuple(f"{start} {place}" for place in range(10))
    read_policy(digits.policy).model_copy(update={"class_names": names}).save(tmp_path / "policy.json")
    with serve(tmp_path / "policy.json", tmp_path / "service") as (url, _):
        fill(url, 1)
        context = browser.new_context(viewport=viewport)  # type: ignore[arg-type]
        with open_page(browser, url, context=context) as page:
            expect(page.locator("#choices .choice .name").first).to_be_visible()
            clipped = """boxes => boxes.filter((box) => box.scrollHeight > box.clientHeight + 1
              || box.scrollWidth > box.clientWidth + 1).map((box) => box.textContent)"""
            assert page.locator("#choices .choice .name, #confirm kbd").evaluate_all(clipped) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        context.close()


def test_hostile_names_are_text(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    policy = read_policy(digits.policy)
    names = [HOSTILE, "</script><script>alert(1)</script>", *(f"{place} " + "x" * 300 for place in range(8))]
    (tmp_path / "digits.onnx").write_bytes((digits.policy.parent / "digits.onnx").read_bytes())
    policy.model_copy(update={"class_names": tuple(names)}).save(tmp_path / "policy.json")
    with serve(tmp_path / "policy.json", tmp_path / "service", audit=1.0) as (url, service):
        for seed in range(12):
            head = f'----cut\r\nContent-Disposition: form-data; name="id"\r\n\r\n{HOSTILE} {seed}\r\n'
            head += f'----cut\r\nContent-Disposition: form-data; name="image"; filename="{HOSTILE}"\r\n\r\n'
            send(f"{url}/v1/decide", head.encode() + make_noise(16, seed) + b"\r\n----cut--\r\n", Content_Type=FORM)
        token = service.tokens.add("<b>anna</b>", "reviewer")
        context = browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
        with open_page(browser, url, context=context, allowed=(LOGIN_ADVICE,)) as page:
            page.fill("#token", token)
            page.keyboard.press("Enter")
            page.wait_for_url("**/review")
            anna = Reviewer(page, service.reviews)
            for _ in range(12):
                anna.look()
                expect(page.locator("#title b")).to_have_text(HOSTILE)
                assert page.evaluate("document.documentElement.scrollWidth") <= 390
                page.keyboard.press("2")
                anna.wait_until_saved()
            assert set(read_labels(service.reviews).values()) == {1}, "the second key"
            assert page.locator("main img:not(#picture img, .tile img, .label img), main script, main b b").count() == 0
        context.close()


def test_images_that_are_not_stored_are_named(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", store_images=False) as (url, service):
        fill(url, 2)
        with open_page(browser, url) as page:
            (first, *_) = [item for block in service.reviews.iter_items(["waiting"]) for item in block]
            expect(page.locator("#picture")).to_contain_text("not stored")
            expect(page.locator("#picture")).to_contain_text(first.id)
            expect(page.locator("#picture")).to_contain_text(str(first.name))
            assert page.locator("#view-list img").count() == 0
            page.keyboard.press("3")
            wait_until(page, "document.querySelector('#done b').textContent === '1'")
            expect(page.locator("#last")).to_have_text(f"Labeled {first.likely[2][0]}.")
            Reviewer(page, service.reviews).wait_until_saved()
            assert service.reviews.read(first.number).reviewed_label == first.likely[2][0]
