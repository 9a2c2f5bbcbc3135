"""The report on paper: nothing is clipped on A4, and the selected operating point is printed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

PAPER_WIDTH = 688  # pixels of A4 between margins of 1.4 cm
A4_POINTS = (595, 842)
CLIPPED = """() => [...document.querySelectorAll("main *")]
  .filter((one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !one.closest("svg"))
  .map((one) => one.outerHTML.slice(0, 80))"""


def open_for_print(browser: Browser, report: Path) -> Page:
    page = browser.new_page(viewport={"width": PAPER_WIDTH, "height": 1000}, color_scheme="dark")
    page.goto(report.as_uri())
    page.emulate_media(media="print")
    return page


def print_pages(browser: Browser, report: Path, target: Path) -> bytes:
    """Return the report as a PDF file; a copy goes to SCREENSHOTS, if that is set."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(report.as_uri())
    content = page.pdf(path=target, prefer_css_page_size=True)
    page.close()
    if folder := os.environ.get("SCREENSHOTS"):
        (Path(folder) / f"{report.parent.name}.pdf").write_bytes(content)
    return content


@pytest.mark.parametrize("name", ["report", "class_rich_report", "calibrated_report"])
def test_nothing_is_clipped_on_a4(browser: Browser, request: pytest.FixtureRequest, name: str) -> None:
    page = open_for_print(browser, request.getfixturevalue(name))
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER_WIDTH
    assert page.evaluate(CLIPPED) == []
    find_clipped = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.ariaLabel)"
    assert page.locator(".scroll").evaluate_all(find_clipped) == []
    page.close()


def test_paper_has_the_operating_point_but_no_controls(browser: Browser, report: Path) -> None:
    page = open_for_print(browser, report)
    for hidden in ("nav", "#tolerated", "#coverage", "#guaranteed", ".scroll-hint", ".more", ".filter"):
        assert not page.locator(hidden).first.is_visible(), hidden
    for shown in ("#lead", "#tolerated-value", "#coverage-value", "#matrix-accepted", "#gallery-errors-caught"):
        assert page.locator(shown).is_visible(), shown
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


def test_pages_are_a4_and_tell_the_decisions(browser: Browser, report: Path, tmp_path: Path) -> None:
    content = print_pages(browser, report, tmp_path / "report.pdf")
    boxes = {tuple(float(one) for one in box.split()[2:]) for box in re.findall(rb"/MediaBox \[([^\]]*)\]", content)}
    assert [tuple(round(one) for one in box) for box in boxes] == [A4_POINTS]
    assert 5 <= len(re.findall(rb"/Type /Page\b", content)) <= 12
    if not shutil.which("pdftotext"):
        pytest.skip("reading the text of the pages needs pdftotext")
    subprocess.run(["pdftotext", "-layout", "report.pdf"], cwd=tmp_path, check=True)
    text = " ".join((tmp_path / "report.txt").read_text(encoding="utf-8").split())
    page = browser.new_page()
    page.goto(report.as_uri())
    assert page.inner_text("#lead") in text
    for heading in ("AUROC %", "Interval of the change", "Accepted with guarantee", "Verdict", "Errors caught"):
        assert all(word in text for word in heading.split()), heading
    page.close()


def test_pages_about_a_thousand_classes_are_few(browser: Browser, class_rich_report: Path, tmp_path: Path) -> None:
    content = print_pages(browser, class_rich_report, tmp_path / "report.pdf")
    assert len(re.findall(rb"/Type /Page\b", content)) <= 8
