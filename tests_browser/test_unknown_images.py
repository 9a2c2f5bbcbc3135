"""The section of unknown images follows the operating point, with counts from Python."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from secondlook.estimators import confidence
from secondlook.predictions import Predictions
from tests.report.references import write_run_report

N_UNKNOWN = 100
MOVE = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }"


@pytest.fixture(scope="module")
def unknown(preds: Predictions) -> Predictions:
    logits = 2 * np.random.default_rng(5).normal(size=(N_UNKNOWN, 4, 4)).astype(np.float32)
    return Predictions(logits=logits, views=preds.views, class_names=preds.class_names)


@pytest.fixture(scope="module")
def report(preds: Predictions, unknown: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return write_run_report(
        preds,
        tmp_path_factory.mktemp("unknown") / "report.html",
        title="Unknown images",
        methods=["msr", "mean", "bootstrap"],
        image=lambda index: np.roll(noise, index, axis=1),
        unknown=unknown,
        unknown_image=lambda index: np.roll(noise, index, axis=0),
        resamples=20,
        artifacts=False,
    )


@pytest.mark.parametrize(("method", "coverage"), [("mean", 800), ("mean", 950), ("msr", 800)])
def test_count_and_gallery_follow_the_operating_point(
    page: Page, preds: Predictions, unknown: Predictions, method: str, coverage: int
) -> None:
    page.select_option("#method", method)
    page.locator("#coverage").evaluate(MOVE, str(coverage))
    threshold = np.sort(confidence(preds, method))[::-1][2 * coverage - 1]
    values = confidence(unknown, method)
    accepted = int((values >= threshold).sum())
    assert 0 < accepted < N_UNKNOWN
    expect(page.locator("#unknown-accepted")).to_contain_text(f"accepts {accepted} of {N_UNKNOWN} unknown images")
    assert page.locator("h3:has(+ p + #gallery-unknown-accepted)").inner_text().endswith(f": {accepted}")
    shown = [unknown.ids.index(id_) for id_ in page.locator("#gallery-unknown-accepted .file").all_text_contents()]
    assert shown
    assert all(values[index] >= threshold for index in shown)
    if method == "mean":  # those of the page are its most confident ones
        assert shown == np.argsort(-values, kind="stable")[: len(shown)].tolist()
    assert page.locator("#gallery-errors-accepted .file").count(), "the other galleries are about known images"
    page.locator("#class-filter").select_option(index=1)
    assert page.locator("#gallery-unknown-accepted .file").count() == len(shown)


def test_ranks_decide_about_no_unknown_image_and_an_image_opens_its_views(page: Page, unknown: Predictions) -> None:
    page.locator("#gallery-unknown-accepted button").first.click()
    assert "unknown" in page.locator("#dialog-summary").inner_text()
    assert page.locator("#dialog-views li").count() == unknown.n_views
    page.keyboard.press("Escape")
    page.select_option("#method", "bootstrap")
    expect(page.locator("#unknown-accepted")).to_contain_text("do not apply")
    assert page.locator("#gallery-unknown-accepted .file").count() == 0
    assert page.locator("h3:has(+ p + #gallery-unknown-accepted)").inner_text() == "Unknown images accepted"
