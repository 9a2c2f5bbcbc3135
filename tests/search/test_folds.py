"""Cross-fitting: nothing is judged by what it was chosen on."""

import numpy as np
import pytest

from secondlook.arrays import IntArray
from secondlook.search.folds import cross_fit, fold_of_each
from secondlook.search.strategies import Choice


def test_errors_are_dealt_out_evenly() -> None:
    correct = np.random.default_rng(0).random(503) < 0.9
    fold = fold_of_each(correct, 5, seed=1)
    for kind in (correct, ~correct):
        counts = np.bincount(fold[kind], minlength=5)
        assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(fold, fold_of_each(correct, 5, seed=1))
    assert (fold != fold_of_each(correct, 5, seed=2)).any()


def test_each_image_is_judged_by_views_chosen_without_it() -> None:
    fold = np.arange(20) % 4
    shares = np.random.default_rng(0).random((6, 20))

    def choose_on(images: IntArray) -> Choice:
        """Name the fold that is left out by the view that is chosen; view 5 where none is."""
        left_out = set(range(4)) - set(fold[images].tolist())
        return Choice(np.array([0, 1 + left_out.pop()] if left_out else [0, 5]), np.array([0.25, 0.75]))

    fitted = cross_fit(shares, choose_on, fold, budget=3)
    assert fitted.choice.places.tolist() == [0, 5]
    for image in range(20):
        first, second = shares[0, image], shares[1 + fold[image], image]
        mean = (first + second) / 2
        assert fitted.confidences[:, image] == pytest.approx([first, mean, mean])
        assert fitted.weighted is not None
        assert fitted.weighted[image] == pytest.approx(0.25 * first + 0.75 * second)
