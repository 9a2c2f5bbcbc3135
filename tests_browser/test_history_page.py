"""Comments, second opinions, the strip of the last labels, the pages of history and reviewers, and withdrawal."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from secondlook.serving.service import Service
from tests.serving.running import Digits, make_digits, send, serve
from tests_browser.test_page import CONTRAST
from tests_browser.test_review_page import (
    DEFECTS,
    DESKTOP,
    LOGIN_ADVICE,
    PHONE,
    Reviewer,
    fill,
    open_page,
    read_labels,
    wait_until,
)

ROLES = {"anna": "reviewer", "ben": "reviewer", "root": "admin"}
SHOWN = "#items .about b"


class Team(NamedTuple):
    """A service with two reviewers and an administrator."""

    url: str
    service: Service
    tokens: dict[str, str]

    def post(self, who: str, path: str, **body: Any) -> Any:
        headers = {"Content_Type": "application/json", "Authorization": f"Bearer {self.tokens[who]}"}
        reply = send(f"{self.url}/v1/review/{path}", json.dumps(body).encode(), **headers)
        assert reply.status == 200, reply.body
        return reply.json

    def label(self, who: str, label: int | str, comment: str | None = None) -> dict[str, Any]:
        """Label the next image of a reviewer, and return it."""
        item: dict[str, Any] = self.post(who, "lease", count=1)["items"][0]
        self.post(who, f"{item['number']}/label", label=label, comment=comment, seconds=2.5)
        return item

    @contextmanager
    def open(self, browser: Browser, who: str, place: str = "/review", **settings: Any) -> Iterator[Page]:
        """Log in, and open a page."""
        context = browser.new_context(**({"viewport": DESKTOP} | settings))
        with open_page(browser, self.url, context=context, allowed=(LOGIN_ADVICE, "status of 422")) as page:
            page.fill("#token", self.tokens[who])
            page.keyboard.press("Enter")
            page.wait_for_url("**/review")
            if place != "/review":
                page.goto(self.url + place)
            yield page
        context.close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def team(digits: Digits, tmp_path: Path) -> Iterator[Team]:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        fill(url, 12)
        tokens = {name: service.tokens.add(name, role) for name, role in ROLES.items()}  # type: ignore[arg-type]
        yield Team(url, service, tokens)


def take_screenshot(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_comment_goes_with_the_label(browser: Browser, team: Team) -> None:
    with team.open(browser, "anna") as page:
        anna = Reviewer(page, team.service.reviews)
        item = anna.look()
        expect(page.locator("#comment")).not_to_be_focused()
        page.keyboard.press("m")
        expect(page.locator("#comment")).to_be_focused()
        page.keyboard.type("3 or 8, see below")
        assert anna.look() == item, "keys are text in the field"
        page.keyboard.press("Enter")
        expect(page.locator("#stage")).to_be_focused()
        anna.press("3")
        anna.look_after(item)
        expect(page.locator("#comment")).to_have_value("")
        anna.press("4")
        anna.wait_until_saved()
        anna.check()
        first, second = (team.service.reviews.read_history(number)[0] for number in anna.order)
        assert (first.comment, second.comment) == ("3 or 8, see below", None)
        assert all(one.seconds is not None and one.seconds > 0 for one in (first, second))


def test_second_opinion_comes_from_somebody_else(browser: Browser, team: Team) -> None:
    with team.open(browser, "anna") as page:
        anna = Reviewer(page, team.service.reviews)
        item = anna.look()
        page.keyboard.press("m")
        page.keyboard.type("too dark?")
        page.keyboard.press("Escape")
        page.keyboard.press("e")
        following = anna.look_after(item)
        expect(page.locator("#last")).to_have_text("Handed to another reviewer.")
        page.keyboard.press("u")
        assert anna.look_after(following).number == item.number
        page.keyboard.press("m")
        page.keyboard.type("too dark?")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Second opinion").click()
        anna.look_after(item)
        anna.wait_until_saved()
    assert read_labels(team.service.reviews) == {}
    with team.open(browser, "ben") as page:
        ben = Reviewer(page, team.service.reviews)
        assert ben.look().number == item.number
        expect(page.locator("#asked")).to_have_text("anna asks for a second opinion: “too dark?”")
        take_screenshot(page, "review-asked")
        ben.press("2")
        ben.look_after(item)
        expect(page.locator("#asked")).to_be_hidden()
        ben.wait_until_saved()


def test_last_labels_are_shown_and_corrected(browser: Browser, team: Team) -> None:
    with team.open(browser, "anna") as page:
        anna = Reviewer(page, team.service.reviews)
        strip = page.locator("#strip-list button span")
        for place in range(11):
            item = anna.look()
            anna.press(str(place % 10))
            anna.look_after(item)
        expect(strip).to_have_text(["0", *"987654321"])
        anna.wait_until_saved()
        anna.check()
        page.keyboard.press("u")
        expect(strip).to_have_text([*"9876543210"])
        anna.wait_until_saved()
        page.reload()
        anna.look()
        expect(strip).to_have_text([*"9876543210"])
        page.get_by_role("button", name="labeled 7").click()
        dialog = page.get_by_role("dialog")
        number = anna.order[7]
        assert page.get_attribute("#record-image img", "src") == f"/v1/review/{number}/image"
        expect(dialog.get_by_role("listitem")).to_contain_text("anna labeled 7")
        assert page.evaluate(DEFECTS) == []
        dialog.get_by_label("Correct label").fill("nonsense")
        page.keyboard.press("5")  # text, not a label for the image behind
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator("#record-fault")).to_contain_text("nonsense")
        dialog.get_by_label("Correct label").fill("1")
        dialog.get_by_label("Comment").fill("a slip")
        take_screenshot(page, "record")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        expect(strip.nth(2)).to_have_text("1")
        assert team.service.reviews.read(number).reviewed_label == 1
        last = team.service.reviews.read_history(number)[-1]
        assert (last.action, last.by, last.before, last.comment) == ("correct", "anna", 7, "a slip")


def test_history_is_searched_and_filtered(browser: Browser, team: Team) -> None:
    labeled = [team.label(*one) for one in (("anna", 3), ("anna", "bad image"), ("ben", 3, "<b>odd</b>"))]
    names = [str(item["name"]) for item in reversed(labeled)]
    total = team.service.reviews.counts().waiting + 3
    with team.open(browser, "anna", "/history") as page:
        rows = page.locator(SHOWN)
        expect(page.locator("#count")).to_have_text(f"{total} images")
        assert rows.all_inner_texts()[:3] == names, "newest first"
        expect(page.locator(".item q")).to_have_text("<b>odd</b>")
        page.get_by_label("State").select_option("done")
        expect(rows).to_have_text(names)
        page.get_by_label("Reviewer").fill("me")
        expect(rows).to_have_text(names[1:])
        page.get_by_label("Label", exact=True).fill("bad image")
        expect(rows).to_have_text(names[1:2])
        assert page.evaluate("location.search") == "?state=done&label=bad+image&reviewer=me"
        page.reload()
        expect(rows).to_have_text(names[1:2])
        page.get_by_label("Label", exact=True).fill("elephant")
        expect(page.locator("#count")).to_contain_text("elephant")
        page.goto(f"{team.url}/history?query={names[0]}")
        expect(rows).to_have_text(names[:1])
        page.get_by_label("Id or file name").fill("no such image")
        expect(page.locator("#count")).to_have_text("No images match.")


def test_history_has_pages(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        fill(url, 54)
        total = service.reviews.counts().waiting
        with open_page(browser, url) as page:
            page.goto(f"{url}/history")
            expect(page.locator(SHOWN)).to_have_count(50)
            page.get_by_role("button", name="Show more").click()
            expect(page.locator(SHOWN)).to_have_count(total)
            expect(page.locator("#items li:nth-child(51) button")).to_be_focused()
            assert len(set(page.locator(SHOWN).all_inner_texts())) == total
            expect(page.locator("#more")).to_be_hidden()


def test_only_administrators_correct_the_labels_of_others(browser: Browser, team: Team) -> None:
    number = team.label("anna", 3)["number"]
    with team.open(browser, "ben", "/history?state=done") as page:
        page.locator(".item").click()
        expect(page.locator("#record-events")).to_contain_text("anna labeled 3")
        expect(page.locator("#record-form")).to_be_hidden()
        page.keyboard.press("Escape")
        expect(page.locator("#record")).to_be_hidden()
    with team.open(browser, "root", "/history?state=done") as page:
        page.locator(".item").click()
        page.get_by_label("Label for everyone").fill("none of these")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".item .given b")).to_have_text("none of these")
        page.locator(".item").click()
        expect(page.locator("#record-events li")).to_have_text(
            [re.compile("anna labeled 3"), re.compile("root decided none of these")]
        )
    assert team.service.reviews.read(number).reviewed_label == -1


def test_labels_of_a_reviewer_are_withdrawn(browser: Browser, team: Team) -> None:
    numbers = [team.label("ben", label)["number"] for label in (3, 4)]
    kept = team.label("anna", 5)["number"]
    with team.open(browser, "anna", "/reviewers") as page:
        expect(page.locator("#reviewers th")).to_have_text(["anna", "ben"])
        expect(page.locator("#reviewers tr").nth(1).locator("td")).to_have_text(["2", "0", "–", "2.5 s", "0.0 %"])
        assert page.locator("#reviewers button:visible").count() == 0
        expect(page.locator("#error-text")).to_contain_text("unknown")
    with team.open(browser, "root", "/reviewers") as page:
        page.get_by_role("button", name="Withdraw all labels of ben").click()
        dialog = page.get_by_role("dialog", name="Withdraw 2 labels of ben?")
        dialog.get_by_role("button", name="Cancel").click()
        assert set(read_labels(team.service.reviews)) == {*numbers, kept}
        page.get_by_role("button", name="Withdraw all labels of ben").click()
        dialog.get_by_role("button", name="Withdraw all labels").click()
        expect(dialog).to_be_hidden()
        expect(page.locator("#live")).to_contain_text("2 labels of ben")
        expect(page.locator("#reviewers th")).to_have_text(["anna"])
    assert read_labels(team.service.reviews) == {kept: 5}


AGREEMENT = {
    "reviewers": [
        {"name": "anna", "labels": 1200, "pairs": 30, "agreement": 0.9333, "seconds": 2.3, "fast": 0.01},
        {"name": "ben", "labels": 400, "pairs": 30, "agreement": 0.9333, "seconds": 0.7, "fast": 0.64},
    ],
    "pairs": [{"reviewers": ["anna", "ben"], "images": 30, "agreement": 0.9333, "kappa": 0.912}],
    "classes": [
        {"label": 3, "class": "3", "pairs": 5, "agreement": 0.8},
        {"label": -1, "class": "none of these", "pairs": 5, "agreement": 0.4},
    ],
    "alpha": 0.905,
    "error": {
        "images": 30,
        "disagreements": 2,
        "estimate": 0.034,
        "low": 0.004,
        "high": 0.11,
        "bound": 0.002,
        "exceeded": True,
    },
}


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_pages_are_accessible_and_fit(browser: Browser, team: Team, size: dict[str, int], scheme: str) -> None:
    for label in (3, "bad image"):
        team.label("anna", label, "a comment " * 20)
    with team.open(browser, "root", "/history", viewport=size, color_scheme=scheme) as page:
        expect(page.locator(SHOWN).first).to_be_visible()
        wait_until(page, "document.querySelector('.item img').naturalWidth > 0")
        check_page(page, ("#count", ".item b", ".item small", ".item q", "#filters label"))
        take_screenshot(page, f"history-{size['width']}-{scheme}")
        page.locator(".item").first.click()
        expect(page.locator("#record-events li")).to_have_count(1)
        check_page(page, ("#record-events b", "#record-events time", ".field-label"))
        take_screenshot(page, f"record-{size['width']}-{scheme}")
        page.route("**/v1/review/agreement", lambda route: route.fulfill(json=AGREEMENT))
        page.goto(f"{team.url}/reviewers")
        expect(page.locator("#error-text")).to_have_text(
            "A reviewer errs in about 3.4 % of the images; the stated bound is 0.2 %."
        )
        expect(page.locator("#error-details")).to_contain_text("0.4 % to 11.0 %, from 2 disagreements in 30 images")
        expect(page.locator("#pairs td")).to_have_text(["30", "93.3 %", "0.91"])
        expect(page.locator("#classes th")).to_have_text(["none of these", "3"])
        expect(page.locator(".warn")).to_have_text("64.0 %")
        check_page(page, ("#error-text", "#error-details", ".warn", "#alpha"))
        take_screenshot(page, f"reviewers-{size['width']}-{scheme}")


def check_page(page: Page, texts: tuple[str, ...]) -> None:
    assert page.evaluate(DEFECTS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for place in texts:
        assert page.evaluate(CONTRAST, place) >= 4.5, place
