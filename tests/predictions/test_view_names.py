"""Predictions made elsewhere: views with plain names pass through every step that needs no pixels."""

import pickle
import re
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.classifiers import load_classifier
from secondlook.diagnosis import choose_views, diagnose_views
from secondlook.errors import DecisionError, PredictionsError, SecondLookError, ViewError
from secondlook.views import View
from tests.policy_maker import attach

NAMES = ["orig", "crop 1", "rotate", "HorizontalFlip", "hflip"]
TEXTS = ("identity", "hflip", "vflip", "gray", "blur:1")


def make(views: Any, images: int = 200) -> sl.Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, images)
    logits = rng.normal(size=(images, 1, 4)) + 3 * np.eye(4)[labels][:, None] + rng.normal(size=(images, 5, 4))
    return sl.Predictions(logits=logits, views=views, labels=labels, class_names=list("abcd"))


@pytest.fixture(scope="module")
def named() -> sl.Predictions:
    return make(NAMES)


@pytest.fixture(scope="module")
def parsed() -> sl.Predictions:
    """The same outputs, with views of other texts."""
    return make(TEXTS)


def test_first_view_is_the_identity_and_texts_are_views(named: sl.Predictions) -> None:
    assert named.views.texts == ("identity", "crop 1", "rotate", "HorizontalFlip", "hflip")
    assert [view.name for view in named.views] == [None, "crop 1", "rotate", "HorizontalFlip", None]
    assert named.views[0].is_identity
    assert not named.views[1].is_identity
    assert named.views[4] == View.parse("hflip")
    assert named.views.index("rotate") == 2
    assert "crop 1" in named.views
    assert str(named.views) == "identity, crop 1, rotate, HorizontalFlip, hflip"
    assert pickle.loads(pickle.dumps(named.views)) == named.views
    assert named.views[1].to_paper_notation() == "crop 1"


def test_views_are_selected_by_name(named: sl.Predictions, parsed: sl.Predictions) -> None:
    for views, texts in (
        (["crop 1"], ["hflip"]),
        ("crop 1", "identity hflip"),
        (["hflip", "rotate"], ["blur:1", "vflip"]),
        (named.views, parsed.views),
    ):
        np.testing.assert_array_equal(named.select(views=views).logits, parsed.select(views=texts).logits)
    with pytest.raises(SecondLookError, match="'orig'"):
        named.select(views=["orig"])


@pytest.mark.parametrize("method", ["msr", "mean", "bootstrap", "entropy", "margin"])
def test_confidences_do_not_depend_on_names(named: sl.Predictions, parsed: sl.Predictions, method: str) -> None:
    np.testing.assert_array_equal(sl.confidence(named, method), sl.confidence(parsed, method))


def test_evaluation_rule_and_table_do_not_depend_on_names(named: sl.Predictions, parsed: sl.Predictions) -> None:
    evaluations = [sl.evaluate(preds, resamples=20) for preds in (named, parsed)]
    assert evaluations[0].to_dict() == evaluations[1].to_dict()
    policies = [sl.certify(preds, risk=0.2, delta=0.1) for preds in (named, parsed)]
    assert policies[0].model_copy(update={"views": policies[1].views}) == policies[1]
    assert "probabilities:crop 1" in named.to_arrow(probabilities=True).column_names


def test_diagnosis_and_choice_name_the_views(named: sl.Predictions, parsed: sl.Predictions) -> None:
    diagnosis, reference = diagnose_views(named), diagnose_views(parsed)
    assert diagnosis["crop 1"].agreement == reference["hflip"].agreement
    assert len(diagnosis.usable) == len(reference.usable)
    assert set(diagnosis.usable.texts) <= set(named.views.texts)
    chosen, expected = (choose_views(preds, budget=2).views for preds in (named, parsed))
    assert [named.views.index(view) for view in chosen] == [parsed.views.index(view) for view in expected]


def test_policy_of_plain_names_is_rejected_in_one_sentence(named: sl.Predictions) -> None:
    classifier = load_classifier(lambda batch: batch, name="elsewhere")
    policy = attach(sl.certify(named, risk=0.2, delta=0.1), classifier=classifier, views=named.views.texts)
    with pytest.raises(DecisionError, match=r"'crop 1'.*accept"):
        policy.bind(classifier).decide(np.zeros((8, 8, 3), np.uint8))


def test_plain_names_cannot_be_applied_to_images(named: sl.Predictions) -> None:
    with pytest.raises(ViewError, match="'crop 1'"):
        sl.apply_views(np.zeros((1, 4, 4, 3), np.uint8), named.views)


@pytest.mark.parametrize(
    ("views", "value"),
    [
        (["orig", "a", "a", "b", "c"], "duplicate view 'a'"),
        (["a", "identity", "b", "c", "d"], "identity is view 2 of 5"),
        ("hflip identity vflip gray blur:1", "identity is view 2 of 5"),
        (["orig", "zoom:x", "b", "c", "d"], "'x'"),
        (["natural", "a", "b", "c", "d"], "preset 'natural'"),
        (["orig", " ", "b", "c", "d"], "empty"),
        ([0, 1, 2, 3, 4], "int"),
        ("orig crop rotate flip blur", "orig"),
    ],
)
def test_invalid_views_are_rejected(views: Any, value: str) -> None:
    with pytest.raises(ViewError, match=re.escape(value)):
        make(views)


def test_number_of_names_must_match() -> None:
    with pytest.raises(PredictionsError, match=r"5 views, but there are 2; .*views="):
        make(["orig", "crop 1"])


def test_labels_may_be_names(named: sl.Predictions) -> None:
    names = np.array(list("abcd"))
    logits = named.logits
    for labels in (names[named.labels], names[named.labels].tolist(), names[named.labels].astype(object)):
        preds = sl.Predictions(logits=logits, views=NAMES, labels=labels, class_names=names)
        np.testing.assert_array_equal(preds.labels, named.labels)
    with pytest.raises(PredictionsError, match="class_names="):
        sl.Predictions(logits=logits[:1], views=NAMES, labels=["a"])
    with pytest.raises(PredictionsError, match=r"labels\[0\] is 'e'"):
        sl.Predictions(logits=logits[:1], views=NAMES, labels=["e"], class_names=names)
