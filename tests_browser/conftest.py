"""Fixtures of the browser tests: headless Chromium, and reports to open in it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.views import ViewSet
from tests.report.references import write_run_report

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
expect.set_options(timeout=30_000)  # what is true sooner costs no time, and the machine may be busy
METHODS = ("msr", "mean", "bootstrap", "zero")
OPTIONS_METHOD = "mean?views=identity hflip&temperature=1.5"
CLASSES = ("cat", "dog", "bird", '<img src="x" onerror="alert(1)">')


def make_predictions(n_images: int) -> Predictions:
    """Return predictions with errors in about one image of seven. logits [n_images, 4 views, 4 classes]"""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, n_images)
    logits = rng.normal(size=(n_images, 4, 4))
    logits[np.arange(n_images), :, labels] += rng.exponential(3.0, n_images)[:, None] + 1.0
    logits += rng.normal(size=(n_images, 1, 4)) * 0.8
    views = ViewSet(["identity", "hflip", "shift:1,0", "rotate:5"])
    return Predictions(logits=logits.astype(np.float32), views=views, labels=labels, class_names=CLASSES)


@pytest.fixture(scope="session")
def preds() -> Predictions:
    return make_predictions(2000)


@pytest.fixture(scope="session")
def report(preds: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return write_run_report(
        preds,
        tmp_path_factory.mktemp("report") / "report.html",
        title="Cats, dogs and birds",
        methods=METHODS,
        image=lambda index: np.roll(noise, index, axis=1),
        notes=["synthetic predictions"],
        command="secondlook report run/",
        delta=0.01,
        artifacts=False,
    )


@pytest.fixture(scope="session")
def calibrated_report(preds: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrated") / "report.html"
    policy = certify(preds, "mean", risk=0.05, delta=0.05)
    return write_run_report(
        preds,
        path,
        title="Calibrated",
        methods=["msr", "mean"],
        risk=0.05,
        delta=0.05,
        policy=policy,
        artifacts=False,
    )


@pytest.fixture(scope="session")
def class_policy_report(preds: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report whose calibration has a threshold for each class, one of which is infinite."""
    policy = certify(preds, "mean", risk={"cat": 1e-6, "*": 0.1}, delta=0.05, groups="class")
    return write_run_report(
        preds,
        tmp_path_factory.mktemp("policy") / "report.html",
        title="Calibrated per class",
        methods=["msr", "mean"],
        image=lambda index: np.full((32, 32, 3), index % 256, dtype=np.uint8),
        risk=0.1,
        delta=0.05,
        policy=policy,
        artifacts=False,
    )


@pytest.fixture(scope="session")
def tuned_report(preds: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report whose methods include one with options and one fitted on tuning images."""
    return write_run_report(
        preds,
        tmp_path_factory.mktemp("tuned") / "report.html",
        title="Images set apart",
        methods=["msr", "mean", "blend", OPTIONS_METHOD, "view:hflip", "learned"],
        image=lambda index: np.full((32, 32, 3), index % 256, dtype=np.uint8),
        warnings=["view 'vflip' is <b>harmful</b>: it changes 40.0 % of the confident predictions; pass views='auto'."],
        resamples=50,
        artifacts=False,
    )


@pytest.fixture(scope="session")
def class_rich_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report about 1,000 classes with long names."""
    rng = np.random.default_rng(0)
    labels = np.arange(8000) % 1000
    logits = rng.normal(size=(8000, 2, 1000)).astype(np.float32)
    logits[np.arange(8000), :, labels] += 5
    logits[np.arange(8000), :, (labels + 1) % 1000] += rng.normal(2.0, 2.0, 8000)[:, None].astype(np.float32)
    names = [f"n{index:08d} a class with a rather long name" for index in range(1000)]
    preds = Predictions(logits=logits, views=ViewSet(["identity", "hflip"]), labels=labels, class_names=names)
    path = tmp_path_factory.mktemp("classes") / "report.html"
    return write_run_report(preds, path, title="A thousand classes", resamples=20, artifacts=False)


@pytest.fixture(scope="session")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "report.html"
    return write_run_report(make_predictions(10_000), path, title="Ten thousand images", artifacts=False)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "Chromium is not installed: apt-get install chromium, or set CHROMIUM to its path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """Open the report; a console message, or a request for anything but the page itself, fails the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("data:") else messages.append(request.url))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert messages == [report.as_uri()]
