"""Which images a page holds, their pictures, and what an image reader may return."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.errors import ReportError
from secondlook.predictions import Predictions
from secondlook.report import page
from secondlook.report.findings import MAX_IMAGES, choose_images, rank_changes
from secondlook.report.page import read_images
from secondlook.report.study import Study, build_study
from secondlook.views import apply_view


@pytest.fixture
def study(preds: Predictions) -> Study:
    return build_study(preds, methods=["msr", "mean"])


def open_picture(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/webp;base64,"))))


def test_errors_of_both_ends_and_rejected_correct_predictions_are_chosen(study: Study) -> None:
    chosen = choose_images(study, "mean")
    assert len(set(chosen.tolist())) == len(chosen) == MAX_IMAGES
    sure = study.confidences["mean"]
    by_confidence = sorted(range(study.n_images), key=lambda index: sure[index])
    errors = [index for index in by_confidence if not study.correct[index]]
    correct = [index for index in by_confidence if study.correct[index]]
    share = MAX_IMAGES // 6
    assert set(errors[:share]) | set(errors[-share:]) | set(correct[:share]) <= set(chosen.tolist())
    changes = np.abs(rank_changes(study))
    assert set(np.argsort(-changes, kind="stable")[:share].tolist()) <= set(chosen.tolist())
    assert chosen[:2].tolist() == [errors[-1], errors[0]], "the most interesting come first, if a page has little room"


def test_few_images_are_all_chosen(preds: Predictions) -> None:
    few = build_study(preds.select(images=np.arange(50)), methods=["msr"])
    assert sorted(choose_images(few, "msr").tolist()) == list(range(50))


def test_equal_confidences_keep_the_order_of_the_images(study: Study) -> None:
    constant = {name: np.full(study.n_images, 0.5) for name in study.confidences}
    chosen = choose_images(replace(study, confidences=constant), "mean").tolist()
    errors = np.flatnonzero(~study.correct).tolist()
    assert [index for index in chosen if not study.correct[index]] == errors[: sum(~study.correct[chosen])]


def test_rank_changes_equal_counting(study: Study) -> None:
    before, after = (study.confidences[name] for name in ("msr", "mean"))
    for index, gained in enumerate(rank_changes(study)):
        assert gained == (before > before[index]).sum() - (after > after[index]).sum()


def test_sheet_holds_every_view(study: Study, preds: Predictions) -> None:
    pixels = np.kron(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16, np.ones((8, 8), dtype=np.uint8))[..., None]
    one = read_images(study, choose_images(study, "mean")[:1], lambda _: pixels)
    (index, drawn), *_ = one.items()
    sheet = np.asarray(open_picture(drawn["sheet"]).convert("L"), dtype=np.int64)
    assert sheet.shape == (32, 3 * 32)
    for place, view in enumerate(preds.views):
        expected = apply_view(pixels[None], view)[0, ..., 0].astype(np.int64)
        assert np.abs(sheet[:, 32 * place : 32 * place + 32] - expected).mean() < 12, "up to the loss of compression"
    assert drawn["view_predicted"] == preds.probabilities[index].argmax(axis=1).tolist()
    assert drawn["view_probabilities"] == pytest.approx(preds.probabilities[index].max(axis=1), abs=1e-4)


def test_many_views_are_in_rows() -> None:
    levels = [round(1 - place / 20, 2) for place in range(18)]
    views = ["identity", *(f"brightness:{level:g}" for level in levels[1:])]
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), (20, 18)).astype(np.float32)
    preds = Predictions(probabilities=probabilities, views=views, labels=np.arange(20) % 3)
    study = build_study(preds, methods=["msr"])
    drawn = read_images(study, np.array([0]), lambda _: np.full((32, 48, 1), 200, dtype=np.uint8))[0]
    sheet = np.asarray(open_picture(drawn["sheet"]).convert("L"), dtype=np.int64)
    assert sheet.shape == (2 * 32, 16 * 48)
    tiles = sheet.reshape(2, 32, 16, 48).mean(axis=(1, 3)).ravel()
    assert tiles == pytest.approx([*(200 * level for level in levels), *[0] * 14], abs=3)


def test_large_pictures_are_fewer(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    monkeypatch.setattr(page, "MAX_BYTES", 200_000)
    images = read_images(study, choose_images(study, "mean"), lambda _: noise)
    assert 0 < len(images) < 20
    assert sum(len(one["picture"]) + len(one["sheet"]) for one in images.values()) <= 200_000
    assert max(open_picture(next(iter(images.values()))["picture"]).size) == 160


def test_float32_images_give_the_same_pictures(study: Study) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    chosen = choose_images(study, "mean")[:5]
    first = read_images(study, chosen, lambda _: pixels)
    assert first == read_images(study, chosen, lambda _: (pixels / 255).astype(np.float32))


@pytest.mark.parametrize(
    ("image", "got"),
    [(lambda index: np.zeros((4, 4)), r"float64 \[4, 4\]"), (lambda index: None, "NoneType")],
)
def test_invalid_pixels_are_rejected(study: Study, image: Callable[[int], Any], got: str) -> None:
    with pytest.raises(ReportError, match=got):
        read_images(study, choose_images(study, "mean"), image)
