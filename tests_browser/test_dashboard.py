"""The dashboard in a browser: every state of a service, by itself up to date, by keyboard, on a phone, in the dark."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from secondlook.serving.database import open_database
from tests.monitoring.streams import make_policy
from tests.serving.running import make_digits, run_in_thread, send_image, serve
from tests.serving.streams import REVIEWER, FakeService, list_audits, make_stream, review_all
from tests.serving.test_watch_routes import make_other_policy
from tests_browser.test_monitor_page import OVERLAPS
from tests_browser.test_page import CONTRAST

HOSTILE = "<img src=x onerror=\"document.title='caught'\">"
TEXTS = (
    "#badge",
    "#lead",
    ".small",
    ".facts dt",
    ".facts dd",
    ".facts small",
    "thead th",
    ".legend li",
    ".plot text",
    ".provenance dt",
)


@dataclass(frozen=True)
class Served:
    """A service without a classifier, and where it is served."""

    url: str
    service: FakeService


def make_empty(folder: Path) -> FakeService:
    return FakeService(open_database(folder), folder, make_policy(), audit=0.2)


def make_early(folder: Path) -> FakeService:
    service = make_empty(folder)
    service.add(make_stream(90, audit=0.2))
    return service


def make_quiet(folder: Path) -> FakeService:
    service, now = make_empty(folder), time.time()
    for minute in range(30):
        service.add(make_stream(80, first=100 * minute, audit=0.2), at=now - 60 * (30 - minute))
    review_all(service, 0.0)
    return service


def make_alarmed(folder: Path) -> FakeService:
    service = make_empty(folder)
    service.add(make_stream(1500, audit=0.2) + make_stream(700, first=1500, damage=1.2, audit=0.2))
    return service


def make_broken(folder: Path) -> FakeService:
    service = make_empty(folder)
    rows = make_stream(1500, audit=0.2)
    hostile = next(row for row in reversed(rows) if row["audit"])
    hostile |= {"id": HOSTILE, "label": 2}  # a bird that is found to be a "<b>fish</b>"
    service.add(rows)
    review_all(service, 0.4, wrong=[HOSTILE])
    service.decisions.deploy(make_policy(risk=0.1), None)
    service.decisions.deploy(make_policy(), 0.2)
    return service


def make_unmonitored(folder: Path) -> FakeService:
    service = FakeService(open_database(folder), folder, make_policy(has_reference=False))
    service.add(make_stream(200, audit=None))
    return service


STATES: dict[str, Callable[[Path], FakeService]] = {
    "empty": make_empty,
    "early": make_early,
    "quiet": make_quiet,
    "alarmed": make_alarmed,
    "broken": make_broken,
    "unmonitored": make_unmonitored,
}


@contextmanager
def run(service: FakeService) -> Iterator[Served]:
    service.watcher.look()
    with run_in_thread(service) as url:  # type: ignore[arg-type]
        yield Served(url, service)
    service.database.close()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(run(make(tmp_path_factory.mktemp(name)))) for name, make in STATES.items()}


@pytest.fixture
def early(tmp_path: Path) -> Iterator[Served]:
    """A service of one test, which may change it."""
    with run(make_early(tmp_path)) as served:
        yield served


@contextmanager
def open_page(browser: Browser, url: str, *, may_complain: bool = False, **options: Any) -> Iterator[Page]:
    """Open a page; a console message, or a request to anything but the service, fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith((url, "data:")) else messages.append(one.url))
    page.goto(url)
    expect(page.locator("#badge")).to_be_visible()
    yield page
    context.close()
    assert may_complain or messages == []


def read_facts(page: Page) -> dict[str, str]:
    """Return the tiles: the name, and the value with its details."""
    names, values = (page.locator(f"#facts {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return {name: " ".join(value.split()) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize(
    ("name", "badge", "lead"),
    [
        ("empty", "Ready", "No images yet"),
        ("early", "… Too few images", "Too few images"),
        ("quiet", "✓ No alarm", "No sign of a change"),
        ("alarmed", "▲ Alarm", "have changed"),
        ("broken", "▲ Alarm", "broken"),
        ("unmonitored", "– Not monitored", "calibration images"),
    ],
)
def test_every_state_says_what_is_known(
    browser: Browser, states: dict[str, Served], name: str, badge: str, lead: str
) -> None:
    status = states[name].service.watcher.status
    with open_page(browser, states[name].url) as page:
        assert page.inner_text("#badge") == badge
        assert lead in page.inner_text("#lead")
        assert page.title().startswith("▲ Alarm" if "Alarm" in badge else "Dashboard")
        facts = read_facts(page)
        assert facts["Images decided"].startswith(f"{status['decisions']['images']:,}")
        assert facts["Waiting for review"].startswith(f"{status['reviews']['waiting']:,}")
        assert facts["Guaranteed risk"].startswith("at most 5 %")
        assert page.locator("#start").is_visible() == (name == "empty")
        assert page.locator("#to-review").is_visible() == (status["reviews"]["waiting"] > 0)
        has_plots = name not in ("empty", "unmonitored")
        assert page.locator("#timeline").is_visible() == has_plots
        assert page.locator("#risk-plot .curve").count() == has_plots
        assert page.locator("#policy-rows tr").count() == len(status["deployments"])


def test_numbers_are_those_of_the_status(browser: Browser, states: dict[str, Served]) -> None:
    served = states["broken"]
    monitor = served.service.watcher.status["monitor"]
    with open_page(browser, served.url) as page:
        facts = read_facts(page)
        audit, recent = monitor["audit"], monitor["recent"]
        assert facts["Coverage"].startswith(f"{100 * monitor['coverage']:.3g} %")
        assert facts["Audited risk"].startswith(f"{100 * audit['low']:.3g} % to {100 * audit['high']:.3g} % broken")
        assert facts["Estimated risk"].startswith(f"{100 * recent['risk']:.3g} %")
        assert page.locator("#facts .bad dt").all_inner_texts() == ["Audited risk"]
        assert page.locator("#risk-plot .limit").count() == 2, "the guaranteed risk, and its key in the legend"
        assert page.locator("#risk-plot .bounds").count() == 2
        rows = page.locator("#wrong-rows tr")
        assert rows.count() == 12
        assert page.locator("#wrong-rows th").first.inner_text() == HOSTILE
        assert page.locator("#wrong-rows td").nth(1).inner_text() == "<b>fish</b>"
        assert page.locator("main img, main b b").count() == 0
        assert page.title().startswith("▲ Alarm"), "nothing in the table ran"


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        *((name, width, scheme) for name in STATES for width, scheme in ((1280, "light"), (390, "dark"))),
        ("broken", 1280, "dark"),
        ("broken", 390, "light"),
    ],
)
def test_page_fits_the_width_with_enough_contrast(
    browser: Browser, states: dict[str, Served], name: str, width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 844}
    with open_page(browser, states[name].url, viewport=viewport, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERLAPS) == []
        for place in TEXTS:
            if page.locator(place).count():
                assert page.evaluate(CONTRAST, place) >= 4.5, place
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"dashboard-{name}-{width}-{scheme}.png", full_page=True)


def test_page_is_up_to_date_by_itself(browser: Browser, early: Served) -> None:
    with open_page(browser, early.url) as page:
        assert read_facts(page)["Images decided"].startswith("89")
        page.focus("#risk-plot")
        early.service.add(make_stream(800, first=90, audit=0.2))
        early.service.watcher.look()
        expect(page.locator("#facts dd").nth(1)).to_contain_text("873")
        expect(page.locator("#badge")).to_have_text("✓ No alarm")
        expect(page.locator("#risk-reading")).to_contain_text("Images 501 to 873")
        page.keyboard.press("Home")
        number, predicted = list_audits(early.service.database, [1])[0]
        early.service.reviews.label(number, predicted, REVIEWER)
        review_all(early.service, 0.0)
        early.service.watcher.look()
        expect(page.locator("#facts dd").nth(3)).to_have_text(re.compile(r"^\s*0\b"))
        expect(page.locator("#risk-caption")).to_contain_text("audits")
        assert page.evaluate("document.activeElement.id") == "risk-plot", "the focus stays"
        assert page.inner_text("#risk-reading").startswith("Images 1 to 500"), "and so does what is read"
        early.service.reviews.undo(number, REVIEWER)
        early.service.watcher.look()
        expect(page.locator("#facts dd").nth(3)).to_have_text(re.compile(r"^\s*1\b"))


def test_page_says_that_the_service_is_gone_and_recovers(browser: Browser, early: Served) -> None:
    with open_page(browser, early.url, may_complain=True) as page:
        page.route("**/v1/status*", lambda route: route.abort())
        expect(page.locator("#connection")).to_be_visible()
        assert "does not respond" in page.inner_text("#connection")
        assert read_facts(page)["Images decided"].startswith("89"), "what was known stays"
        page.unroute("**/v1/status*")
        expect(page.locator("#connection")).to_be_hidden()


def test_problem_of_the_service_is_shown(browser: Browser, early: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with open_page(browser, early.url) as page:
        with monkeypatch.context() as broken:
            broken.setattr(early.service, "refresh", fail)
            early.service.watcher.look()
        expect(page.locator("#problem")).to_be_visible()
        early.service.watcher.look()
        expect(page.locator("#problem")).to_be_hidden()


def test_plots_are_read_by_keyboard(browser: Browser, states: dict[str, Served]) -> None:
    with open_page(browser, states["quiet"].url) as page:
        page.focus("#activity-plot")
        page.keyboard.press("End")
        assert re.search(r"\d+ images, \d+ accepted, \d+ rejected", page.inner_text("#activity-reading"))
        page.keyboard.press("ArrowLeft")
        assert page.locator("#activity-plot .bar-marked").count() == 1
        page.focus("#coverage-plot")
        assert page.inner_text("#activity-reading") == ""
        page.keyboard.press("Home")
        assert page.inner_text("#coverage-reading").startswith("Images 1 to 500:")
        page.locator("#activity-plot > svg").hover()
        expect(page.locator("#activity-reading")).not_to_be_empty()


def test_everything_is_reached_by_tab_with_a_visible_focus(browser: Browser, states: dict[str, Served]) -> None:
    with open_page(browser, states["quiet"].url) as page:
        reached: list[str] = []
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement !== document.body"):
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
            page.keyboard.press("Tab")
        assert len(reached) >= 13
        assert reached[0] == "Skip to the content"
        places = ["Review", "0", "activity-plot", "risk-plot", "disagreement-plot", "Change the policy"]
        order = [reached.index(place) for place in places]
        assert order == sorted(order)
        assert page.locator("table:not(:has(caption))").count() == 0
        assert page.locator("figure:not([aria-labelledby])").count() == 0


def test_policy_is_changed_on_the_page(browser: Browser, tmp_path: Path) -> None:
    digits = make_digits(tmp_path)
    other = make_other_policy(digits)
    other.save(tmp_path / "other.json")
    forged = tmp_path / "forged.json"
    forged.write_text(other.model_dump_json().replace('"top_k":1', '"top_k":2'))
    with serve(digits.policy, tmp_path / "service") as (url, service):
        send_image(url, digits.files[0])
        service.watcher.look()
        with open_page(browser, url, may_complain=True) as page:  # the browser reports the status 422
            page.click("#change summary")
            assert "--reviewed" in page.inner_text("#change .command")
            page.set_input_files("#policy-file", forged)
            page.click("#policy-form button")
            expect(page.locator("#policy-result")).to_contain_text("checksum")
            assert service.live.deployment.number == 1
            page.set_input_files("#policy-file", tmp_path / "other.json")
            page.click("#policy-form button")
            expect(page.locator("#policy-result")).to_contain_text(other.checksum[:8])
            expect(page.locator("#policy-rows tr")).to_have_count(2)
            assert service.live.deployment.policy.checksum == other.checksum
            assert page.locator("#change").get_attribute("open") is not None, "it stays as it is"
        token = service.tokens.add("Ada", "reviewer")
        with open_page(browser, url, extra_http_headers={"Authorization": f"Bearer {token}"}) as page:
            assert page.locator("#change").count() == 0, "reviewers may not"
            assert page.locator("#facts a").count() == 1
        token = service.tokens.add("camera", "client")
        with open_page(browser, url, extra_http_headers={"Authorization": f"Bearer {token}"}) as page:
            assert page.locator("#facts a, #to-review").count() == 0, "clients may not review"
