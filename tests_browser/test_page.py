"""The report in a browser: example images, keyboard, sorting, reading curves, widths, colors and print."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

WIDTHS = (1280, 390)


def test_every_method_is_drawn(page: Page) -> None:
    assert page.locator("#risk-plot .curve").count() == 4
    assert page.locator("#risk-plot .band").count() == 4
    assert page.locator("#risk-plot .reference").count() == 2
    assert page.locator("#histogram-plot .bar-correct").count() == 40
    assert page.locator("#reliability-plot .curve").count() == 1
    page.select_option("#method", "bootstrap")
    assert page.locator("#reliability-plot .curve").count() == 0
    assert "not a probability" in page.inner_text("#reliability-caption")


def test_image_opens_all_of_its_views_and_closes(page: Page) -> None:
    assert page.locator("#gallery-most-confident-errors button").count() == 24
    assert page.locator("#gallery-most-confident-errors img[alt*=': predicted ']").count() == 24
    assert not page.locator("#views-dialog").is_visible()
    opener = page.locator("#gallery-most-confident-errors button").first
    opener.click()
    assert page.locator("#views-dialog").is_visible()
    tiles = page.locator("#dialog-views .tile")
    assert [text.splitlines()[-1] for text in tiles.all_inner_texts()] == ["identity", "hflip", "shift:1,0", "rotate:5"]
    assert page.locator("#dialog-views img").evaluate_all("images => images.every((image) => image.naturalWidth > 0)")
    assert "✗ wrong" in page.inner_text("#dialog-summary")
    page.keyboard.press("Escape")
    assert not page.locator("#views-dialog").is_visible()
    assert opener.evaluate("button => button === document.activeElement"), "focus should return to the opener"
    page.keyboard.press("Enter")
    page.locator("#views-dialog .close").click()
    assert not page.locator("#views-dialog").is_visible()


def test_class_name_in_angle_brackets_is_text(page: Page) -> None:
    assert page.locator("#classes tbody th", has_text="<img src=").count() == 1
    assert page.locator("img[src='x']").count() == 0


def test_controls_are_reached_by_tab_with_a_visible_focus(page: Page) -> None:
    reached = []
    page.keyboard.press("Tab")
    for _ in range(40):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
        page.keyboard.press("Tab")
    assert reached[0] == "Skip to the result"
    order = [reached.index(name) for name in ("risk-plot", "method", "tolerated", "coverage", "logarithmic")]
    assert order == sorted(order)
    assert "Class" in reached, "sortable headings should be buttons"


def test_skip_link_leads_to_the_result(page: Page) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_curves_are_read_by_pointer_and_arrow_keys(page: Page) -> None:
    page.locator("#risk-plot svg").hover()
    reading = page.inner_text("#risk-reading")
    assert all(f"{name} " in reading for name in ("msr", "mean", "bootstrap", "bootstrap-lower"))
    page.focus("#risk-plot")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#risk-reading") != reading


def test_heading_sorts_its_table(page: Page) -> None:
    def column() -> list[float]:
        return [float(text) for text in page.locator("#classes tbody tr td:nth-child(4)").all_inner_texts()]

    heading = page.locator("#classes th", has_text="Error rate")
    heading.locator("button").press("Enter")
    assert column() == sorted(column(), reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").press("Enter")
    assert column() == sorted(column())
    page.locator("#classes th button", has_text="Class").click()
    names = page.locator("#classes tbody th").all_inner_texts()
    assert names == sorted(names)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_width_with_enough_contrast(browser: Browser, report: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background, text = (
        compute_luminance(page.evaluate(f"getComputedStyle(document.body).{name}"))
        for name in ("backgroundColor", "color")
    )
    assert (background > text) == (scheme == "light")
    assert (max(background, text) + 0.05) / (min(background, text) + 0.05) > 7
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"report-{width}-{scheme}.png", full_page=True)
    context.close()


def compute_luminance(color: str) -> float:
    """Return the relative luminance of 'rgb(r, g, b)' as defined by WCAG."""
    channels = [int(value) / 255 for value in color.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_tables_fit_the_printed_page(page: Page) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 680, "height": 1000})  # A4 between margins of 1.5 cm
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    find_clipped = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.ariaLabel)"
    assert page.locator(".scroll").evaluate_all(find_clipped) == []
    assert not page.locator("nav").is_visible()
    assert page.locator("#tolerated-value").is_visible(), "the selected operating point should be printed"


def test_plots_follow_the_width_of_the_window(page: Page) -> None:
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function("document.querySelector('#risk-plot svg').viewBox.baseVal.width < 500")
    assert page.locator("#risk-plot .curve").count() == 4
