"""Whether another reading is clearly better on the same images, by accuracy corrected for chance and an exact test."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray

MIN_GAIN = 0.05
"""Smallest gain in accuracy, and in accuracy corrected for chance, that is worth a word."""

MIN_KAPPA, MIN_REORDERED_KAPPA = 0.2, 0.4
"""Smallest accuracy, corrected for chance, of a better reading, and of one in another class order.

The outputs of a network that was never trained still depend on the image, and so on its class: there is a class order
and a preprocessing with which they are a little better.
"""

ALPHA = 0.01
"""Largest probability of a false alarm, if all readings are equally good."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The predictions of one reading: the class order, which are correct, the outputs.

    Attributes
    ----------
    probabilities
        float64 [N, C], in the order of the outputs.
    labels
        int64 [N] as the data have them, or None.
    order
        The output for each class of the data, int64 [C]; None if it is the order of the data.
    correct
        bool [N]; under a class order that was fitted, that of the other half of the images; None without labels.
    """

    probabilities: Float64Array
    labels: IntArray | None
    order: IntArray | None
    correct: BoolArray | None

    @classmethod
    def create(cls, probabilities: Array, labels: IntArray | None, order: IntArray | None = None) -> Self:
        """Return the outcome of a reading in a known class order."""
        outputs = labels if labels is None or order is None else order[labels]
        correct = None if outputs is None else probabilities.argmax(axis=1) == outputs
        return cls(probabilities.astype(np.float64), labels, order, correct)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def predicted(self) -> IntArray:
        """The output with the largest probability. int64 [N]"""
        predicted: IntArray = self.probabilities.argmax(axis=1)
        return predicted

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions, or None without labels."""
        return None if self.correct is None else float(self.correct.mean())

    @property
    def confidence(self) -> float:
        """Mean over images of the largest probability."""
        return float(self.probabilities.max(axis=1).mean())

    @property
    def diversity(self) -> float:
        """Effective number of predicted classes: the exponential of the entropy of the mean output."""
        mean = self.probabilities.mean(axis=0)
        return math.exp(-float((mean * np.log(np.maximum(mean, 1e-12))).sum()))

    @property
    def log_loss(self) -> float:
        """Mean negative log probability of the true class."""
        assert self.labels is not None
        outputs = self.labels if self.order is None else self.order[self.labels]
        return float(-np.log(np.maximum(self.probabilities[np.arange(len(outputs)), outputs], 1e-12)).mean())

    @property
    def kappa(self) -> float:
        """Cohen's kappa: accuracy corrected for chance, 0 where all predictions are the same class."""
        assert self.labels is not None
        assert self.correct is not None
        outputs = self.labels if self.order is None else self.order[self.labels]
        n_classes = self.probabilities.shape[1]
        true, predicted = (np.bincount(each, minlength=n_classes) / len(each) for each in (outputs, self.predicted))
        by_chance = float(true @ predicted)
        return (float(self.correct.mean()) - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0


def compute_p_value(better: Outcome, given: Outcome) -> float:
    """Return how probable so many more correct predictions are if neither reading is better: McNemar's exact test."""
    assert better.correct is not None
    assert given.correct is not None
    gained = int((better.correct & ~given.correct).sum())
    changed = int((better.correct != given.correct).sum())
    return float(sum(math.comb(changed, count) for count in range(gained, changed + 1)) / 2**changed)


def is_clearly_better(better: Outcome, given: Outcome, comparisons: int) -> bool:
    """Whether a reading is better by more than chance and by more than little, if it is one of several compared.

    Accuracy alone can be that of one class that most images have, which any collapsed output reaches.
    """
    gains = ((better.accuracy or 0.0) - (given.accuracy or 0.0), better.kappa - given.kappa)
    needed = MIN_KAPPA if better.order is None else MIN_REORDERED_KAPPA
    return better.kappa >= needed and min(gains) >= MIN_GAIN and compute_p_value(better, given) * comparisons <= ALPHA
