"""Choosing on some of the images: whatever looks at labels, from sanity to shrinkage, looks at theirs alone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import IntArray
from secondlook.diagnosis.objective import Objective
from secondlook.diagnosis.pool import Pool
from secondlook.diagnosis.sanity import worth_choosing
from secondlook.diagnosis.shrinking import FOLDS, SHRINKAGES, best_shrinkage
from secondlook.diagnosis.strategies import Choice, Question, Strategy, find_strategy
from secondlook.metrics import BoundMetric


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same over all folds."""

    pool: Pool
    metric: BoundMetric
    strategy: Strategy
    looks: int
    """How many views are chosen, the identity among them."""
    shrinkage: float | None
    """None where it is still to be decided."""
    seed: int
    advance: Callable[[int], None] = lambda _: None
    """Told how many more views were chosen."""

    def __post_init__(self) -> None:
        if not self.strategy.by_objective:
            object.__setattr__(self, "shrinkage", 0.0)  # nothing to decide

    @property
    def steps(self) -> int:
        """How many views `choose` chooses before it ends, rejected ones included; for the progress bar."""
        rounds = 1 if self.shrinkage is not None else 1 + FOLDS * len(SHRINKAGES)
        return rounds * (self.looks - 1)


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was chosen, and how far the objective was shrunk for it."""

    choice: Choice
    shrinkage: float


def choose(task: Task, images: IntArray) -> Chosen:
    """Choose views on some of the images. int64 [n]"""
    pool = task.pool.on(images)
    shrinkage = _decided_shrinkage(task, pool) if task.shrinkage is None else task.shrinkage
    return Chosen(_choices(task, pool, task.strategy, [shrinkage])[0], shrinkage)


def _decided_shrinkage(task: Task, pool: Pool) -> float:
    greedy = find_strategy("greedy")  # what suits it suits those that refine it

    def choose_by_each(images: IntArray) -> list[Choice]:
        return _choices(task, pool.on(images), greedy, SHRINKAGES)

    return best_shrinkage(pool, task.metric, choose_by_each, task.looks, task.seed)


def _choices(task: Task, pool: Pool, strategy: Strategy, shrinkages: "list[float] | tuple[float, ...]") -> list[Choice]:
    """Choose on all images of a pool, once with each shrinkage; places are those in the whole pool."""
    places = worth_choosing(pool, task.looks)
    shares = np.ascontiguousarray(pool.shares[places])
    choices = []
    for shrinkage in shrinkages:
        objective = Objective(task.metric, pool.correct, shares, shrinkage)
        question = Question(shares, pool.correct, objective, min(task.looks, len(places)), task.advance)
        choice = strategy.choose(question)
        choices.append(Choice(places[choice.places], choice.weights))
    return choices
