"""The dashboard in a browser: every state of a service, by itself up to date, by keyboard, on a phone, in the dark."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from secondlook.serving.access import PAGES
from secondlook.serving.database import decisions, images, open_database
from tests.monitoring.streams import make_policy
from tests.serving.running import make_digits, make_noise, run_in_thread, send_image, serve
from tests.serving.streams import REVIEWER, FakeService, list_audits, make_stream, review_all
from tests.serving.test_watch_routes import make_other_policy
from tests_browser.test_monitor_page import OVERLAPS
from tests_browser.test_page import CONTRAST

HOSTILE = "<img src=x onerror=\"document.title='caught'\">"
TEXTS = (
    "#badge",
    "#lead",
    ".small",
    "#next",
    "#risk-scale text",
    "[role=tab]",
    "#alarms li",
    ".tile small",
    ".missing",
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


def make_holding(folder: Path) -> FakeService:
    service = FakeService(open_database(folder), folder, make_policy(), audit=1.0)
    service.add(make_stream(800, audit=1.0))
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
    store_images(service)
    return service


def make_calm(folder: Path) -> FakeService:
    service = make_alarmed(folder)
    service.look()
    service.watcher.alarms.acknowledge("shift", "Ada", HOSTILE)
    return service


def store_images(service: FakeService) -> None:
    """Store the image of every second audit, as if the others were removed."""
    numbers = [number for number, _ in list_audits(service.database, [1])[::2]]
    values = {"media_type": "image/png", "content": make_noise(), "stored_at": time.time()}
    with service.database.write() as connection:
        connection.execute(sa.insert(images), [{"number": number, **values} for number in numbers])


def make_unmonitored(folder: Path) -> FakeService:
    service = FakeService(open_database(folder), folder, make_policy(has_reference=False))
    service.add(make_stream(200, audit=None))
    return service


STATES: dict[str, Callable[[Path], FakeService]] = {
    "empty": make_empty,
    "early": make_early,
    "quiet": make_quiet,
    "holding": make_holding,
    "alarmed": make_alarmed,
    "calm": make_calm,
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
def open_page(
    browser: Browser, url: str, tab: str = "", *, may_complain: bool = False, **options: Any
) -> Iterator[Page]:
    """Open a page at a tab; a console message, or a request to anything but the service, fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith((url, "data:")) else messages.append(one.url))
    page.goto(f"{url}/#{tab}" if tab else url)
    expect(page.locator("#badge")).to_be_visible()
    yield page
    context.close()
    assert may_complain or messages == []


def read_facts(page: Page) -> dict[str, str]:
    """Return the tiles: the name, and the value with its details."""
    names, values = (page.locator(f"#facts {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return {name: " ".join(value.split()) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
@pytest.mark.parametrize(
    ("name", "badge", "lead", "action"),
    [
        ("empty", "– Not checked yet", "No images yet", "curl --data-binary"),
        ("early", "– Not checked yet", "Too few images", "Review 13 audits"),
        ("quiet", "… Undecided", "The reviewed audits do not decide yet", "more audits"),
        ("holding", "✓ Holds", "The guarantee holds", "Nothing to do; keep reviewing"),
        ("alarmed", "▲ Images changed", "The images have changed", "Review 284 audits"),
        ("calm", "▲ Images changed, acknowledged", "The images have changed", "Review 284 audits"),
        ("broken", "▲ Broken", "The guarantee is broken", "secondlook calibrate --reviewed"),
        ("unmonitored", "– Not checked yet", "calibration images", "secondlook calibrate --reviewed"),
    ],
)
def test_first_screen_says_state_cause_and_one_action(
    browser: Browser, states: dict[str, Served], name: str, badge: str, lead: str, action: str, size: tuple[int, int]
) -> None:
    with open_page(browser, states[name].url, viewport={"width": size[0], "height": size[1]}) as page:
        assert page.inner_text("#badge") == badge
        assert page.inner_text("#lead").replace("\xa0", " ").startswith(lead) or name == "unmonitored"
        assert page.title().startswith(badge if name in ("alarmed", "broken") else "Dashboard")
        shown = page.locator("#to-review, #next, #command, #first-image").locator("visible=true")
        found = shown.filter(has_text=action)
        assert found.count() == 1
        for place in (page.locator("#badge"), page.locator("#lead"), found):
            box = place.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= size[1], "without scrolling"
        assert page.locator("#action a, #command, #start").locator("visible=true").count() <= 1, "one action"
        assert "0 % to 100 %" not in page.content().replace("\xa0", " ")


@pytest.mark.parametrize("name", STATES)
def test_facts_of_every_state(browser: Browser, states: dict[str, Served], name: str) -> None:
    status = states[name].service.watcher.status
    with open_page(browser, states[name].url) as page:
        facts = read_facts(page)
        assert facts["Images decided"].startswith(f"{status['decisions']['images']:,}")
        assert facts["Waiting for review"].startswith(f"{status['reviews']['waiting']:,}")
        has_plots = name not in ("empty", "unmonitored")
        assert page.locator("#timeline").is_visible() == page.locator("#tab-timeline").is_visible() == has_plots
        assert page.locator("#risk-plot .curve").count() == has_plots
        assert page.locator("#policy-rows tr").count() == len(status["deployments"])


def test_numbers_are_those_of_the_status(browser: Browser, states: dict[str, Served]) -> None:
    served = states["broken"]
    monitor = served.service.watcher.status["monitor"]
    with open_page(browser, served.url) as page:
        facts = read_facts(page)
        audit = monitor["audit"]
        assert facts["Coverage"].startswith(f"{100 * monitor['coverage']:.3g} %")
        assert facts["Audits"].startswith(f"{monitor['audited']} broken; {audit['labels']} reviewed")
        assert page.locator("#facts .bad dt").all_inner_texts() == ["Audits"]
        assert page.locator("#risk-plot .limit").count() == 2, "the guaranteed risk, and its key in the legend"
        assert page.locator("#risk-plot .bounds").count() == 2


def test_all_risks_are_drawn_on_one_scale(browser: Browser, states: dict[str, Served]) -> None:
    served = states["broken"]
    monitor = served.service.watcher.status["monitor"]
    audit, recent = monitor["audit"], monitor["recent"]
    with open_page(browser, served.url) as page:
        picture = page.get_by_role("img", name="Guaranteed: at most 5")
        label = (picture.get_attribute("aria-label") or "").replace("\xa0", " ")
        for name, low, high in (
            ("Audited", audit["low"], audit["high"]),
            ("(", recent["risk_low"], recent["risk_high"]),
        ):
            assert f"{low:.2%} to {high:.2%}".replace("%", " %") in label.partition(name)[2]
        expect(picture.locator("text", has_text="limit 5")).to_be_visible()
        start, end = (float(picture.locator(f".{name}").first.get_attribute("x1") or "") for name in ("axis", "limit"))

        def read(place: int) -> tuple[float, float]:
            x, width = (
                float(picture.locator("rect.scale-bar").nth(place).get_attribute(name) or "") for name in ("x", "width")
            )
            return (x - start) / (end - start) * 0.05, (x + width - start) / (end - start) * 0.05

        expected = [(0, 0.05), (audit["low"], audit["high"]), (recent["risk_low"], recent["risk_high"])]
        for place, interval in enumerate(expected):
            assert read(place) == pytest.approx(interval, abs=1e-6)
    with open_page(browser, states["alarmed"].url) as page:
        assert page.get_by_role("img", name="Audited: not checked yet").locator("rect.scale-bar").count() == 2


def test_stated_reviewer_error_is_named(browser: Browser, states: dict[str, Served], early: Served) -> None:
    early.service.decisions.deploy(make_policy(), 0.2, reviewer_error=0.03)
    early.service.look()
    with open_page(browser, early.url) as page:
        assert "valid for reviewer errors up to 3" in page.inner_text("#meaning")
    with open_page(browser, states["early"].url) as page:
        assert "reviewer errors" not in page.inner_text("#meaning")


def test_first_label_is_no_check(browser: Browser, early: Served) -> None:
    number, predicted = list_audits(early.service.database, [1])[0]
    early.service.reviews.label(number, predicted, REVIEWER)
    audit = early.service.look()["monitor"]["audit"]
    assert (audit["low"], round(audit["high"], 3)) == (0.0, 1.0)
    with open_page(browser, early.url) as page:
        assert page.inner_text("#badge") == "– Not checked yet"
        expect(page.locator("#risk-reading")).to_contain_text("audited so far not checked yet")
        assert "0 % to 100 %" not in page.content().replace("\xa0", " ")


def test_wrong_images_have_thumbnails_and_reviews(
    browser: Browser, states: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = states["broken"]
    monkeypatch.setitem(PAGES, "/history", ("History", "review"))
    wrong = served.service.watcher.status["monitor"]["wrong_images"]
    with open_page(browser, served.url, "wrong") as page:
        tiles = page.locator("#wrong-images .tile")
        assert tiles.count() == len(wrong) == 12
        shown = tiles.first.inner_text()
        assert HOSTILE in shown
        assert "reviewed <b>fish</b> by Ada, " in shown
        stored = sum(one["has_image"] for one in wrong)
        assert 0 < stored < 12
        assert tiles.locator("img").count() == stored
        expect(tiles.locator(".missing")).to_have_count(12 - stored)
        for picture in tiles.locator("img").all():
            picture.scroll_into_view_if_needed()
            expect(picture).to_have_js_property("naturalWidth", 16)
        assert tiles.first.get_attribute("href") == f"/history#{wrong[0]['number']}"
        assert page.locator("b b").count() == 0
        assert page.title().startswith("▲ Broken"), "nothing in the id ran"
    with open_page(browser, served.url, "wrong", may_complain=True) as page:  # the browser reports the status 404
        page.route("**/v1/review/*/image", lambda route: route.fulfill(status=404))
        page.reload()
        expect(page.locator("#wrong-images .missing")).to_have_count(12)


def test_alarm_is_acknowledged_and_reset_on_the_page(browser: Browser, tmp_path: Path) -> None:
    with run(make_alarmed(tmp_path)) as served, open_page(browser, served.url) as page:
        page.fill("#alarms input", "The camera <b>was</b> moved")
        served.service.watcher.look()
        assert page.input_value("#alarms input") == "The camera <b>was</b> moved", "kept while it is written"
        page.keyboard.press("Enter")
        expect(page.locator("#alarms [role=status]")).to_contain_text("Saved")
        served.service.watcher.look()
        expect(page.locator("#badge")).to_have_text("▲ Images changed, acknowledged")
        assert re.search(r"acknowledged by local, .*: The camera <b>was</b> moved", page.inner_text("#alarms"))
        assert page.locator("#alarms form").count() == 0
        assert page.title().startswith("Dashboard")
        page.click("#alarms summary")
        page.click("#alarms details button")
        expect(page.locator("#alarms [role=status]")).to_contain_text("Saved")
        served.service.watcher.look()
        expect(page.locator("#alarms li")).to_have_count(0)
        assert read_facts(page)["Shift alarm"].endswith("reset 1 time")
        assert page.inner_text("#badge") == "– Not checked yet"
        page.click("#tab-log")
        assert re.search(r"reset by local after 2,156 images", page.inner_text("#log-rows"))


def test_tabs_follow_keyboard_and_address(browser: Browser, states: dict[str, Served]) -> None:
    with open_page(browser, states["broken"].url, "policies") as page:
        tabs = page.locator("[role=tab]")
        selected = page.locator("[role=tab][aria-selected=true]")
        assert selected.inner_text() == "Policies"
        assert page.locator("[role=tabpanel]").locator("visible=true").count() == 1
        selected.focus()
        for key, name in (
            ("ArrowRight", "instance"),
            ("ArrowRight", "timeline"),
            ("End", "instance"),
            ("Home", "timeline"),
        ):
            page.keyboard.press(key)
            assert page.evaluate("location.hash") == f"#{name}"
            assert page.locator(f"#{name}").is_visible()
            assert page.evaluate("document.activeElement.id") == f"tab-{name}"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "risk-plot", "one stop for all tabs"
        tabs.nth(1).click()
        assert page.evaluate("location.hash") == "#activity"
        page.evaluate("location.hash = 'log'")
        expect(selected).to_have_text("Alarms")
        for tab in tabs.all():
            panel = page.locator(f"#{tab.get_attribute('aria-controls')}")
            assert panel.get_attribute("aria-labelledby") == tab.get_attribute("id")


def test_print_has_the_picture_and_all_panels(browser: Browser, states: dict[str, Served], tmp_path: Path) -> None:
    with open_page(browser, states["broken"].url, "wrong") as page:
        page.pdf(path=tmp_path / "page.pdf", format="A4")
        text = subprocess.run(
            ["pdftotext", tmp_path / "page.pdf", "-"], capture_output=True, text=True, check=True
        ).stdout
        for part in (
            "Guaranteed",
            "limit 5",
            "Timeline",
            "evidence (log)",
            "minutes before now",
            "Alarms",
            "Policies",
        ):
            assert part in text, part
        assert "Acknowledge\n" not in text
        assert page.locator("#timeline").is_hidden(), "afterwards as before"


def test_plots_have_time_on_the_x_axis(browser: Browser, tmp_path: Path) -> None:
    service, start = make_empty(tmp_path), 1_780_000_000.0  # 2026-05-28, 20:26 UTC
    for hour in range(20):
        service.add(make_stream(110, first=200 * hour, audit=0.2), at=start + 3600 * hour)
    with run(service) as served, open_page(browser, served.url, timezone_id="Europe/Berlin", locale="en-GB") as page:
        marks = page.locator("#coverage-plot svg text").all_text_contents()
        assert "29 May" in marks, "midnight"
        assert "time" in marks
        assert {"00:00", "03:00", "06:00"} & set(marks) == {"03:00", "06:00"}
        page.focus("#coverage-plot")
        page.keyboard.press("Home")
        query = sa.select(decisions.c.decided_at).order_by(decisions.c.number)
        times = [at for (at,) in service.database.fetch(query)]
        assert [times[0], times[500]] == [start, start + 3600 * 4]
        assert re.match(
            r"Images 1 to 500, 28 May 2026, 22:26\D+29 May 2026, 02:26:", page.inner_text("#coverage-reading")
        )
        plot = page.locator("#coverage-plot > svg").bounding_box()
        assert plot is not None
        page.locator("#coverage-plot > svg").hover(position={"x": plot["width"] * 0.97, "y": 100})
        expect(page.locator("#coverage-reading")).to_contain_text(f"to {len(times):,}, ")


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
        expect(page.locator("#badge")).to_have_text("– Not checked yet")
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
        expect(page.locator("#badge")).to_have_text("▲ Problem")
        assert "see the log" in page.inner_text("#lead")
        early.service.watcher.look()
        expect(page.locator("#badge")).to_have_text("– Not checked yet")


def test_plots_are_read_by_keyboard(browser: Browser, states: dict[str, Served]) -> None:
    with open_page(browser, states["quiet"].url, "activity") as page:
        page.focus("#activity-plot")
        page.keyboard.press("End")
        assert re.search(r"\d+ images, \d+ accepted, \d+ rejected", page.inner_text("#activity-reading"))
        page.keyboard.press("ArrowLeft")
        assert page.locator("#activity-plot .bar-marked").count() == 1
        page.focus("#tab-activity")
        assert page.inner_text("#activity-reading") == ""
        page.locator("#activity-plot > svg").hover()
        expect(page.locator("#activity-reading")).not_to_be_empty()
        page.click("#tab-timeline")
        page.focus("#coverage-plot")
        page.keyboard.press("Home")
        assert page.inner_text("#coverage-reading").startswith("Images 1 to 500, ")


def test_everything_is_reached_by_tab_with_a_visible_focus(browser: Browser, states: dict[str, Served]) -> None:
    with open_page(browser, states["quiet"].url) as page:
        reached: list[str] = []
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement !== document.body"):
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
            page.keyboard.press("Tab")
        assert len(reached) >= 10
        assert reached[0] == "Skip to the content"
        places = ["Review", "0", "tab-timeline", "risk-plot", "disagreement-plot"]
        order = [reached.index(place) for place in places]
        assert order == sorted(order)
        assert page.locator("table:not(:has(caption))").count() == 0
        assert page.locator("figure:not([aria-labelledby], [aria-label])").count() == 0


def test_policy_is_changed_on_the_page(browser: Browser, tmp_path: Path) -> None:
    digits = make_digits(tmp_path)
    other = make_other_policy(digits)
    other.save(tmp_path / "other.json")
    forged = tmp_path / "forged.json"
    forged.write_text(other.model_dump_json().replace('"top_k":1', '"top_k":2'))
    with serve(digits.policy, tmp_path / "service") as (url, service):
        send_image(url, digits.files[0])
        service.watcher.look()
        with open_page(browser, url, "policies", may_complain=True) as page:  # the browser reports the status 422
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
            assert "secondlook calibrate" not in page.content()
            assert page.locator("#facts a").count() == 1
        token = service.tokens.add("camera", "client")
        with open_page(browser, url, extra_http_headers={"Authorization": f"Bearer {token}"}) as page:
            assert page.locator("#facts a, #to-review:visible, form:visible").count() == 0, "clients may not review"
