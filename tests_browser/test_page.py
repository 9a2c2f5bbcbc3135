"""The report in a browser: example images, keyboard, sorting, reading curves, widths, colors and print."""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from secondlook.estimators import METHODS as KNOWN
from secondlook.report.study import name_method
from tests_browser.conftest import METHODS, OPTIONS_METHOD

WIDTHS = (1280, 390)
TEXTS = (
    *(
        "#meaning",
        ".shares figcaption",
        "#decided-by",
        "#setting",
        "#guarantee",
        "#headline",
        ".small",
        "#summary",
        ".facts dt",
        "thead th",
        "th small",
        ".legend li",
    ),
    *(".matrix .right", ".matrix .wrong", ".matrix .zero", ".gallery .file", ".gallery .wrong", ".gallery .correct"),
    *(".metrics .interval", ".plot text", "#class-note", ".more"),
)
# The lowest contrast, as defined by WCAG, of the texts that a selector finds, over whatever is painted behind them.
CONTRAST = """(selector) => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colors) => {
    for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (element) => {
    const backgrounds = [];
    for (let one = element; one; one = one.parentElement) backgrounds.unshift(getComputedStyle(one).backgroundColor);
    const style = getComputedStyle(element);
    const text = element instanceof SVGElement ? style.fill : style.color;
    const [behind, front] = [backgrounds, [...backgrounds, text]].map((colors) => luminance(paint(colors)));
    return (Math.max(behind, front) + 0.05) / (Math.min(behind, front) + 0.05);
  };
  return Math.min(...[...document.querySelectorAll(selector)].map(contrast));
}"""


def test_every_method_is_drawn(page: Page) -> None:
    assert page.locator("#risk-plot .curve").count() == 4
    assert page.locator("#risk-plot .band").count() == 4
    assert page.locator("#risk-plot .reference").count() == 2
    assert page.locator("#histogram-plot .bar-correct").count() == 40
    assert page.locator("#reliability-plot .curve").count() == 1
    page.select_option("#method", "bootstrap")
    assert page.locator("#reliability-plot .curve").count() == 0
    assert "not a probability" in page.inner_text("#reliability-caption")


def test_curves_are_told_apart_without_colors(page: Page) -> None:
    dashes = page.locator("#risk-plot .curve").evaluate_all(
        "all => all.map((one) => one.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 4
    markers = page.locator("#risk-plot .legend .point").evaluate_all("all => all.map((one) => one.getAttribute('d'))")
    assert len(set(markers)) == 4
    for marker in markers:
        assert page.locator(f"#risk-plot > svg .point[d='{marker}']").count() >= 5, "markers along the curve"
    assert page.locator("#all-methods .key .point").count() == 4


def test_methods_are_named_in_words(page: Page) -> None:
    """Specs appear only in tooltips and in the definitions."""
    for name in METHODS:
        places = (f"#all-methods tr[data-method='{name}'] th", "#risk-plot .legend", "#methods .definitions")
        assert all(KNOWN[name].words in page.inner_text(place) for place in places)
        page.select_option("#method", name)
        assert f"Decided by {KNOWN[name].words}:" in page.inner_text("#setting")
        assert KNOWN[name].summary in page.inner_text("#methods .definitions")
    page.evaluate("document.querySelectorAll('.definitions, #provenance').forEach((one) => one.remove())")
    assert not re.search(r"\bmsr\b", page.inner_text("main"))


@pytest.mark.parametrize("name", ["report", "calibrated_report", "class_policy_report"])
def test_summary_fits_one_screen_without_code(browser: Browser, request: pytest.FixtureRequest, name: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(request.getfixturevalue(name).as_uri())
    box = page.locator("#result").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800
    for part in ("#verdict", "#meaning", ".shares svg", "#counts", "#next"):
        assert page.locator(f"#result {part}").is_visible(), part
    assert page.locator("#result code, #result pre").count() == 0
    assert not re.search(r"secondlook |--\w|\w=\w|\bmsr\b|\bblend\b", page.inner_text("#result"))
    links = page.locator(".contents a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
    sections = page.locator("main > section").evaluate_all("all => all.map((one) => `#${one.id}`)")
    assert links == sections[2:], "the table of contents has every section of the appendix, in order"
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_methods_with_options_and_images_set_apart(browser: Browser, tuned_report: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(tuned_report.as_uri())
    assert page.input_value("#method") == "blend", "the second look is the default confidence"
    for name in ("msr", OPTIONS_METHOD, "view:hflip"):
        page.select_option("#method", name)
        assert f"Decided by {name_method(name)}:" in page.inner_text("#setting")
        selected = page.locator("#all-methods tr.selected")
        assert selected.get_attribute("data-method") == name
        assert re.fullmatch(r"[\d,]+ \([\d.]+.%\)", selected.locator("td").nth(1).inner_text())
    warning = page.locator(".warning")
    assert warning.is_visible()
    assert "view 'vflip' is <b>harmful</b>" in warning.inner_text()
    assert page.locator("#recommendation").is_visible()
    assert page.locator(".facts div", has_text="Tuning images").locator("dd").inner_text() == "500"
    assert page.inner_text("#lead").startswith("Of 1,500 images")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"tuned-{width}.png", full_page=True)
    page.close()
    assert messages == []


def test_image_opens_all_of_its_views_and_closes(page: Page) -> None:
    assert page.locator("#gallery-errors-caught button").count() == 12
    assert page.locator("#gallery-errors-caught img[alt*=': predicted ']").count() == 12
    assert not page.locator("#views-dialog").is_visible()
    opener = page.locator("#gallery-errors-caught button").first
    opener.click()
    assert page.locator("#views-dialog").is_visible()
    tiles = page.locator("#dialog-views .tile")
    texts = ["the image itself", "mirrored", "shifted by 1 pixel right", "turned by 5 degrees clockwise"]
    assert [text.splitlines()[1] for text in tiles.all_inner_texts()] == texts
    assert [text.splitlines()[-1] == "another class" for text in tiles.all_inner_texts()] == tiles.evaluate_all(
        "tiles => tiles.map((tile) => tile.classList.contains('differs'))"
    ), "a different class is not told by color alone"
    expect(page.locator("#dialog-views canvas[width='32']")).to_have_count(4)
    drawn = page.locator("#dialog-views canvas").evaluate_all("all => all.map((one) => one.toDataURL())")
    assert len(set(drawn)) == 4, "each view has its own picture"
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
    while page.evaluate("document.activeElement !== document.body"):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
        page.keyboard.press("Tab")
    assert reached[0] == "Skip to the result"
    order = [
        reached.index(name) for name in ("tolerated", "coverage", "guaranteed", "method", "risk-plot", "class-filter")
    ]
    assert order == sorted(order)
    assert "Class" in reached, "sortable headings should be buttons"
    assert "Show more" in reached


def test_skip_link_leads_to_the_result(page: Page) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_curves_are_read_by_pointer_and_arrow_keys(page: Page) -> None:
    page.locator("#risk-plot > svg").hover()
    reading = page.inner_text("#risk-reading")
    assert all(f"{KNOWN[name].words} " in reading for name in METHODS)
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


def test_tables_have_captions_and_controls_have_names(page: Page) -> None:
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("caption").evaluate_all("all => all.every((one) => one.textContent.trim())")
    assert page.locator(":is(input, select):not(:disabled)").evaluate_all(
        "all => all.every((one) => one.labels.length)"
    )
    assert page.locator("img:not([alt]), canvas:not([aria-label])").count() == 0
    assert page.locator(".matrix th:not([scope], .corner)").count() == 0


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
    assert page.evaluate(CONTRAST, "#verdict") > 7
    for place in TEXTS:
        assert page.evaluate(CONTRAST, place) >= 4.5, place
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"report-{width}-{scheme}.png", full_page=True)
    context.close()


def compute_luminance(color: str) -> float:
    """Return the relative luminance of 'rgb(r, g, b)' as defined by WCAG."""
    channels = [int(value) / 255 for value in color.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_wide_tables_say_that_they_scroll_on_a_phone(browser: Browser, report: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(report.as_uri())
    hint, box = page.locator("#views .scroll-hint"), page.locator("#views .scroll")
    assert hint.is_visible()
    assert "overflows" in (box.get_attribute("class") or "")
    first = page.locator("#views tbody th").first
    before = first.bounding_box()
    box.evaluate("box => box.scrollTo({ left: box.scrollWidth, behavior: 'instant' })")
    expect(box).not_to_have_class(re.compile("overflows"))
    last = page.locator("#views tbody tr").first.locator("td").last.bounding_box()
    assert before is not None
    assert last is not None
    assert last["x"] + last["width"] <= 390, "the last column is reached"
    assert first.bounding_box() == before, "the names of the views stay in place"
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(hint).to_be_hidden()
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_sliders_stay_in_sight(browser: Browser, report: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(report.as_uri())
    page.locator("#class-table").scroll_into_view_if_needed()
    box = page.locator("#tolerated").bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 120
    controls = page.locator("#controls").bounding_box()
    assert controls is not None
    assert controls["height"] < 844 / 6
    page.close()


def test_plots_follow_the_width_of_the_window(page: Page) -> None:
    page.set_viewport_size({"width": 500, "height": 800})
    expect(page.locator("#risk-plot > svg")).to_have_attribute("viewBox", re.compile(r"^0 0 4\d\d "))
    assert page.locator("#risk-plot .curve").count() == 4
