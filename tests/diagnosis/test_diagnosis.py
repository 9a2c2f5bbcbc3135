"""Diagnosis: the numbers of each view, harmful and weak views, and warnings without labels."""

from collections.abc import Callable

import numpy as np
import pytest

from secondlook.diagnosis import diagnose_views
from secondlook.diagnosis.diagnosis import assess_view, read_pool
from secondlook.errors import DiagnosisError
from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Predictions

MakePool = Callable[..., Predictions]


def test_numbers_match_their_definitions(make_pool: MakePool) -> None:
    preds = make_pool()
    row = diagnose_views(preds)["rotate:2"]
    pair = preds.select(views="identity rotate:2")
    classes = pair.probabilities.argmax(axis=2)
    confident = pair.probabilities[:, 0].max(axis=1) >= np.median(pair.probabilities[:, 0].max(axis=1))
    assert row.agreement.overall == np.mean(classes[:, 0] == classes[:, 1])
    assert row.agreement.confident == np.mean((classes[:, 0] == classes[:, 1])[confident])
    assert row.agreement.n_confident == confident.sum()
    largest = pair.probabilities.max(axis=2).mean(axis=0)
    assert row.agreement.confidence_drop == pytest.approx(largest[0] - largest[1], abs=1e-6)
    assert row.agreement.doubt_growth == pytest.approx((1 - largest[1]) / (1 - largest[0]) - 1, abs=1e-5)
    assert row.accuracy == np.mean(classes[:, 1] == preds.labels)
    assert row.auroc_alone == auroc(preds.correct(), confidence(preds, "view:rotate:2"))
    assert row.auroc_with_image == pytest.approx(auroc(preds.correct(), confidence(pair, "mean")))


def test_view_that_breaks_the_classifier_is_harmful(make_pool: MakePool) -> None:
    diagnosis = diagnose_views(make_pool())
    assert list(diagnosis.harmful) == ["vflip"]
    assert diagnosis.harmful["vflip"] == diagnosis["vflip"].reason
    assert "vflip" not in diagnosis.usable
    assert diagnosis.usable[0].is_identity
    assert f"- vflip is harmful: {diagnosis.harmful['vflip']}." in str(diagnosis)


def test_growth_of_the_errors_is_harmful() -> None:
    labels = np.repeat([0, 1], [200, 100])
    # Only class 0 is predicted with confidence, and the view always predicts 0: it changes no confident prediction, but
    # a third of all predictions become wrong.
    image = np.where(labels == 0, 0.99, 0.4)
    mass = np.stack([image, np.full(300, 0.9)], axis=1)
    preds = Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views="identity blur:9", labels=labels)
    row = diagnose_views(preds)["blur:9"]
    assert row.agreement.confident == 1
    assert row.status == "harmful"
    assert row.reason is not None
    assert "from 0.0 % to 33.3 %" in row.reason


def test_without_labels_only_agreement_is_diagnosed(make_pool: MakePool) -> None:
    labeled, unlabeled = diagnose_views(make_pool()), diagnose_views(make_pool(labeled=False))
    assert [row.agreement for row in unlabeled] == [row.agreement for row in labeled]
    assert all(row.accuracy is None and row.auroc_alone is None and row.auroc_with_image is None for row in unlabeled)
    assert list(unlabeled.harmful) == ["vflip"]
    assert "AUROC" not in str(unlabeled)


def test_without_errors_there_is_no_auroc(make_pool: MakePool) -> None:
    preds = make_pool(60, lift=30.0)
    assert preds.correct().all()
    diagnosis = diagnose_views(preds)
    assert diagnosis["hflip"].auroc_alone is None
    assert " - " in str(diagnosis)
    with pytest.raises(DiagnosisError, match="'rotate:90'"):
        diagnosis["rotate:90"]


def test_weak_views_are_listed_with_the_drop(weak_pool: Predictions) -> None:
    diagnosis = diagnose_views(weak_pool)
    assert list(diagnosis.harmful) == ["vflip"]
    assert list(diagnosis.weak) == ["rotate:8", "rotate:6"]
    assert "0.887 to 0.885" in diagnosis.weak["rotate:8"]
    assert "0.887 to 0.886" in diagnosis.weak["rotate:6"]
    assert diagnosis.usable.texts == ("identity", "hflip")
    assert "weak" in str(diagnosis)


def test_identity_is_usable_and_drops_are_in_standard_errors(weak_pool: Predictions) -> None:
    pool = read_pool(weak_pool)
    assert assess_view(pool, 0) == ("usable", None, 0.0)
    drop = np.zeros(400)
    drop[:10] = 0.05
    assert assess_view(pool, 3)[2] == pytest.approx(drop.mean() / (drop.std() / 20))


def test_one_sentence_names_the_harmful_views_and_the_repair(make_pool: MakePool) -> None:
    views = ["identity", "hflip", *(f"vflip+rotate:{angle}" for angle in range(1, 6))]
    for labeled in (False, True):
        sentence = diagnose_views(make_pool(views=views, labeled=labeled)).describe_harmful()
        assert sentence is not None
        for expected in ("5 views are", " and 2 more ('vflip+rotate:", "'auto'"):
            assert expected in sentence
        assert "\n" not in sentence
        harmless = make_pool(labeled=labeled).select(views=["hflip", "shift:1,0"])
        assert diagnose_views(harmless).describe_harmful() is None
    single = diagnose_views(make_pool(labeled=False)).describe_harmful()
    assert single is not None
    assert single.startswith("1 view is")
    assert diagnose_views(make_pool(labeled=False)).harmful["vflip"] in single


def test_few_images_cause_no_false_alarm() -> None:
    # One of three confident predictions changes, which may be chance.
    mass = np.array([[0.9, 0.9], [0.8, 0.2], [0.85, 0.85], [0.6, 0.6], [0.7, 0.7]])
    preds = Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views="identity hflip")
    assert diagnose_views(preds).describe_harmful() is None


@pytest.mark.parametrize(("max_images", "read"), [(None, 301), (301, 301), (300, 151), (50, 43)])
def test_some_of_very_many_images_are_read(max_images: int | None, read: int) -> None:
    preds = Predictions(probabilities=np.full((301, 2, 2), 0.5), views="identity hflip")
    assert diagnose_views(preds, max_images=max_images)["hflip"].agreement.n_confident == read


def test_mass_of_all_classes_is_at_most_one(make_pool: MakePool) -> None:
    pool = make_pool()
    preds = Predictions(probabilities=pool.probabilities, views=pool.views, labels=pool.labels)  # in float32
    assert preds.probabilities.sum(axis=2, dtype=np.float64).max() > 1
    assert read_pool(preds, preds.n_classes).class_mass.max() == 1
