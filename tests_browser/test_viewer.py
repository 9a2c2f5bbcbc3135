"""The image on the review page: zoom, drag, brightness, 16-bit windows, and what the classifier sees."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from secondlook.serving.service import Service
from tests.serving.running import Digits, make_cropping_policy, make_digits, make_noise, replace_images, serve
from tests_browser.test_review_page import DESKTOP, PHONE, Reviewer, clear_reviews, fill, open_page, wait_until

DEEP = np.random.default_rng(0).integers(200, 4000, (24, 40), dtype=np.uint16)
"""12-bit pixels in 16 bits, which are almost black in 8 bits."""
READ_PIXELS = """async () => {
  const image = document.querySelector("#picture img");
  const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  return [...context.getImageData(0, 0, canvas.width, canvas.height).data].filter((_, place) => place % 4 === 0);
}"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def filled(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    """A service whose classifier sees the center of each image."""
    folder = tmp_path_factory.mktemp("viewer")
    with serve(make_cropping_policy(digits, folder), folder / "service") as (url, service):
        fill(url, 3)
        yield url, service


@pytest.fixture
def queue(filled: tuple[str, Service]) -> tuple[str, Service]:
    clear_reviews(filled[1])
    return filled


def encode(pixels: Any, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


def measure(page: Page, place: str = "#picture img") -> dict[str, float]:
    return dict(page.evaluate(f"document.querySelector('{place}').getBoundingClientRect().toJSON()"))


def find_fraction(box: dict[str, float], x: float, y: float) -> tuple[float, float]:
    """Return where a point of the window lies in a box, as fractions."""
    return (x - box["x"]) / box["width"], (y - box["y"]) / box["height"]


def take_screenshot(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_wheel_zooms_about_the_pointer(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    replace_images(service, make_noise(64))
    with open_page(browser, url) as page:
        Reviewer(page, service.reviews).look()
        fitting = measure(page)
        x, y = fitting["x"] + 0.7 * fitting["width"], fitting["y"] + 0.4 * fitting["height"]
        page.mouse.move(x, y)
        page.mouse.wheel(0, -500)
        wait_until(
            page, f"document.querySelector('#picture img').getBoundingClientRect().width > {fitting['width'] * 2}"
        )
        assert find_fraction(measure(page), x, y) == pytest.approx((0.7, 0.4), abs=0.01)
        for _ in range(10):
            page.mouse.wheel(0, -2000)
        largest = f"document.querySelector('#picture img').getBoundingClientRect().width > {fitting['width'] * 15.9}"
        wait_until(page, largest)
        page.mouse.wheel(0, 9000)
        wait_until(page, "!document.querySelector('#picture').classList.contains('zoomed')")
        assert measure(page) == pytest.approx(fitting)


def test_mouse_drags_an_enlarged_image(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    replace_images(service, make_noise(64))
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        page.get_by_role("button", name="4×").click()
        before = measure(page)
        page.mouse.move(300, 400)
        page.mouse.down()
        page.mouse.move(240, 430, steps=3)
        page.mouse.up()
        page.mouse.move(500, 500)
        moved = measure(page)
        assert (moved["x"], moved["y"]) == pytest.approx((before["x"] - 60, before["y"] + 30), abs=1)
        assert anna.look() == item


def test_fingers_zoom_and_a_double_tap_fits(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    replace_images(service, make_noise(64))
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    with open_page(browser, url, context=context) as page:
        Reviewer(page, service.reviews).look()
        fitting = measure(page)
        x, y = fitting["x"] + fitting["width"] / 2, fitting["y"] + fitting["height"] / 2
        session = context.new_cdp_session(page)
        for kind, distance in (("touchStart", 40), ("touchMove", 60), ("touchMove", 80), ("touchEnd", None)):
            points = [] if distance is None else [{"x": x - distance, "y": y}, {"x": x + distance, "y": y}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        zoomed = measure(page)
        assert zoomed["width"] == pytest.approx(2 * fitting["width"], rel=0.01)
        assert find_fraction(zoomed, x, y) == pytest.approx((0.5, 0.5), abs=0.01)
        take_screenshot(page, "viewer-phone")
        page.locator("#picture").dispatch_event("dblclick")
        assert measure(page) == fitting
        heights = page.locator("#zooms button").evaluate_all("all => all.map((one) => one.getBoundingClientRect())")
        assert min(min(one["height"], one["width"]) for one in heights) >= 44
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.tap("#show-adjust")
        expect(page.get_by_label("Brightness")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        take_screenshot(page, "viewer-phone-adjust")
    context.close()


@pytest.mark.parametrize("size", [(4000, 80), (80, 4000)])
def test_tall_and_wide_images_are_seen_whole_and_in_full_resolution(
    browser: Browser, queue: tuple[str, Service], size: tuple[int, int]
) -> None:
    url, service = queue
    replace_images(service, encode(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)))
    with open_page(browser, url) as page:
        Reviewer(page, service.reviews).look()
        frame, whole = measure(page, "#picture"), measure(page)
        assert frame["x"] <= whole["x"]
        assert whole["right"] <= frame["right"] + 1
        assert whole["height"] <= frame["height"] + 1
        assert whole["width"] / whole["height"] == pytest.approx(size[1] / size[0], rel=0.1)
        page.keyboard.press("z")
        expect(page.locator("[data-zoom][aria-pressed=true]")).to_have_text("1×")
        actual = measure(page)
        assert (actual["height"], actual["width"]) == pytest.approx(size)
        start, end, key = ("top", "bottom", "ArrowDown") if size[0] > size[1] else ("left", "right", "ArrowRight")
        for _ in range(60):
            page.keyboard.press(key)
        wait_until(
            page,
            f"document.querySelector('#picture img').getBoundingClientRect().{end} <= "
            f"document.querySelector('#picture').getBoundingClientRect().{end} + 1",
        )
        assert measure(page)[start] < 0
        take_screenshot(page, f"viewer-{size[0]}-{size[1]}")


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_images_have_a_window_and_a_level(browser: Browser, queue: tuple[str, Service], kind: str) -> None:
    url, service = queue
    replace_images(service, encode(DEEP, kind), f"image/{kind.lower()}")
    low, high = int(DEEP.min()), int(DEEP.max())
    with open_page(browser, url) as page:
        Reviewer(page, service.reviews).look()
        spread = 255 * (DEEP.ravel().astype(float) - low) / (high - low)
        np.testing.assert_allclose(page.evaluate(READ_PIXELS), spread, atol=1)
        page.keyboard.press("l")
        expect(page.get_by_label("Window")).to_be_visible()
        expect(page.get_by_label("Brightness")).to_be_hidden()
        page.get_by_label("Level").fill("1000")
        page.get_by_label("Window").fill("500")
        wait_until(page, "document.querySelector('#picture img').src.endsWith('/image?low=750&high=1250')")
        windowed = np.clip(255 * (DEEP.ravel().astype(float) - 750) / 500, 0, 255)
        np.testing.assert_allclose(page.evaluate(READ_PIXELS), windowed, atol=1)
        expect(page.locator("#adjust-text")).to_have_text("Adjusted")
        take_screenshot(page, f"viewer-window-{kind}")
        page.get_by_role("button", name="Reset").click()
        wait_until(page, f"document.querySelector('#picture img').src.endsWith('/image?low={low}&high={high}')")
        expect(page.locator("#adjust-text")).to_have_text("Adjust")


def test_brightness_and_contrast_stay_for_the_next_image(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    replace_images(service, make_noise(32))
    with open_page(browser, url) as page:
        anna = Reviewer(page, service.reviews)
        item = anna.look()
        page.keyboard.press("l")
        page.get_by_label("Brightness").fill("2")
        page.get_by_label("Contrast").fill("0.5")
        image = page.locator("#picture img")
        expect(image).to_have_css("filter", "brightness(2) contrast(0.5)")
        expect(page.get_by_label("Window")).to_be_hidden()
        page.keyboard.press("s")  # keys work beside a slider
        anna.look_after(item)
        expect(image).to_have_css("filter", "brightness(2) contrast(0.5)")
        expect(page.locator("#adjust-text")).to_have_text("Adjusted")
        page.get_by_role("button", name="Reset").click()
        expect(image).to_have_css("filter", "brightness(1) contrast(1)")


def test_part_that_the_classifier_sees_is_outlined(browser: Browser, queue: tuple[str, Service]) -> None:
    url, service = queue
    replace_images(service, make_noise(40))
    with open_page(browser, url) as page:
        Reviewer(page, service.reviews).look()
        outline = page.locator("#seen")
        expect(outline).to_be_visible()
        for key in ("f", "z"):
            page.keyboard.press(key)
            image, seen = measure(page), measure(page, "#seen")
            corners = [
                find_fraction(image, seen["left"], seen["top"]),
                find_fraction(image, seen["right"], seen["bottom"]),
            ]
            assert corners == [pytest.approx((0.1, 0.1), abs=0.01), pytest.approx((0.9, 0.9), abs=0.01)]
        take_screenshot(page, "viewer-outline")
        page.keyboard.press("o")
        expect(outline).to_be_hidden()
        page.keyboard.press("o")
        page.keyboard.press("v")
        page.locator("#view-list .tile").first.click()
        expect(page.locator("#title")).to_contain_text("view: ")
        expect(outline).to_be_hidden()


def test_without_a_crop_there_is_no_outline(browser: Browser, digits: Digits, tmp_path: Path) -> None:
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    with serve(digits.policy, tmp_path / "service") as (url, service):
        fill(url, 1)
        with open_page(browser, url, context=context) as page:
            with page.expect_response("**/display") as response:
                page.reload()
            assert response.value.json()["crop"] is None
            Reviewer(page, service.reviews).look()
            expect(page.locator("#seen")).to_be_hidden()
    context.close()
