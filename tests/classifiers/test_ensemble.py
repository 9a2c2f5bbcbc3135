"""Ensembles: the mean of probabilities, and members that must fit together."""

from typing import Any

import numpy as np
import pytest

from secondlook.arrays import softmax
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.errors import ClassifierError

Array = np.ndarray[Any, Any]


def scorer(seed: int, classes: int = 3, **options: Any) -> Classifier:
    matrix = np.random.default_rng(seed).normal(size=(192, classes))
    return load_classifier(lambda images: (images / 255).reshape(len(images), -1) @ matrix, output="logits", **options)


def test_it_is_the_mean_of_probabilities_not_of_logits(images: Array) -> None:
    members = [scorer(seed) for seed in range(3)]
    ensemble = Ensemble(members)
    expected = np.mean([softmax(member(images)) for member in members], axis=0)
    np.testing.assert_allclose(ensemble(images), expected, atol=1e-6)
    assert ensemble.output == "probabilities"
    assert ensemble.members == tuple(members)
    assert members[0].members == ()
    assert ensemble.n_classes == 3


def test_its_identity_is_that_of_its_members() -> None:
    a, b, nameless = scorer(0, name="a"), scorer(1, name="b"), scorer(2)
    assert Ensemble([a, b]).digest == Ensemble([a, b], name="other").digest
    assert Ensemble([a, b]).digest not in (Ensemble([a]).digest, a.digest, "")
    assert Ensemble([a, nameless]).digest == ""


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "at least one member"),
        ([scorer(0, resize=8), scorer(1)], "resize is None for .* and 8 for .*; set resize= alike for all"),
        ([scorer(0, size=8), scorer(1, size=9)], r"takes \(9, 9\) and .* takes \(8, 8\); use models of one input size"),
        ([Ensemble([scorer(0)])], "is an ensemble itself; give its members"),
    ],
)
def test_members_that_do_not_fit_are_said(members: list[Classifier], message: str) -> None:
    with pytest.raises(ClassifierError, match=message):
        Ensemble(members)


def test_members_of_other_classes_are_said_as_soon_as_known(images: Array) -> None:
    three, four = scorer(0), scorer(1, classes=4)
    with pytest.raises(ClassifierError, match=r"has 4 and .* has 3; use models of the same classes"):
        Ensemble([three, four])(images)
    with pytest.raises(ClassifierError, match="use models of the same classes"):
        Ensemble([three, four])
