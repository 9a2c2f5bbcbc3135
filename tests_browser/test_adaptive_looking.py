"""The section about adaptive looking in a browser: its plot, its table, its images, on a phone and on paper."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from secondlook.predictions import Predictions
from secondlook.report import write_report
from tests_browser.test_print import open_for_print

CENTERS = "all => all.map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])"
# Texts of the plot that stick out of its figure, or lie upon each other.
MISPLACED = """() => {
  const figure = document.getElementById("adaptive-plot").getBoundingClientRect();
  const texts = [...document.querySelectorAll("#adaptive-plot text")];
  const boxes = texts.map((one) => ({ text: one.textContent, box: one.getBoundingClientRect() }));
  const outside = boxes.filter(({ box }) => box.left < figure.left - 1 || box.right > figure.right + 1);
  const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const hidden = boxes.filter((one, place) => boxes.slice(place + 1).some((other) => overlap(one.box, other.box)));
  return [...outside, ...hidden].map(({ text }) => text);
}"""


def test_plot_has_the_curve_the_default_tolerance_and_all_looks(page: Page) -> None:
    rows = page.locator("#adaptive-table tbody tr").count()
    assert rows > 3
    assert page.locator("#adaptive-plot .curve").count() == 1
    assert page.locator("#adaptive-plot .point").count() == rows
    assert page.locator("#adaptive-plot .reference").count() == 1
    ((x, y),) = page.locator("#adaptive-plot .marker circle").evaluate_all(CENTERS)
    chosen = page.evaluate("JSON.parse(document.getElementById('data').textContent).adaptive.chosen.looks")
    place = page.locator("#adaptive-table tbody tr.selected").evaluate("row => row.sectionRowIndex")
    point = page.locator("#adaptive-plot .point").nth(place).get_attribute("transform")
    assert point == f"translate({x:.1f} {y:.1f})", "the circle is around the point of the default tolerance"
    assert f"default tolerance: {chosen:.1f} looks" in page.inner_text("#adaptive-plot")


def test_plot_has_a_text_alternative(page: Page) -> None:
    plot = page.locator("#adaptive-plot")
    assert plot.get_attribute("role") == "img"
    sentence = page.inner_text("#adaptive-sentence").replace("\u00a0", " ")
    assert re.fullmatch(r"[\d.]+ looks on average instead of 4 certify .* of the images.*\.", sentence)
    assert sentence in (plot.get_attribute("aria-label") or "")
    assert not page.locator("#adaptive-table").is_visible()
    page.locator("#adaptive summary").press("Enter")
    assert page.locator("#adaptive-table").is_visible(), "the table tells every point"


def test_images_with_most_looks_open_their_views(page: Page) -> None:
    texts = page.locator("#gallery-most-looks button").all_inner_texts()
    looks = [int(re.findall(r"(\d+) looks?, (?:accepted|to review)", text)[0]) for text in texts]
    assert len(looks) == 12
    assert looks == sorted(looks, reverse=True)
    assert looks[0] == 4
    page.locator("#gallery-most-looks button").first.click()
    assert page.locator("#views-dialog").is_visible()
    assert page.locator("#dialog-views .tile").count() == 4
    page.keyboard.press("Escape")


def test_images_with_most_looks_do_not_follow_the_sliders(page: Page) -> None:
    before = page.locator("#gallery-most-looks button").all_inner_texts()
    page.locator("#coverage").evaluate("one => { one.value = 300; one.dispatchEvent(new Event('input')); }")
    assert page.locator("#gallery-most-looks button").all_inner_texts() == before


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["report", "tuned_report", "large_report"])
def test_section_fits_the_width(browser: Browser, request: pytest.FixtureRequest, name: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(request.getfixturevalue(name).as_uri())
    assert page.locator("#adaptive-plot .curve").count() == 1
    page.locator("#adaptive details").evaluate("one => { one.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(MISPLACED) == []
    if folder := os.environ.get("SCREENSHOTS"):
        page.locator("#adaptive").screenshot(path=Path(folder) / f"adaptive-{name}-{width}.png")
    page.close()


def test_section_is_printed_without_its_controls(browser: Browser, report: Path) -> None:
    page = open_for_print(browser, report)
    for shown in (
        "#adaptive-sentence",
        "#adaptive-plot .curve",
        "#provenance .command >> nth=-1",
        "#gallery-most-looks",
    ):
        assert page.locator(shown).is_visible(), shown
    assert not page.locator("#adaptive summary").is_visible()
    page.close()


def test_page_without_the_section_works(browser: Browser, preds: Predictions, tmp_path: Path) -> None:
    few = preds.select(images=np.arange(60))
    path = write_report(few, tmp_path / "report.html", title="Few images", resamples=10, artifacts=False)
    page = browser.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path.as_uri())
    assert "at least 100 images" in page.inner_text("#no-adaptive")
    assert page.locator("#adaptive, a[href='#adaptive']").count() == 0
    assert page.locator("#risk-plot .curve").count() > 1
    page.close()
    assert messages == []
