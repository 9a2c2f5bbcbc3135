"""The diagnosis: what each view does, which are set aside, and warnings without labels."""

from collections.abc import Callable

import numpy as np
import pytest

from secondlook.diagnosis import diagnose_views, harmful_view_warnings, intensity_curves
from secondlook.diagnosis.agreement import IMAGES_LOOKED_AT
from secondlook.errors import DiagnosisError
from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Predictions

Pools = Callable[..., Predictions]


def test_each_number_is_what_it_says(made_pool: Pools) -> None:
    preds = made_pool()
    row = diagnose_views(preds)["rotate:2"]
    beside = preds.select(views="identity rotate:2")
    answers = beside.probabilities.argmax(axis=2)
    sure = beside.probabilities[:, 0].max(axis=1) >= np.median(beside.probabilities[:, 0].max(axis=1))
    assert row.agreement.share == np.mean(answers[:, 0] == answers[:, 1])
    assert row.agreement.share_of_surest == np.mean((answers[:, 0] == answers[:, 1])[sure])
    largest = beside.probabilities.max(axis=2).mean(axis=0)
    assert row.agreement.certainty_lost == pytest.approx(largest[0] - largest[1], abs=1e-6)
    assert row.accuracy == np.mean(answers[:, 1] == preds.labels)
    assert row.auroc_alone == auroc(preds.correct(), confidence(preds, "view:rotate:2"))
    assert row.auroc_beside == pytest.approx(auroc(preds.correct(), confidence(beside, "mean")))


def test_a_view_that_breaks_the_classifier_is_set_aside_with_the_reason(made_pool: Pools) -> None:
    diagnosis = diagnose_views(made_pool())
    assert list(diagnosis.insane) == ["vflip"]
    assert "of the answers that the classifier is surest of" in diagnosis.insane["vflip"]
    assert "vflip" not in diagnosis.sane
    assert diagnosis.sane[0].is_identity
    assert "- vflip is set aside: it changes" in str(diagnosis)


def test_an_accuracy_that_collapses_is_a_reason_of_its_own() -> None:
    labels = np.repeat([0, 1], [200, 100])
    # The classifier is sure of class 0 only, and the view always answers 0: no sure answer changes, a third are wrong.
    sure = np.where(labels == 0, 0.99, 0.4)
    answers = np.stack([sure, np.full(300, 0.9)], axis=1)
    preds = Predictions(probabilities=np.stack([answers, 1 - answers], axis=2), views="identity blur:9", labels=labels)
    reason = diagnose_views(preds)["blur:9"].sanity.reason
    assert reason is not None
    assert "the accuracy falls from 100.0 % to" in reason


def test_without_labels_it_says_what_it_can(made_pool: Pools) -> None:
    with_labels, without = diagnose_views(made_pool()), diagnose_views(made_pool(labeled=False))
    assert [row.agreement for row in without] == [row.agreement for row in with_labels]
    assert all(row.accuracy is None and row.auroc_alone is None and row.auroc_beside is None for row in without)
    assert list(without.insane) == ["vflip"]
    assert "AUROC" not in str(without)


def test_without_errors_there_is_no_auroc(made_pool: Pools) -> None:
    preds = made_pool(60, lift=30.0)
    assert preds.correct().all()
    assert diagnose_views(preds)["hflip"].auroc_alone is None
    assert " - " in str(diagnose_views(preds)).replace("\n", " \n ")


def test_an_undiagnosed_view_is_refused(made_pool: Pools) -> None:
    with pytest.raises(DiagnosisError, match="'rotate:90' was not diagnosed"):
        diagnose_views(made_pool(30))["rotate:90"]


def test_long_lists_of_reasons_are_cut() -> None:
    views = ["identity", *(f"vflip+rotate:{angle}" for angle in range(1, 6))]
    probabilities = np.full((50, 6, 2), 0.5)
    probabilities[:, 0] = [0.9, 0.1]
    probabilities[:, 1:] = [0.1, 0.9]
    lines = diagnose_views(Predictions(probabilities=probabilities, views=views)).set_aside_lines(2)
    assert len(lines) == 3
    assert lines[-1] == "- and 3 more are set aside; the diagnosis lists them."


def test_warnings_name_the_harmful_view_without_labels(made_pool: Pools) -> None:
    (sentence,) = harmful_view_warnings(made_pool(labeled=False))
    assert sentence.startswith("view 'vflip' is likely to make the confidence worse: it changes")
    assert harmful_view_warnings(made_pool(labeled=False).select(views=["hflip", "shift:1,0"])) == []


def test_a_handful_of_images_gives_no_false_alarm() -> None:
    # One of three sure answers changes; that happens.
    probabilities = np.array([[0.9, 0.9], [0.8, 0.2], [0.85, 0.85], [0.6, 0.6], [0.7, 0.7]])
    preds = Predictions(probabilities=np.stack([probabilities, 1 - probabilities], axis=2), views="identity hflip")
    assert harmful_view_warnings(preds) == []


def test_of_very_many_images_some_are_looked_at() -> None:
    answers = np.tile(np.array([[0.9, 0.1], [0.2, 0.8]]), (IMAGES_LOOKED_AT + 1, 1, 1))
    assert len(harmful_view_warnings(Predictions(probabilities=answers, views="identity hflip"))) == 1


def test_intensity_curves_follow_one_family(made_pool: Pools) -> None:
    views = (
        "identity hflip rotate:-4 rotate:2 shift:3,4 shift:0,1 hflip+rotate:2 hflip+rotate:4 rotate:2+shift:1,0 "
        "gamma:2 shift:5%,0 shift:0,2%"
    )
    curves = intensity_curves(diagnose_views(made_pool(60, views=views.split())))
    assert set(curves) == {"rotate", "shift", "shift:%", "hflip+rotate"}
    assert curves["shift:%"].intensities == (2.0, 5.0)
    assert curves["rotate"].intensities == (-4.0, 2.0)
    assert curves["shift"].intensities == (1.0, 5.0)
    assert [point.view for point in curves["hflip+rotate"].points] == ["hflip+rotate:2", "hflip+rotate:4"]
