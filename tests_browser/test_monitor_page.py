"""The page of a monitor in a browser: plots, keyboard, widths, colors and print."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from secondlook.monitoring import Monitor
from secondlook.report import write_monitor_page
from secondlook.sources import ArraySource
from tests.monitoring.streams import make_policy, make_rows, review
from tests_browser.test_page import CONTRAST, WIDTHS
from tests_browser.test_print import CLIPPED, open_for_print, print_pages

PLOTS = ("risk", "evidence", "coverage", "confidence", "disagreement")
TEXTS = (
    "#badge",
    "#next",
    ".small",
    ".facts dt",
    ".facts small",
    "thead th",
    ".legend li",
    ".plot text",
    ".gallery small",
)
# Pairs of texts of a plot whose boxes overlap.
OVERLAPS = """() => [...document.querySelectorAll(".plot > svg:not(.key)")].flatMap((plot) => {
  const boxes = [...plot.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  return boxes.flatMap(([text, one], index) => boxes.slice(index + 1)
    .filter(([, other]) => one.left < other.right && other.left < one.right)
    .filter(([, other]) => one.top < other.bottom - 2 && other.top < one.bottom - 2)
    .map(([other]) => `${text} / ${other}`));
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return pages after an alarm, without one, after the first few images, and of many windows."""
    folder = tmp_path_factory.mktemp("monitor")
    alarmed = Monitor(make_policy())
    alarmed.update(make_rows(4000, audit=0.1) + make_rows(2000, first=4000, damage=1.0, audit=0.1))
    alarmed.add_labels(review(alarmed, 0.15))
    ids = [image.id for image in alarmed.worst_images()]
    source = ArraySource(np.random.default_rng(0).integers(0, 256, (len(ids), 32, 32, 3), dtype=np.uint8), ids=ids)
    quiet, early, long = Monitor(make_policy()), Monitor(make_policy(risk=None)), Monitor(make_policy(), window=10)
    quiet.update(make_rows(5000))
    quiet.add_labels(review(quiet, 0.0))
    early.update(make_rows(120, audit=None))
    long.update(make_rows(6000))
    monitors = {"alarmed": alarmed, "quiet": quiet, "early": early, "long": long}
    return {
        name: write_monitor_page(monitor, folder / f"{name}.html", source=source if monitor is alarmed else None)
        for name, monitor in monitors.items()
    }


@pytest.fixture
def page(browser: Browser, pages: dict[str, Path]) -> Iterator[Page]:
    """Open the page of an alarm; a console message, or a request for anything but the page itself, fails the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("data:") else messages.append(request.url))
    page.goto(pages["alarmed"].as_uri())
    yield page
    page.close()
    assert messages == [pages["alarmed"].as_uri()]


def test_every_plot_is_drawn(page: Page) -> None:
    for name in PLOTS:
        assert page.locator(f"#{name}-plot .curve").count() == 1, name
        assert page.locator(f"#{name}-plot .curve").get_attribute("d"), name
    assert page.locator("#risk-plot .band").count() == 2, "of the estimate and of the audits"
    assert page.locator("#risk-plot .bounds").count() == 2
    assert page.locator("#risk-plot .limit").count() == 2, "the guaranteed risk, and its key in the legend"
    assert page.locator("#evidence-plot .raised").count() == 1
    assert re.fullmatch(r"alarm after [\d,]+ images", page.locator("#evidence-plot .alert").text_content() or "")
    assert page.locator("#window-table tbody tr").count() == 12
    assert page.locator("#gallery img").count() == page.locator("#gallery li").count() > 24


SCALES = {
    "alarmed": [
        "Guaranteed at most 5 %",
        r"Audited [\d.]+ % to [\d.]+ %, from \d+ labels",
        r"Estimated .*, without labels",
    ],
    "quiet": ["Guaranteed at most 5 %", r"Audited 0 % to [\d.]+ %, from \d+ labels", r"Estimated .*, without labels"],
    "early": ["Guaranteed none", "Audited not checked yet", "Estimated .*"],
    "long": ["Guaranteed at most 5 %", "Audited not checked yet", "Estimated .*"],
}


@pytest.mark.parametrize("name", SCALES)
def test_summary_fits_one_screen_with_all_risks_on_one_scale(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(pages[name].as_uri())
    box = page.locator("#result").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800
    labels = [text.replace("\u00a0", " ") for text in page.locator("#risk-scale .scale-label").all_text_contents()]
    assert all(re.fullmatch(*pair) for pair in zip(SCALES[name], labels, strict=True)), labels
    assert page.locator("#risk-scale .limit").count() == (0 if name == "early" else 1)
    spoken = (page.get_attribute("#risk-scale", "aria-label") or "").replace("\u00a0", " ")
    assert [text.replace(" ", ": ", 1) in spoken for text in labels] == [True] * 3
    assert page.locator("#result code, #result pre").count() == 0
    assert "0 % to 100 %" not in page.inner_text("main").replace("\u00a0", " ")
    page.close()


def test_bars_of_the_scale_have_the_ends_of_the_page(page: Page) -> None:
    data = json.loads(page.locator("#data").text_content() or "")["scale"]
    area, bars = page.locator("#risk-scale .axis").bounding_box(), page.locator("#risk-scale .scale-bar").all()
    limit = page.locator("#risk-scale .limit").bounding_box()
    assert area is not None
    assert limit is not None
    per_pixel = data["limit"] / (limit["x"] + limit["width"] / 2 - area["x"])
    ends = [(0, data["guaranteed"]), *((data[name]["low"], data[name]["high"]) for name in ("audited", "estimated"))]
    for bar, (low, high) in zip(bars, ends, strict=True):
        box = bar.bounding_box()
        assert box is not None
        drawn = [(x - area["x"]) * per_pixel for x in (box["x"], box["x"] + box["width"])]
        assert drawn == pytest.approx([low, high], abs=2 * per_pixel)


@pytest.mark.parametrize("name", ["quiet", "early", "long"])
def test_pages_without_an_alarm_have_no_empty_plots(browser: Browser, pages: dict[str, Path], name: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    messages: list[str] = []
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(pages[name].as_uri())
    for plot in PLOTS:
        box = page.locator(f"#{plot}-plot .curve").bounding_box()
        assert box is not None, plot
        assert box["width"] > 300, plot
    assert page.locator("#evidence-plot .raised").count() == 0
    assert page.inner_text("#badge") == "✓ No alarm"
    assert page.locator("#command").count() == 0
    assert page.locator("#window-table").is_visible() == (name != "long")
    page.close()
    assert messages == []


def test_plots_are_read_together_by_pointer_and_arrow_keys(page: Page) -> None:
    first = page.inner_text("#coverage-reading")
    assert first.startswith("Images 5,501 to 5,880"), "the last window, before anything is done"
    page.locator("#risk-plot > svg").hover()
    readings = {page.inner_text(f"#{name}-reading").partition(":")[0] for name in PLOTS}
    assert len(readings) == 1
    assert readings != {first.partition(":")[0]}
    page.focus("#evidence-plot")
    assert page.get_attribute("#evidence-reading", "aria-live") == "polite"
    page.keyboard.press("Home")
    assert page.inner_text("#evidence-reading").startswith("Images 1 to 500:")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#confidence-reading").startswith("Images 501 to 1,000:")
    page.keyboard.press("End")
    assert page.inner_text("#coverage-reading") == first
    numbers = page.locator("#window-table tbody tr").last.locator("td").all_inner_texts()
    assert numbers[1].replace("\u00a0", " ") in first.replace("\u00a0", " "), "the coverage of the table"


def test_everything_is_reached_by_tab_with_a_visible_focus(page: Page) -> None:
    reached = []
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement !== document.body"):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
        page.keyboard.press("Tab")
    assert reached[0] == "Skip to the result"
    order = [reached.index(f"{name}-plot") for name in PLOTS]
    assert order == sorted(order)
    assert "command" in reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["alarmed", "quiet", "early", "long"])
def test_page_fits_the_width_with_enough_contrast(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(pages[name].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CONTRAST, "#lead") > 7
    for place in TEXTS:
        if page.locator(place).count():
            assert page.evaluate(CONTRAST, place) >= 4.5, place
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"monitor-{name}-{width}-{scheme}.png", full_page=True)
    context.close()


def test_plots_follow_the_width_of_the_window(page: Page) -> None:
    page.set_viewport_size({"width": 500, "height": 800})
    expect(page.locator("#risk-plot > svg")).to_have_attribute("viewBox", re.compile(r"^0 0 4\d\d "))


def test_tables_have_captions_and_pictures_have_texts(page: Page) -> None:
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("img:not([alt])").count() == 0


@pytest.mark.parametrize("name", ["alarmed", "early"])
def test_nothing_is_clipped_on_a4(browser: Browser, pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    page = open_for_print(browser, pages[name])
    assert page.evaluate(CLIPPED) == []
    assert not page.locator("nav").is_visible()
    assert page.locator("#lead").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()
    content = print_pages(browser, pages[name], tmp_path / "monitor.pdf")
    assert 2 <= len(re.findall(rb"/Type /Page\b", content)) <= 7
