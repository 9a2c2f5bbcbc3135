"""Cross-fitting: nothing is judged by what it was chosen on."""

import numpy as np
import pytest

from secondlook.diagnosis.folds import Folds, deal_out, held_out_means, held_out_weighted
from secondlook.diagnosis.strategies import Choice


def test_errors_are_dealt_out_evenly() -> None:
    correct = np.random.default_rng(0).random(503) < 0.9
    fold = deal_out(correct, 5, seed=1).fold
    for kind in (correct, ~correct):
        counts = np.bincount(fold[kind], minlength=5)
        assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(fold, deal_out(correct, 5, seed=1).fold)
    assert (fold != deal_out(correct, 5, seed=2).fold).any()


def test_parts_and_others_are_all_images() -> None:
    folds = deal_out(np.random.default_rng(0).random(50) < 0.7, 3, seed=0)
    assert len(folds) == 3
    for part, others in zip(folds.parts, folds.others, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([part, others])), np.arange(50))


def test_each_image_is_judged_by_views_chosen_without_it() -> None:
    folds = Folds(np.arange(20) % 4)
    shares = np.random.default_rng(0).random((6, 20))
    choices = [Choice(np.array([0, 1 + number]), np.array([0.25, 0.75])) for number in range(4)]
    means, weighted = held_out_means(shares, folds, choices, budget=3), held_out_weighted(shares, folds, choices)
    assert weighted is not None
    for image in range(20):
        first, second = shares[0, image], shares[1 + image % 4, image]
        assert means[:, image] == pytest.approx([first, (first + second) / 2, (first + second) / 2])
        assert weighted[image] == pytest.approx(0.25 * first + 0.75 * second)


def test_views_without_weights_have_no_weighted_mean() -> None:
    choices = [Choice(np.array([0]))] * 2
    assert held_out_weighted(np.ones((1, 4)), Folds(np.arange(4) % 2), choices) is None
