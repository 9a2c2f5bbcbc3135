"""Sanity: what breaks a classifier, what weakens it, and in which order views are worth choosing."""

from collections.abc import Callable

import numpy as np
import pytest

from secondlook.diagnosis import SearchWarning, diagnose_views, search_views
from secondlook.diagnosis.choosing import Task, choose
from secondlook.diagnosis.objective import objective_measure
from secondlook.diagnosis.pool import pool_of
from secondlook.diagnosis.sanity import sanity_of, worth_choosing
from secondlook.diagnosis.strategies import find_strategy
from secondlook.predictions import Predictions

Pools = Callable[..., Predictions]
VIEWS = "identity hflip rotate:8 rotate:6 vflip"


def weakened() -> Predictions:
    """Views on 400 images, sure and right on the first 300: the turns lose 10 and 20 of the unsure, 'vflip' all."""
    labels = np.zeros(400, dtype=np.int64)
    shares = np.tile(np.where(np.arange(400) < 300, 0.99, 0.6), (5, 1))
    shares[:, 390:] = 0.4  # errors in every view
    shares[2, 370:390] = 0.45
    shares[3, 380:390] = 0.45
    shares[4] = 0.1
    return Predictions(probabilities=np.stack([shares.T, 1 - shares.T], axis=2), views=VIEWS, labels=labels)


def test_weak_views_are_named_with_the_numbers() -> None:
    diagnosis = diagnose_views(weakened())
    assert list(diagnosis.insane) == ["vflip"]
    assert diagnosis.weak == {
        "rotate:8": "the mean output of the right class falls from 0.887 to 0.880.",
        "rotate:6": "the mean output of the right class falls from 0.887 to 0.884.",
    }
    assert set(diagnosis.sane.texts) == set(VIEWS.split()) - {"vflip"}
    assert "weak" in str(diagnosis)


def test_the_identity_is_sound_and_losses_are_in_standard_errors() -> None:
    pool = pool_of(weakened())
    assert sanity_of(pool, 0).is_sound
    lost = np.zeros(400)
    lost[:10] = 0.15
    assert abs(sanity_of(pool, 3).loss - lost.mean() / (lost.std() / 20)) < 1e-9


def test_weak_views_fill_the_budget_the_least_weak_first() -> None:
    pool = pool_of(weakened())
    assert worth_choosing(pool, 2).tolist() == [0, 1]
    assert worth_choosing(pool, 3).tolist() == [0, 1, 3]
    assert worth_choosing(pool, 9).tolist() == [0, 1, 2, 3]


def test_a_weak_view_is_not_chosen_while_others_are_there() -> None:
    with pytest.warns(SearchWarning, match="only 10 of 400"):
        assert search_views(made_search_pool(), 1).found.texts == ("identity", "hflip")


def made_search_pool() -> Predictions:
    """Add some noise, so that there is something to choose by."""
    preds = weakened()
    noise = np.random.default_rng(0).normal(0, 0.02, preds.shape[:2])
    shares = np.clip(preds.probabilities[:, :, 0] + noise, 0.01, 0.99)
    return Predictions(probabilities=np.stack([shares, 1 - shares], axis=2), views=VIEWS, labels=preds.labels)


def test_images_that_are_not_chosen_on_are_not_looked_at(made_pool: Pools) -> None:
    """Whatever the held-out images say, in labels or in answers, the choice on the others stays."""
    seen, first, second = np.arange(200), pool_of(made_pool(400, seed=1)), pool_of(made_pool(400, seed=1))
    assert second.right is not None
    assert second.truth is not None
    for held_out in (second.shares, second.largest, second.agrees, second.right, second.truth):
        held_out[:, 200:] = held_out[::-1, 200:]
    second.right[:, 200:] = ~second.right[:, 200:]
    for name in ("greedy", "weights"):
        tasks = [Task(pool, objective_measure("auroc"), find_strategy(name), 5, None, 0) for pool in (first, second)]
        chosen = [choose(task, seen) for task in tasks]
        np.testing.assert_array_equal(chosen[0].choice.places, chosen[1].choice.places)
        assert chosen[0].shrinkage == chosen[1].shrinkage
