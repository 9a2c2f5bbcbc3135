"""The exact test and the accuracy corrected for chance, against SciPy and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score, log_loss

from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing
from secondlook.diagnosis.readings import Trial


def outcome(predicted: Array, labels: Array, n_classes: int = 4) -> Trial:
    return Trial.create("", Preprocessing(), np.eye(n_classes)[predicted] * 0.9 + 0.1 / n_classes, labels, None)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 80))
def test_values_equal_references(seed: int, n_images: int) -> None:
    rng = np.random.default_rng(seed)
    labels, first, second = rng.integers(4, size=(3, n_images))
    one, other = outcome(first, labels), outcome(second, labels)
    gained, lost = ((first == labels) & (second != labels)).sum(), ((first != labels) & (second == labels)).sum()
    expected = binomtest(int(gained), int(gained + lost), alternative="greater").pvalue if gained + lost else 1.0
    assert one.compute_p_value(other) == pytest.approx(expected)
    assert one.log_loss == pytest.approx(log_loss(labels, one.probabilities, labels=range(4)))
    if len(set(labels) | set(first)) > 1:
        assert one.kappa == pytest.approx(cohen_kappa_score(labels, first))


def test_order_applies_to_labels() -> None:
    labels = np.array([0, 1, 2, 2])
    reordered = Trial.create("", Preprocessing(), np.eye(3)[[1, 2, 0, 1]], labels, np.array([1, 2, 0]))
    assert reordered.accuracy == 0.75
    assert reordered.kappa == pytest.approx(cohen_kappa_score([1, 2, 0, 0], [1, 2, 0, 1]))


def test_collapse_to_the_most_frequent_class_is_not_better() -> None:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(256) < 0.9, 0, rng.integers(1, 4, 256))
    given_ = outcome(np.where(rng.random(256) < 0.5, labels, (labels + 1) % 4), labels)
    collapsed = outcome(np.zeros(256, dtype=np.int64), labels)
    assert collapsed.accuracy > given_.accuracy + 0.3
    assert not collapsed.is_clearly_better(given_, 1)
    assert outcome(labels, labels).is_clearly_better(given_, 1)
    one_class = np.zeros(256, dtype=np.int64)
    given_ = outcome(rng.integers(4, size=256), one_class)
    assert not outcome(one_class, one_class).is_clearly_better(given_, comparisons=1)
