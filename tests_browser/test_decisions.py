"""The lead, the galleries, the confusion matrices and the table of classes follow the sliders, with counts from Python.

Everything is recounted here, image by image, from labels, predicted classes and confidences.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from secondlook.arrays import BoolArray
from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.report import write_report
from secondlook.report.operating_points import (
    OperatingPoint,
    certify_methods,
    choose_headline_risk,
    describe_decisions,
    point_at_risk,
    slider_risks,
)
from secondlook.report.study import Study, build_study, name_method
from tests.report.references import point_at_coverage
from tests_browser.conftest import METHODS

MOVE = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }"
SHARED = "{}, {} and {}".format(*map(name_method, ("msr", "mean", "zero")))
SETTINGS = [("mean", "coverage", 600), ("mean", "coverage", 900), ("msr", "coverage", 700), ("mean", "tolerated", 3)]
DESKTOP, PHONE = 1280, 390


@pytest.fixture(scope="module")
def study(preds: Predictions) -> Study:
    return build_study(preds, methods=METHODS)


def risks_of(study: Study) -> list[float]:
    return [float(risk) for risk in slider_risks(study.error_rate, choose_headline_risk(study.error_rate))]


def set_point(page: Page, study: Study, method: str, slider: str, value: int) -> OperatingPoint:
    """Move a slider, and return the operating point that it should set."""
    page.select_option("#method", method)
    page.locator(f"#{slider}").evaluate(MOVE, str(value))
    ranking = study.rankings[method]
    return (
        point_at_coverage(ranking, value / 1000)
        if slider == "coverage"
        else point_at_risk(ranking, risks_of(study)[value])
    )


def read_matrix(page: Page, name: str) -> dict[tuple[str, str], int]:
    columns = [str(head.get_attribute("title")) for head in page.locator(f"#{name} thead th[scope=col]").all()]
    counts: dict[tuple[str, str], int] = {}
    for row in page.locator(f"#{name} tbody tr").all():
        label, cells = str(row.locator("th").get_attribute("title")), row.locator("td").all_text_contents()
        counts |= {(label, column): int(cell.replace(",", "")) for column, cell in zip(columns, cells, strict=True)}
    return counts


def count_pairs(preds: Predictions, chosen: BoolArray) -> dict[tuple[str, str], int]:
    names = preds.class_names or ()
    counts = {(label, predicted): 0 for label in names for predicted in names}
    for index in np.flatnonzero(chosen):
        counts[names[preds.labels[index]], names[preds.predicted()[index]]] += 1
    return counts


def read_class_table(page: Page) -> dict[str, list[str]]:
    rows = [row.locator("th, td").all_text_contents() for row in page.locator("#class-table tbody tr").all()]
    return {name: cells for name, *cells in rows}


def read_title(page: Page, gallery: str) -> int:
    title = page.locator(f"h3:has(+ p + #gallery-{gallery})").inner_text()
    return int(title.rpartition(": ")[2].replace(",", ""))


def read_ids(page: Page, gallery: str) -> list[str]:
    return page.locator(f"#gallery-{gallery} .file").all_text_contents()


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize(("method", "slider", "value"), SETTINGS)
def test_counts_equal_those_of_a_recount(
    page: Page, preds: Predictions, study: Study, width: int, method: str, slider: str, value: int
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    point = set_point(page, study, method, slider, value)
    accept = study.confidences[method] >= point.threshold
    wrong = preds.predicted() != preds.labels
    assert page.inner_text("#lead") == describe_decisions(2000, int(wrong.sum()), point)
    numbers = [2000, accept.sum(), (accept & wrong).sum(), (~accept).sum(), (~accept & wrong).sum(), wrong.sum()]
    assert [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*", page.inner_text("#lead"))] == numbers

    assert read_matrix(page, "matrix-all") == count_pairs(preds, np.ones(2000, dtype=np.bool_))
    assert read_matrix(page, "matrix-accepted") == count_pairs(preds, accept)

    table = read_class_table(page)
    assert list(table) == list(preds.class_names or ())
    for label, cells in enumerate(table.values()):
        members = preds.labels == label
        counts = [
            members.sum(),
            (members & wrong).sum(),
            (members & wrong & accept).sum(),
            (members & wrong & ~accept).sum(),
        ]
        assert [int(cells[column].replace(",", "")) for column in (0, 1, 4, 5)] == counts
        assert cells[3] == f"{100 * (members & accept).sum() / members.sum():.1f}"
        risk = (members & wrong & accept).sum() / max(1, (members & accept).sum())
        assert float(cells[6]) == pytest.approx(100 * risk, abs=0.006)

    assert read_title(page, "errors-accepted") == (wrong & accept).sum()
    assert read_title(page, "errors-caught") == (wrong & ~accept).sum()
    assert read_title(page, "correct-rejected") == (~wrong & ~accept).sum()


@pytest.mark.parametrize(("method", "slider", "value"), SETTINGS)
def test_galleries_hold_images_of_their_kind(
    page: Page, preds: Predictions, study: Study, method: str, slider: str, value: int
) -> None:
    point = set_point(page, study, method, slider, value)
    sure = study.confidences[method]
    for gallery, correct, accepted, falling in (
        ("errors-accepted", False, True, True),
        ("errors-caught", False, False, False),
        ("correct-rejected", True, False, False),
    ):
        more = page.locator(f"#gallery-{gallery} + .more")
        while more.is_visible():
            more.click()
        indices = [preds.ids.index(id_) for id_ in read_ids(page, gallery)]
        assert indices, gallery
        assert {bool(study.correct[index]) for index in indices} == {correct}
        assert {bool(sure[index] >= point.threshold) for index in indices} == {accepted}
        confidences = [sure[index] for index in indices]
        assert confidences == sorted(confidences, reverse=falling)
    before, after = (
        study.confidences[name] >= point_at_coverage(study.rankings[name], point.accepted / 2000).threshold
        for name in ("msr", "mean")
    )
    changed = [preds.ids.index(id_) for id_ in read_ids(page, "changed-decisions")]
    assert changed
    assert all(before[index] != after[index] for index in changed)
    texts = page.locator("#gallery-changed-decisions button").all_inner_texts()
    assert [("now accepted" in text) for text in texts] == [bool(after[index]) for index in changed]


def test_everything_changes_with_the_slider(page: Page, study: Study) -> None:
    def read() -> list[str]:
        places = ("#lead", "#matrix-accepted", "#class-table", "#gallery-list", "#confusion-pairs", "#summary")
        return [page.locator(place).inner_text() for place in places]

    set_point(page, study, "mean", "coverage", 300)
    first = read()
    set_point(page, study, "mean", "coverage", 900)
    assert all(before != after for before, after in zip(first, read(), strict=True))


def test_most_frequent_confusions_come_first(page: Page, preds: Predictions, study: Study) -> None:
    point = set_point(page, study, "mean", "coverage", 800)
    accept = study.confidences["mean"] >= point.threshold
    errors = preds.predicted() != preds.labels
    names = preds.class_names or ()
    every: Counter[tuple[str, str]] = Counter()
    among: Counter[tuple[str, str]] = Counter()
    for index in np.flatnonzero(errors):
        pair = names[preds.labels[index]], names[preds.predicted()[index]]
        every[pair] += 1
        among[pair] += int(accept[index])
    rows = [row.locator("th, td").all_text_contents() for row in page.locator("#confusion-pairs tbody tr").all()]
    assert [int(row[2]) for row in rows] == sorted(every.values(), reverse=True)[:10]
    for label, predicted, *counts in rows:
        pair = label, predicted
        assert [int(count) for count in counts] == [every[pair], among[pair], every[pair] - among[pair]]


def test_galleries_are_filtered_by_class(page: Page, preds: Predictions, study: Study) -> None:
    point = set_point(page, study, "mean", "coverage", 700)
    accept = study.confidences["mean"] >= point.threshold
    page.select_option("#class-filter", label="dog")
    involved = (preds.labels == 1) | (preds.predicted() == 1)
    for gallery in ("errors-accepted", "errors-caught", "correct-rejected"):
        shown = [preds.ids.index(id_) for id_ in read_ids(page, gallery)]
        assert shown
        assert involved[shown].all()
    assert read_title(page, "errors-caught") == (involved & ~accept & ~study.correct).sum()
    page.select_option("#class-filter", label="all classes")
    assert read_title(page, "errors-caught") == (~accept & ~study.correct).sum()


def test_more_images_are_shown_on_request(page: Page) -> None:
    page.locator("#coverage").evaluate(MOVE, "600")
    more = page.locator("#gallery-errors-caught + .more")
    assert page.locator("#gallery-errors-caught li").count() == 12
    more.press("Enter")
    assert page.locator("#gallery-errors-caught li").count() == 60
    assert page.evaluate("document.activeElement.closest('ul')?.id") == "gallery-errors-caught"


def test_cards_have_file_names(page: Page, preds: Predictions) -> None:
    for card in page.locator("#gallery-list .gallery button").all()[:30]:
        name = card.locator(".file").text_content() or ""
        index = preds.ids.index(name)
        assert preds.class_names is not None
        assert f"predicted {preds.class_names[preds.predicted()[index]]}" in card.inner_text()


def test_guaranteed_operating_point(page: Page, study: Study) -> None:
    risks = risks_of(study)
    index = len(risks) * 3 // 4
    page.locator("#tolerated").evaluate(MOVE, str(index))
    page.check("#guaranteed")
    points = certify_methods(study, np.array(risks), 0.01)["mean"]
    assert not isinstance(points, str)
    assert points[index].accepted
    assert page.inner_text("#lead") == describe_decisions(2000, study.n_errors, points[index])
    assert "with guarantee" in page.inner_text("#setting")
    assert f"shared by {SHARED}" in page.inner_text("#guarantee")
    cells = page.locator("#all-methods tr[data-method='mean'] td").all_inner_texts()
    observed = point_at_risk(study.rankings["mean"], risks[index])
    accepted = [int(cells[column].split(" ")[0].replace(",", "")) for column in (1, 5)]
    assert accepted == [observed.accepted, points[index].accepted], "methods are compared as observed"
    page.locator("#coverage").evaluate(MOVE, "500")
    assert not page.is_checked("#guaranteed"), "a coverage has no guarantee"


def test_page_starts_at_the_calibrated_operating_point(
    browser: Browser, calibrated_report: Path, preds: Predictions
) -> None:
    rule = certify(preds, "mean", risk=0.05, delta=0.05)
    assert rule.calibration is not None
    assert rule.calibration.errors is not None
    page = browser.new_page()
    page.goto(calibrated_report.as_uri())
    point = OperatingPoint(rule.threshold, rule.calibration.accepted, rule.calibration.errors)
    assert page.inner_text("#lead") == describe_decisions(2000, int((~preds.correct()).sum()), point)
    assert page.is_checked("#guaranteed")
    assert page.inner_text("#tolerated-value") == "5\u00a0%"
    assert page.inner_text("#guarantee").endswith("This is the calibration of the run.")
    assert "with 95 % confidence" in page.inner_text("#guarantee").replace("\u00a0", " ")
    accepted, errors = (page.locator("#counts dd").nth(place).inner_text().split()[0] for place in (1, 2))
    assert (accepted, errors) == (f"{point.accepted:,}", str(point.errors)), "one set of counts"
    page.select_option("#method", "msr")
    assert page.inner_text("#guarantee").startswith("No guarantee: the guarantee is that of the calibrated policy")
    page.close()


def test_matrix_tells_long_names_with_a_common_beginning_apart(browser: Browser, tmp_path: Path) -> None:
    names = [f"West Highland white {kind} of the coast" for kind in ("cat", "cow", "otter", "ox")]
    names += ["otter", "a sulphur-crested cockatoo", "class_with_a_long_name_1", "class_with_a_long_name_2"]
    rng = np.random.default_rng(0)
    labels = np.arange(400) % len(names)
    logits = rng.normal(size=(400, 2, len(names))) + 2 * np.eye(len(names))[labels][:, None]
    preds = Predictions(logits=logits.astype(np.float32), views="identity hflip", labels=labels, class_names=names)
    path = write_report(preds, tmp_path / "r.html", title="names", methods=["msr"], resamples=5, artifacts=False)
    page = browser.new_page(viewport={"width": PHONE, "height": 800})
    page.goto(path.as_uri())
    for heads in (page.locator("#matrix-all tbody th"), page.locator("#matrix-all thead th span")):
        shown = heads.all_inner_texts()
        assert len(set(shown)) == len(shown) == len(names), shown
        assert max(map(len, shown)) <= 14
        assert shown[4] == "otter"
    head = page.locator("#matrix-all tbody th")
    assert head.evaluate_all("heads => heads.every((one) => one.scrollWidth <= one.clientWidth)"), "no name is cut"
    assert [one.get_attribute("title") for one in head.all()] == names
    page.close()


def test_page_starts_with_a_policy_per_class_and_returns_to_it(
    browser: Browser, class_policy_report: Path, preds: Predictions
) -> None:
    policy = certify(preds, "mean", risk={"cat": 1e-6, "*": 0.1}, delta=0.05, groups="class")
    assert policy.calibration is not None
    counts = f"{policy.calibration.accepted:,} accepted, {policy.calibration.errors:,} wrong"
    page = browser.new_page()
    page.goto(class_policy_report.as_uri())
    lead = page.inner_text("#lead")
    assert page.inner_text("#summary").startswith(counts)
    assert page.is_checked("#guaranteed")
    assert page.inner_text("#threshold") == "one per class"
    assert page.inner_text("#matrix-accepted caption") == f"Accepted: {policy.calibration.accepted:,} predictions"
    cat = page.locator("#class-table tbody tr", has=page.get_by_role("rowheader", name="cat", exact=True))
    among_cats = policy.accept(preds) & (preds.labels == 0)
    assert cat.locator("td").nth(3).inner_text() == f"{100 * among_cats.sum() / (preds.labels == 0).sum():.1f}"
    errors = page.locator("#galleries h3").first.inner_text()
    assert errors == f"Errors accepted: {policy.calibration.errors:,}"
    assert page.locator("#gallery-errors-accepted li").count() == min(12, policy.calibration.errors or 0)
    for leave in (
        lambda: page.locator("#tolerated").evaluate(MOVE, "3"),
        lambda: page.locator("#coverage").evaluate(MOVE, "500"),
        lambda: page.select_option("#method", "msr"),
    ):
        leave()
        assert not page.is_checked("#guaranteed")
        assert page.inner_text("#guarantee").startswith("No guarantee")
        assert page.inner_text("#lead") != lead
        page.check("#guaranteed")
        assert page.inner_text("#lead") == lead
        assert page.inner_text("#summary").startswith(counts)
    page.close()


def test_a_thousand_classes_stay_readable(browser: Browser, class_rich_report: Path) -> None:
    page = browser.new_page(viewport={"width": DESKTOP, "height": 900})
    page.goto(class_rich_report.as_uri())
    assert page.locator("#matrix-all thead th").count() == 14, "a corner, 12 classes and all others"
    assert "12 of 1,000 classes" in page.inner_text("#matrix-note")
    shown = [head.get_attribute("title") for head in page.locator("#matrix-all thead th[title]").all()]
    most_frequent = page.locator("#confusion-pairs tbody tr").first.locator("th, td").all_inner_texts()[:2]
    assert set(most_frequent) <= set(shown)
    assert page.locator("#class-table tbody tr").count() == 50
    assert "50 of 1,000 classes, by errors" in page.inner_text("#class-table caption")
    errors = [int(text) for text in page.locator("#class-table tbody td:nth-child(3)").all_inner_texts()]
    assert errors == sorted(errors, reverse=True)
    page.fill("#class-search", "n00000123")
    assert page.locator("#class-table tbody th").all_inner_texts() == ["n00000123 a class with a rather long name"]
    assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP
    assert class_rich_report.stat().st_size < 1_500_000
    page.close()
