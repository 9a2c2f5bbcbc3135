"""Label on demand in a browser: by keyboard to the end, without predictions on the page, and nothing after the end."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.serving.desk import Desk, make_desk
from tests.serving.running import wait_for
from tests_browser.test_review_page import DESKTOP, PHONE, READ_UNSENT, open_page, wait_until


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return make_desk(tmp_path)


def look(page: Page) -> str | None:
    """Wait until all is saved and an image is on the screen, and return its id; None if labeling is finished."""
    wait_until(page, f"({READ_UNSENT})().then((unsent) => unsent.length === 0)")
    wait_until(
        page, "document.querySelector('#picture img')?.naturalWidth > 0 || !document.querySelector('#empty').hidden"
    )
    return None if page.locator("#empty").is_visible() else page.inner_text("#title b")


def test_labels_are_given_by_keyboard_until_it_is_finished(browser: Browser, desk: Desk) -> None:
    with desk.open() as plan, open_page(browser, desk.url) as page:
        expect(page.locator("#goal")).to_contain_text("Nothing is certified yet")
        first = look(page)
        page.keyboard.press("Enter")  # there is no default
        assert look(page) == first
        for key in ("n", "c", "b"):
            page.keyboard.press(key)
            assert look(page) != first
            wait_for(lambda: plan.labels == {first: None})
            assert plan.progress.errors == 1
            page.keyboard.press("u")
            assert look(page) == first
            wait_for(lambda: plan.labels == {})
        while shown := look(page):
            names = page.locator("#likely .name").all_inner_texts()
            assert names == [str(digit) for digit in range(10)], "each class has its key, whatever is predicted"
            page.keyboard.press(str(desk.truth[shown]))
        expect(page.locator("#empty-title")).to_have_text("Finished")
        expect(page.locator("#empty-text")).to_contain_text("The policy is in policy.json. You can close this page.")
        expect(page.locator("#empty-undo")).to_be_hidden()
        assert plan.progress.accepted > 0
        assert plan.labels == {id_: desk.truth[id_] for id_ in plan.labels}
        wait_for(desk.is_running, lambda is_running: not is_running)
        page.keyboard.press("u")
        page.evaluate("window.dispatchEvent(new Event('focus'))")
        page.wait_for_timeout(2000)
        assert page.locator("#notice").is_hidden(), "the page does not miss the server"
        expect(page.locator("#empty-title")).to_have_text("Finished")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "label-finished.png")


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_page_shows_the_goal_and_no_prediction(browser: Browser, desk: Desk, size: dict[str, int], scheme: str) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    with desk.open(), open_page(browser, desk.url, context=context) as page:
        wait_until(page, "document.querySelector('#picture img')?.naturalWidth > 0")
        for hidden in ("#confirm", "#views", "#progress", ".choice .tag", ".choice.predicted", "nav a"):
            assert not page.locator(hidden).first.is_visible()
        assert "confidence" not in page.inner_text("#title")
        assert "%" not in page.inner_text("#work")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"label-{size['width']}-{scheme}.png")
        page.keyboard.press("?")
        expect(page.get_by_role("row").filter(has_text="counts as wrong")).to_have_count(3)
        if folder:
            page.screenshot(path=Path(folder) / f"label-keys-{size['width']}-{scheme}.png")
    context.close()
