"""Which images the galleries show, and what an image reader may return."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secondlook.errors import ReportError
from secondlook.predictions import Predictions
from secondlook.report.galleries import MAX_IMAGES, choose_galleries, read_gallery_images
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import Study, build_study


@pytest.fixture
def study(preds: Predictions) -> Study:
    return build_study(preds, ["msr", "mean"])


def test_equal_confidences_keep_the_order_of_the_images(study: Study) -> None:
    constant = {name: np.full(study.n_images, 0.5) for name in study.confidences}
    errors, correct, *_ = choose_galleries(replace(study, confidences=constant), 0.1)
    assert errors.images.tolist() == np.flatnonzero(~study.correct)[:MAX_IMAGES].tolist()
    assert correct.images.tolist() == np.flatnonzero(study.correct)[:MAX_IMAGES].tolist()


def test_errors_and_correct_predictions_are_the_extreme_ones(study: Study) -> None:
    errors, correct, _ = choose_galleries(study, 0.1)
    sure = study.confidences["mean"]
    assert not study.correct[errors.images].any()
    assert sorted(sure[errors.images], reverse=True) == sure[errors.images].tolist()
    assert sure[errors.images].min() >= np.delete(sure, errors.images)[~np.delete(study.correct, errors.images)].max()
    assert study.correct[correct.images].all()
    assert sure[correct.images].max() <= np.delete(sure, correct.images)[np.delete(study.correct, correct.images)].min()
    assert max(len(errors.images), len(correct.images)) <= MAX_IMAGES


def test_changed_decisions_come_by_change_of_rank(study: Study) -> None:
    *_, changed = choose_galleries(study, 0.1)
    assert changed.rank_changes is not None
    assert changed.now_accepted is not None
    before, after = (
        study.confidences[name] >= point_at_risk(study.rankings[name], 0.1).threshold for name in ("msr", "mean")
    )
    assert (before[changed.images] != after[changed.images]).all()
    assert (after[changed.images] == changed.now_accepted).all()
    for index, gained in zip(changed.images, changed.rank_changes, strict=True):
        rank_before, rank_after = (
            (study.confidences[name] > study.confidences[name][index]).sum() for name in ("msr", "mean")
        )
        assert gained == rank_before - rank_after
    assert (np.diff(np.abs(changed.rank_changes)) <= 0).all()
    assert len(changed.images) <= MAX_IMAGES


def test_float32_images_give_the_same_thumbnails(study: Study) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    galleries = choose_galleries(study, 0.1)
    first = read_gallery_images(study, galleries, lambda _: pixels)
    assert first == read_gallery_images(study, galleries, lambda _: (pixels / 255).astype(np.float32))


@pytest.mark.parametrize(
    ("image", "got"),
    [(lambda index: np.zeros((4, 4)), r"float64 \[4, 4\]"), (lambda index: None, "NoneType")],
)
def test_invalid_pixels_are_rejected(study: Study, image: Callable[[int], Any], got: str) -> None:
    with pytest.raises(ReportError, match=got):
        read_gallery_images(study, choose_galleries(study, 0.1), image)
