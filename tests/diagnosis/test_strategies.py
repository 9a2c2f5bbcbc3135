"""Strategies: laws over all of them, and the greedy ones against a slow version."""

import numpy as np
import pytest

from secondlook.arrays import IntArray
from secondlook.diagnosis import STRATEGIES, Choice, Question, strategy
from secondlook.diagnosis.objective import Objective, objective_measure
from secondlook.diagnosis.strategies import find_strategy
from secondlook.errors import DiagnosisError
from secondlook.metrics import auroc

VIEWS, IMAGES = 9, 150


def made_question(seed: int, budget: int) -> Question:
    generator = np.random.default_rng(seed)
    correct = generator.random(IMAGES) < 0.8
    shares = np.clip(0.6 + 0.2 * correct + generator.normal(0, 0.2, (VIEWS, IMAGES)), 0, 1)
    return Question(shares, correct, Objective(objective_measure("auroc"), correct, shares, 0.0), budget)


def value_of(question: Question, places: list[int] | IntArray) -> float:
    return auroc(question.correct, question.shares[places].sum(axis=0))


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("budget", [2, 5, VIEWS])
def test_every_strategy_gives_an_ordered_set_within_the_budget(name: str, budget: int) -> None:
    question = made_question(1, budget)
    choice = STRATEGIES[name].choose(question)
    assert choice.places[0] == 0
    assert len(set(choice.places.tolist())) == len(choice.places) <= budget
    if choice.weights is not None:
        assert choice.weights.shape == choice.places.shape
        assert choice.weights.sum() == pytest.approx(1)
        assert (choice.weights >= 0).all()
    again = STRATEGIES[name].choose(made_question(1, budget))
    np.testing.assert_array_equal(choice.places, again.places)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_takes_what_helps_most(seed: int) -> None:
    question, chosen = made_question(seed, 5), [0]
    while len(chosen) < 5:
        left = [place for place in range(VIEWS) if place not in chosen]
        chosen.append(max(left, key=lambda place: value_of(question, [*chosen, place])))
    assert STRATEGIES["greedy"].choose(question).places.tolist() == chosen


def test_swaps_end_where_no_single_swap_helps() -> None:
    helped = 0
    for seed in range(8):
        question = made_question(seed, 4)
        plain, swapped = (STRATEGIES[name].choose(question).places.tolist() for name in ("greedy", "swap"))
        value = value_of(question, swapped)
        assert value >= value_of(question, plain) - 1e-12
        helped += value > value_of(question, plain) + 1e-9
        for place in range(1, 4):
            for other in set(range(VIEWS)) - set(swapped):
                assert value_of(question, [*swapped[:place], other, *swapped[place + 1 :]]) <= value + 1e-9
    assert helped > 0, "greedy is not always the end"


def test_taking_a_good_view_again_gives_it_weight() -> None:
    question = made_question(0, 4)
    shares = question.shares.copy()
    shares[3] = 0.1 + 0.8 * question.correct  # this one alone tells right from wrong
    objective = Objective(objective_measure("auroc"), question.correct, shares, 0.0)
    choice = STRATEGIES["greedy-replace"].choose(Question(shares, question.correct, objective, 4))
    assert choice.weights is not None
    weight = dict(zip(choice.places.tolist(), choice.weights.tolist(), strict=True))
    assert weight[3] == max(weight.values())


def test_progress_is_told() -> None:
    told: list[int] = []
    for name in STRATEGIES:
        question = made_question(0, 4)
        told.clear()
        STRATEGIES[name].choose(Question(question.shares, question.correct, question.objective, 4, told.append))
        assert sum(told) >= 3, name


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(DiagnosisError, match=r"unknown strategy 'greedi'; known: greedy.*Did you mean 'greedy'"):
        find_strategy("greedi")


def test_a_strategy_is_registered_once() -> None:
    def choose(question: Question) -> Choice:
        return Choice(np.arange(question.budget))

    with pytest.raises(DiagnosisError, match="'greedy' is registered already"):
        strategy("greedy", "again")(choose)
