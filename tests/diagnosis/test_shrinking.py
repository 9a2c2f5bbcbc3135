"""Shrinkage: the labels are believed where they show something, the pool where they do not."""

import math

import numpy as np
import pytest

from secondlook.arrays import IntArray
from secondlook.diagnosis import search_views
from secondlook.diagnosis.judging import Judge
from secondlook.diagnosis.objective import objective_measure
from secondlook.diagnosis.pool import pool_of
from secondlook.diagnosis.shrinking import SHRINKAGES, best_shrinkage
from secondlook.diagnosis.strategies import Choice
from secondlook.predictions import Predictions

VIEWS = ["identity", *(f"rotate:{angle}" for angle in range(1, 13))]


def made_pool(n_images: int, knowing: int, seed: int = 0) -> Predictions:
    """Return a pool in which so many views know which images are wrong, and the others only add noise."""
    generator = np.random.default_rng(seed)
    wrong = generator.random(n_images) < 0.2
    noise = generator.normal(0, 0.05, (n_images, len(VIEWS)))
    shares = 0.75 + noise
    shares[:, len(VIEWS) - knowing :] -= 0.06 * wrong[:, None]
    probabilities = np.stack([shares, 1 - shares], axis=2)
    return Predictions(probabilities=probabilities, views=VIEWS, labels=wrong.astype(np.int64))


def test_labels_are_believed_where_few_views_are_worth_it() -> None:
    result = search_views(made_pool(1500, knowing=3), 3, preset=["rotate:1", "rotate:2", "rotate:3"])
    assert result.shrinkage < math.inf
    assert {"rotate:10", "rotate:11", "rotate:12"} <= set(result.found.texts)
    assert [gain.verdict for gain in result.gains] == ["better"] * 3, "three views that know beat all others"
    assert result.kept is None
    assert result.verdict.startswith("The found set is better than the given 4 views: auroc +")


def test_the_pool_is_believed_where_all_views_are_alike() -> None:
    assert search_views(made_pool(300, knowing=13), 6).shrinkage == math.inf


def test_in_doubt_the_pool_is_believed() -> None:
    pool = pool_of(made_pool(200, knowing=3))

    def same_for_all(_images: IntArray) -> list[Choice]:
        return [Choice(np.array([0, 1]))] * len(SHRINKAGES)

    assert best_shrinkage(pool, objective_measure("auroc"), same_for_all, 2, seed=0) == math.inf

    def never(_images: IntArray) -> list[Choice]:
        raise AssertionError("with one error there is nothing to compare")

    one_error = pool.on(np.concatenate([np.flatnonzero(pool.correct)[:20], np.flatnonzero(~pool.correct)[:1]]))
    assert best_shrinkage(one_error, objective_measure("auroc"), never, 2, seed=0) == math.inf


@pytest.mark.parametrize(("worse_by", "place"), [(0.0, 0), (0.5, 1)])
def test_the_first_that_is_as_good_is_taken(worse_by: float, place: int) -> None:
    generator = np.random.default_rng(0)
    correct = generator.random(500) < 0.8
    good = correct + generator.normal(0, 0.8, 500)
    worse = good - worse_by * correct
    judge = Judge(objective_measure("auroc"), correct, seed=0)
    assert judge.first_as_good_as_the_best(np.stack([worse, good])) == place
