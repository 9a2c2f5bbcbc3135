"""The cells of the confusion matrix against counting image by image."""

from collections import Counter

import numpy as np
import pytest

from secondlook.predictions import Predictions
from secondlook.report import findings
from secondlook.report.findings import find_cells, rank_cells
from secondlook.report.study import Study, build_study
from secondlook.views import ViewSet


def make_study(top_k: int = 1, n_classes: int = 5, gain: float = 1.5) -> Study:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, 300)
    logits = rng.normal(size=(300, 2, n_classes)).round(1)  # rounded, so that confidences tie
    logits[np.arange(300), :, labels] += gain
    preds = Predictions(logits=logits.astype(np.float32), views=ViewSet(["identity", "hflip"]), labels=labels)
    return build_study(preds, methods=["msr", "mean"], top_k=top_k)


@pytest.mark.parametrize("top_k", [1, 2])
def test_cells_count_every_image_once(top_k: int) -> None:
    study = make_study(top_k)
    cells = find_cells(study)
    expected: Counter[tuple[int, int, bool]] = Counter()
    accepted: Counter[tuple[int, int, bool]] = Counter()
    leading = study.preds.probabilities[:, 0].argmax(axis=1)
    accept = study.confidences["mean"] >= 0.6
    for index in range(study.n_images):
        key = (int(study.preds.labels[index]), int(leading[index]), bool(study.correct[index]))
        expected[key] += 1
        accepted[key] += int(accept[index])
    keys = list(zip(cells.labels.tolist(), cells.predicted.tolist(), cells.correct.tolist(), strict=True))
    assert dict(zip(keys, cells.images.tolist(), strict=True)) == dict(expected)
    assert dict(zip(keys, cells.count(accept).tolist(), strict=True)) == {key: accepted[key] for key in expected}
    assert keys == sorted(keys)
    mixed = [(label, one) for label, one, correct in keys if (label == one) != correct]
    assert bool(mixed) == (top_k > 1), "with top 2, the label may be the second class"


def test_first_cells_are_those_of_accepted_images() -> None:
    study = make_study()
    cells = find_cells(study)
    ranked = rank_cells(study, cells, "mean")
    assert set(ranked) == {"msr", "mean"}
    for name, ranking in study.rankings.items():
        assert ranked[name].dtype == np.uint8
        for threshold, accepted in zip(ranking.confidences.tolist(), ranking.accepted.tolist(), strict=True):
            expected = cells.count(study.confidences[name] >= threshold)
            np.testing.assert_array_equal(np.bincount(ranked[name][:accepted], minlength=len(expected)), expected)


def test_more_than_256_cells_take_two_bytes() -> None:
    study = make_study(n_classes=40, gain=0.0)
    cells = find_cells(study)
    assert len(cells.labels) > 256
    assert rank_cells(study, cells, "mean")["mean"].dtype == np.uint16


def test_page_has_room_for_the_first_method(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study()
    monkeypatch.setattr(findings, "MAX_CELL_BYTES", 500)
    assert set(rank_cells(study, find_cells(study), "mean")) == {"mean"}
    monkeypatch.setattr(findings, "MAX_CELL_BYTES", 299)
    assert rank_cells(study, find_cells(study), "mean") == {}
